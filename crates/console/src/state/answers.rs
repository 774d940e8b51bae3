//! What the API of a relay and of an inbox answers, as far as the console shows it.
//!
//! Fields that it does not know are ignored. Fields that an older process lacks are empty.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::figures::latency;

/// `/api/v1/status` of a relay: of the only one, or of each shard.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RelayStatus {
    shards: Vec<ShardStatus>,
    #[serde(flatten)]
    only: Option<ShardStatus>,
}

impl RelayStatus {
    /// The shards, which may be one.
    pub(crate) fn shards(&self) -> &[ShardStatus] {
        match (&*self.shards, &self.only) {
            ([], Some(only)) => std::slice::from_ref(only),
            (shards, _) => shards,
        }
    }

    #[cfg(test)]
    pub(crate) fn of(only: ShardStatus) -> Self {
        Self { shards: Vec::new(), only: Some(only) }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ShardStatus {
    pub(crate) process_id: u32,
    pub(crate) shard: Option<u32>,
    pub(crate) role: String,
    pub(crate) mode: String,
    pub(crate) postgres_connected: bool,
    pub(crate) nats_connected: bool,
    pub(crate) nats_lost_at: Option<Timestamp>,
    /// Its servers.
    pub(crate) nats: Option<String>,
    pub(crate) lag_seconds: f64,
    pub(crate) last_progress_age_seconds: Option<f64>,
    pub(crate) in_flight_events: u64,
    pub(crate) published_total: u64,
    pub(crate) commit_to_ack: Buckets,
    pub(crate) breaker: String,
    pub(crate) breaker_retry_in_seconds: Option<f64>,
    pub(crate) slot: Option<Slot>,
    /// Rows that wait, as of the last look.
    pub(crate) unpublished: Option<u64>,
    pub(crate) received_lsn: Option<String>,
    pub(crate) resolved_lsn: Option<String>,
    pub(crate) confirmed_flush_lsn: Option<String>,
    pub(crate) waiting_for: Option<String>,
    pub(crate) last_error: Option<String>,
    pub(crate) retention: Option<Retention>,
    pub(crate) history: Marks,
}

impl ShardStatus {
    /// Nothing can be published now.
    pub(crate) fn is_broker_away(&self) -> bool {
        !self.nats_connected || self.breaker == "open"
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Slot {
    pub(crate) wal_status: Option<String>,
    pub(crate) retained_bytes: u64,
    pub(crate) wal_headroom_bytes: Option<u64>,
    pub(crate) wal_headroom_seconds: Option<u64>,
}

/// A histogram since the start of the process: counts by the number of the bucket, which ends at
/// 2^(number/8) seconds.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Buckets {
    pub(crate) buckets: Vec<(i32, u64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Retention {
    pub(crate) is_overdue: bool,
    pub(crate) failure: Option<String>,
}

/// What the relay found when it compared rows with the stream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Marks {
    pub(crate) missing: Option<String>,
}

/// `/readyz`, and what it says of each consumer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
    pub(crate) reason: Option<String>,
    /// Of an inbox.
    pub(crate) consumers: BTreeMap<String, Self>,
}

/// A page of dead letters of either queue, and what all of them have in common.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Letters {
    pub(crate) total: u64,
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) groups: Vec<Group>,
    pub(crate) dead_letters: Vec<Letter>,
    pub(crate) next: Option<String>,
}

/// Dead letters with the same cause.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Group {
    pub(crate) fingerprint: String,
    pub(crate) count: u64,
    pub(crate) aggregates: u64,
    pub(crate) last_hour: u64,
    pub(crate) first: Option<Timestamp>,
    pub(crate) last: Option<Timestamp>,
}

/// A dead letter. Those of an inbox have a consumer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Letter {
    pub(crate) id: String,
    pub(crate) consumer: Option<String>,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) occurred_at: Option<Timestamp>,
    pub(crate) dead_at: Option<Timestamp>,
    pub(crate) reason: String,
    /// None of one that only waits for another.
    pub(crate) attempts: Option<u64>,
    /// Later events of the aggregate wait for it.
    pub(crate) blocks: bool,
    pub(crate) blocked_by: Option<String>,
    pub(crate) discarded_at: Option<Timestamp>,
    pub(crate) requeued: bool,
    pub(crate) subject: Option<String>,
    pub(crate) stream: Option<String>,
    pub(crate) stream_seq: Option<u64>,
    /// Of an inbox.
    pub(crate) payload_bytes: Option<u64>,
}

