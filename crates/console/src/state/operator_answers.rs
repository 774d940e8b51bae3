//! What the API answers about operators, what they do, and what they look after. See `answers`.

use jiff::Timestamp;
use serde::Deserialize;

use crate::sessions::Role;

/// `/api/v1/me`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Oneself {
    pub(crate) role: Role,
}

/// `/api/v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Audit {
    pub(crate) entries: Vec<Audited>,
    pub(crate) next: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Audited {
    pub(crate) at: Option<Timestamp>,
    pub(crate) action: String,
    pub(crate) actor: String,
    pub(crate) why: Option<String>,
    pub(crate) event_id: Option<String>,
    pub(crate) aggregate: Option<String>,
    pub(crate) consumer: Option<String>,
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
    pub(crate) category: String,
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
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SlotEntry {
    pub(crate) name: String,
    pub(crate) is_configured: bool,
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
    pub(crate) request: OperationRequest,
    pub(crate) progress: Progress,
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
