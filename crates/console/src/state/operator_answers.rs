//! What the API answers about operators, what they do, and what they look after. See `answers`.

use jiff::Timestamp;
use serde::Deserialize;

use super::answers::{Decision, Group};
use crate::sessions::Role;

/// `/api/v1/me`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Oneself {
    pub(crate) role: Role,
    /// As the audit has it, if it is proven.
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// `/api/v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Audit {
    pub(crate) entries: Vec<Decision>,
    pub(crate) next: Option<String>,
}

/// `/api/v1/doctor`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Doctor {
    pub(crate) checked_at: Option<Timestamp>,
    pub(crate) checks: Vec<Check>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Check {
    pub(crate) id: String,
    pub(crate) subject: Option<String>,
    pub(crate) severity: String,
    pub(crate) title: String,
    pub(crate) evidence: String,
    pub(crate) remedies: Vec<Remedy>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Remedy {
    pub(crate) kind: String,
    pub(crate) text: String,
    pub(crate) caution: Option<String>,
}

/// `/api/v1/slots`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Slots {
    pub(crate) slots: Vec<SlotEntry>,
    pub(crate) oldest_transaction: Option<OpenTransaction>,
}

/// One that has written.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OpenTransaction {
    pub(crate) pid: Option<i32>,
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SlotEntry {
    pub(crate) name: String,
    pub(crate) is_configured: bool,
    /// None of a physical one.
    pub(crate) database: Option<String>,
    pub(crate) active: bool,
    pub(crate) wal_status: Option<String>,
    pub(crate) retained_bytes: u64,
}

/// `/api/v1/config`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Configuration {
    pub(crate) version: String,
    pub(crate) settings: Vec<Setting>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Option<serde_json::Value>,
    pub(crate) origin: String,
}

/// How far work on many dead letters has got.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    pub(crate) total: u64,
    pub(crate) done: u64,
    pub(crate) skipped: u64,
    pub(crate) last_refusal: Option<String>,
    pub(crate) ended: bool,
    pub(crate) cancelled: bool,
}

/// Work on many dead letters, as the process that does it lists it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Operations {
    pub(crate) operations: Vec<Operation>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Operation {
    pub(crate) operation: u64,
    pub(crate) began_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    pub(crate) request: OperationRequest,
    pub(crate) progress: Progress,
    /// The process that did it does not know it any more.
    #[serde(skip)]
    pub(crate) is_lost: bool,
}

impl Operation {
    /// Whether it is under way and takes dead letters of this group.
    pub(crate) fn is_about(&self, group: &Group) -> bool {
        let filter = &self.request.filter;
        let part = filter.reason.as_deref().unwrap_or_default().to_lowercase();
        let is_whole = filter.aggregate.is_none() && filter.event_type.is_none();
        let takes = group.fingerprint.to_lowercase().contains(&part);
        !self.progress.ended && is_whole && takes
    }
}

/// What a process knows, and what was under way when one that is gone knew it.
pub(crate) fn with_lost(known: &mut Vec<Operation>, before: &[Operation]) {
    const LOST_MAX: usize = 16;
    let is_known = |it: &&Operation| {
        known.iter().any(|now| (now.operation, now.began_at) == (it.operation, it.began_at))
    };
    let lost = before.iter().filter(|it| it.is_lost || !it.progress.ended && !is_known(it));
    let lost: Vec<_> = lost.take(LOST_MAX).cloned().collect();
    known.extend(lost.into_iter().map(|mut it| {
        (it.is_lost, it.progress.ended) = (true, true);
        it
    }));
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OperationRequest {
    pub(crate) action: String,
    pub(crate) filter: OperationFilter,
    pub(crate) consumer: Option<String>,
    pub(crate) first: Option<u32>,
    pub(crate) rate: Option<u32>,
    pub(crate) by: Option<String>,
    pub(crate) why: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OperationFilter {
    pub(crate) aggregate: Option<OperationAggregate>,
    pub(crate) event_type: Option<String>,
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OperationAggregate {
    pub(crate) kind: String,
    pub(crate) id: String,
}

/// `/api/v1/verify`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Comparisons {
    pub(crate) running: Option<Comparison>,
    pub(crate) last: Option<Comparison>,
}

/// A comparison of table and stream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Comparison {
    pub(crate) by: String,
    pub(crate) began_at: Option<Timestamp>,
    pub(crate) read: u64,
    pub(crate) expected: u64,
    pub(crate) error: Option<String>,
    pub(crate) result: Option<Compared>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Compared {
    pub(crate) rows: u64,
    pub(crate) matched: u64,
    pub(crate) pending: u64,
    pub(crate) findings: Vec<KindFound>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct KindFound {
    pub(crate) title: String,
    pub(crate) count: u64,
    pub(crate) remedy: String,
}

/// `/api/v1/rewinds`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Rewinds {
    pub(crate) rewinds: Vec<Rewind>,
}

/// A consumer that is to go back.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Rewind {
    pub(crate) consumer: String,
    pub(crate) from_sequence: u64,
    pub(crate) again: bool,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) requested_at: Option<Timestamp>,
    pub(crate) requested_by: String,
    pub(crate) why: Option<String>,
    pub(crate) begun_at: Option<Timestamp>,
    pub(crate) removed: u64,
    pub(crate) outcome: Option<String>,
}

/// What a rewind would do.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RewindPlan {
    /// Labels, and what they say.
    pub(crate) in_words: Vec<(String, String)>,
}

/// `/api/v1/retention`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Retained {
    pub(crate) last_success_at: Option<Timestamp>,
    pub(crate) failure: Option<String>,
    pub(crate) partitions: Vec<Partition>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Partition {
    pub(crate) name: String,
    pub(crate) range: String,
    pub(crate) rows: f64,
    pub(crate) bytes: u64,
}