impl Letter {
    /// As `TYPE:ID`.
    pub(crate) fn aggregate(&self) -> Option<String> {
        Some(format!("{}:{}", self.aggregate_type.as_ref()?, self.aggregate_id.as_ref()?))
    }
}

/// One dead letter, with what was decided about it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LetterDetail {
    pub(crate) dead_letter: Option<Letter>,
    pub(crate) state: String,
    pub(crate) published_at: Option<Timestamp>,
    /// Of an outbox, with how many events wait for it.
    pub(crate) payload_bytes: Option<u64>,
    pub(crate) waiting: Option<u64>,
    /// What a decision is about.
    pub(crate) etag: Option<String>,
    pub(crate) history: Vec<Decision>,
    pub(crate) failed_attempts: Vec<FailedAttempt>,
    pub(crate) headers: Option<Box<RawValue>>,
    /// As it was written: a number keeps its digits.
    pub(crate) payload: Option<Box<RawValue>>,
    pub(crate) payload_base64: Option<String>,
}

/// Something that a person decided; in the audit, also about what.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Decision {
    pub(crate) at: Option<Timestamp>,
    pub(crate) action: String,
    pub(crate) actor: String,
    pub(crate) why: Option<String>,
    /// Why the event was a dead letter.
    pub(crate) reason: Option<String>,
    pub(crate) payload_replaced: bool,
    pub(crate) event_id: Option<String>,
    pub(crate) aggregate: Option<String>,
    pub(crate) consumer: Option<String>,
}

/// What was done, as people say it.
pub(crate) fn in_words(action: &str) -> String {
    action.replace("mark_", "mark as ").replace('_', " ")
}

/// The inbox writes the database's role before the name.
pub(crate) fn person(actor: &str) -> &str {
    let inner = actor.strip_suffix(')').and_then(|it| it.split_once(" ("));
    inner.map_or(actor, |(_, name)| name)
}

/// A worker is named after its process, and an id of its run.
pub(crate) fn process(worker: &str) -> &str {
    worker.split_once(':').map_or(worker, |(process, _)| process)
}

impl Decision {
    pub(crate) fn person(&self) -> &str {
        person(&self.actor)
    }

    /// Why the event was a dead letter until then, if this ended that.
    pub(crate) fn ended(&self) -> Option<&str> {
        let ends = matches!(
            &*self.action,
            "requeue" | "release" | "discard" | "reject" | "purge" | "found"
        );
        self.reason.as_deref().filter(|_| ends)
    }
}

/// An attempt of a consumer that failed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct FailedAttempt {
    pub(crate) failed_at: Option<Timestamp>,
    pub(crate) attempt: u64,
    /// The status of an HTTP answer.
    pub(crate) code: Option<u16>,
    pub(crate) took_ms: u32,
    pub(crate) reason: String,
    pub(crate) worker: Option<String>,
}

impl FailedAttempt {
    pub(crate) fn took(&self) -> String {
        latency(f64::from(self.took_ms) / 1e3)
    }

    pub(crate) fn by(&self) -> Option<String> {
        self.worker.as_deref().map(|it| format!("process {}", process(it)))
    }
}

/// `/api/v1/replays`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Replays {
    pub(crate) replays: Vec<Replay>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Replay {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) source: String,
    pub(crate) from_lsn: Option<String>,
    pub(crate) to_lsn: Option<String>,
    pub(crate) since: Option<String>,
    pub(crate) until: Option<String>,
    pub(crate) event_ids: Vec<String>,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) subject_prefix: Option<String>,
    pub(crate) waits_for: Option<String>,
    pub(crate) per_second: Option<u32>,
    pub(crate) asked_by: String,
    pub(crate) reason: String,
    pub(crate) asked_at: String,
    pub(crate) ended_at: Option<String>,
    pub(crate) events: Option<u64>,
    pub(crate) published: u64,
    pub(crate) failed: u64,
    pub(crate) failures: Vec<Unreplayed>,
}

impl Replay {
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(&*self.status, "asked" | "running" | "paused")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Unreplayed {
    pub(crate) event: String,
    pub(crate) reason: String,
}

/// The answer to a replay that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Begun {
    pub(crate) replays: Vec<String>,
    pub(crate) plans: Vec<ReplayPlan>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ReplayPlan {
    pub(crate) stream: String,
    pub(crate) sources: Vec<PlanSource>,
    pub(crate) chosen: Option<String>,
    pub(crate) consumers: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct PlanSource {
    pub(crate) source: String,
    pub(crate) from: Option<Timestamp>,
    pub(crate) events: Option<u64>,
    pub(crate) is_exact: bool,
    pub(crate) note: Option<String>,
}

/// `/api/v1/status` of an inbox.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct InboxStatus {
    pub(crate) consumers: BTreeMap<String, ConsumerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ConsumerStatus {
    pub(crate) state: String,
    pub(crate) paused: Option<String>,
    pub(crate) handler: Handler,
    pub(crate) busy: u64,
    pub(crate) held: u64,
    pub(crate) left: u64,
    pub(crate) lanes: u64,
    pub(crate) counts: Counts,
    pub(crate) attempt_duration: Buckets,
    /// What the broker has not delivered yet, if it could be asked.
    pub(crate) pending: Option<u64>,
    pub(crate) held_up: Vec<HeldUp>,
}

/// An event that waits for another attempt, in the worker's memory, and what waits for it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct HeldUp {
    pub(crate) event_id: String,
    pub(crate) aggregate: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) waiting: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Handler {
    pub(crate) breaker: String,
    pub(crate) next_probe_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    pub(crate) processed: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
}

/// `/api/v1/consumers`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Consumers {
    /// Names the database that they are in.
    pub(crate) database: Option<String>,
    pub(crate) consumers: Vec<Consumer>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) pause: Option<Pause>,
    pub(crate) worker: Option<Worker>,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
    pub(crate) oldest_seconds: Option<f64>,
    pub(crate) last_error: Option<String>,
    /// The oldest.
    pub(crate) failing: Vec<Failing>,
    /// Only of one that was asked for by name.
    pub(crate) history: Vec<Decision>,
    pub(crate) failed_answers: Vec<FailedAnswers>,
}

/// Attempts of the last 15 minutes that failed alike.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct FailedAnswers {
    pub(crate) code: Option<u16>,
    pub(crate) count: u64,
    pub(crate) last_at: Option<Timestamp>,
    /// Of the median.
    pub(crate) took_ms: u32,
}

impl FailedAnswers {
    pub(crate) fn took(&self) -> String {
        latency(f64::from(self.took_ms) / 1e3)
    }
}

/// An event that fails and is tried again.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Failing {
    pub(crate) event_id: String,
    pub(crate) attempts: u64,
    pub(crate) last_error: String,
    /// None while it is tried.
    pub(crate) next_attempt_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Pause {
    pub(crate) at: Option<Timestamp>,
    pub(crate) by: String,
    pub(crate) why: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Worker {
    pub(crate) owner: String,
    pub(crate) is_valid: bool,
    pub(crate) acquired_at: Option<Timestamp>,
    pub(crate) state: Option<String>,
    pub(crate) breaker: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) next_probe_at: Option<Timestamp>,
    pub(crate) went_back: Option<String>,
    pub(crate) unread: Option<String>,
}

/// Why a process refuses what it was asked for (RFC 9457).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Refused {
    pub(crate) detail: String,
    pub(crate) hint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_relay_and_several_shards_are_read_alike() {
        let one = r#"{"process_id": 7, "role": "active", "published_total": 5, "new": {}}"#;
        let one: RelayStatus = serde_json::from_str(one).expect("readable");
        assert_eq!(one.shards().iter().map(|it| it.published_total).sum::<u64>(), 5);
        let two = r#"{"shards": [{"published_total": 2}, {"published_total": 3, "shard": 1}]}"#;
        let two: RelayStatus = serde_json::from_str(two).expect("readable");
        assert_eq!(two.shards().iter().map(|it| it.published_total).sum::<u64>(), 5);
    }

    #[test]
    fn a_letter_that_waits_for_another_has_no_attempts() {
        let letter: Letter = serde_json::from_str(r#"{"attempts": null}"#).expect("readable");
        assert_eq!(letter.attempts, None);
    }

    #[test]
    fn a_number_of_a_payload_keeps_its_digits() {
        let detail = r#"{"state": "dead", "payload": {"n": 9007199254740993}}"#;
        let detail: LetterDetail = serde_json::from_str(detail).expect("readable");
        let payload = detail.payload.expect("it has one");
        assert_eq!(payload.get(), r#"{"n": 9007199254740993}"#);
    }
}
