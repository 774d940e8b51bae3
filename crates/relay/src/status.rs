use std::time::{Duration, Instant};

use jiff::Timestamp;
use pgoutput::Lsn;
use serde::{Serialize, Serializer};
use servers::Latency;

use crate::mode::Mode;

/// What a running relay knows about itself. Published through a `watch` channel.
///
/// Totals count since the process started. Positions belong to the present session and satisfy
/// `confirmed_flush_lsn <= resolved_lsn <= received_lsn`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// What the relay is doing.
    pub role: Role,
    /// How events are published.
    pub mode: Mode,
    /// How they are to be published.
    pub configured_mode: Mode,
    /// Why that is not the same, and what helps.
    pub keyed_because: Option<String>,
    /// Whether the replication connection is up.
    pub postgres_connected: bool,
    /// Whether the connection to NATS is up.
    pub nats_connected: bool,
    /// Since when it is lost, if it is.
    pub nats_lost_at: Option<Timestamp>,
    /// The timeline that the server is on, once known.
    pub timeline: Option<u32>,
    /// The end of what was read from the log.
    #[serde(serialize_with = "text")]
    pub received_lsn: Lsn,
    /// Everything before it is stored by the broker or parked.
    #[serde(serialize_with = "text")]
    pub resolved_lsn: Lsn,
    /// What PostgreSQL was told it may forget.
    #[serde(serialize_with = "text")]
    pub confirmed_flush_lsn: Lsn,
    /// What the slot makes the server keep, once it was looked at.
    pub slot: Option<SlotStatus>,
    /// Events read but not resolved.
    pub in_flight_events: usize,
    /// Their bytes.
    pub in_flight_bytes: usize,
    /// Events stored by the broker on this relay's request.
    pub published_total: u64,
    /// Publishes that the broker answered as duplicates. They are among the already stored.
    pub duplicates_total: u64,
    /// Events found in the stream already, and so not published again.
    pub already_stored_total: u64,
    /// Rows marked as published.
    pub rows_marked_total: u64,
    /// Events moved to the dead-letter table.
    pub dead_letters_total: u64,
    /// The same, by why.
    pub dead_letters_by_reason: DeadLetterCounts,
    /// Events published once more. They are not among the others.
    pub replayed_total: u64,
    /// Events that a route dropped. One that a broken session did not confirm is counted again.
    pub dropped_total: u64,
    /// Events published by the scanner, because the log could not bring them.
    pub scanned_total: u64,
    /// Rows marked by the sweeper, because their mark was lost.
    pub swept_total: u64,
    /// Rows that came into the outbox without passing the log, found and left to the scanner.
    pub unlogged_total: u64,
    /// Rows whose events are published or parked, and which somebody has locked: they are marked or
    /// removed when they are free.
    pub owed_rows: u64,
    /// Rows of published events whose marks the database refuses.
    pub refused_marks: u64,
    /// Rows without an id, which are neither published nor parked.
    pub unidentified_rows: u64,
    /// Fast-ingest batches begun; messages that go by themselves are in none.
    pub batches_total: u64,
    /// How often the stream's tail was read to find out what is stored.
    pub resyncs_total: u64,
    /// Messages of other writers met in the stream.
    pub foreign_total: u64,
    /// Answers that were not the stream's, and were passed over.
    pub strangers_total: u64,
    /// The first of them in the last session that had any.
    pub stranger: Option<String>,
    /// Messages of PostgreSQL's log with the outbox's prefix that were passed over.
    pub ignored_total: u64,
    /// How often a connection to either server had to be opened again.
    pub reconnects_total: u64,
    /// When the relay last got on: an event was resolved, or, connected to both servers, it had
    /// none to resolve.
    #[serde(rename = "last_progress_age_seconds", serialize_with = "age")]
    pub last_progress: Option<Instant>,
    /// When an event was last resolved.
    #[serde(skip)]
    pub last_resolved: Option<Instant>,
    /// When the oldest event of the log was committed that is read and not resolved.
    #[serde(rename = "lag_seconds", serialize_with = "lag")]
    pub oldest_unresolved_at: Option<Timestamp>,
    /// From the commit in PostgreSQL to the acknowledgement by the broker.
    pub commit_to_ack: Latency,
    /// From sending to the acknowledgement by the broker.
    pub publish_to_ack: Latency,
    /// Whether the broker is tried.
    pub breaker: BreakerState,
    /// Time to the next attempt, while the breaker is open.
    #[serde(rename = "breaker_retry_in_seconds", serialize_with = "seconds")]
    pub breaker_retry_in: Option<Duration>,
    /// How often the breaker opened.
    pub breaker_opened_total: u64,
    /// Failures that were nobody's fault but the broker's.
    pub outages_total: u64,
    /// Attempts at events that failed and are repeated later.
    pub deferred_total: u64,
    /// What the last comparisons of rows with the stream found.
    pub history: HistoryStatus,
    /// Rows whose messages the stream has lost are being published again.
    pub restores: bool,
    /// The database went back, as the latest session that saw it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database_went_back: Option<String>,
    /// What the relay waits for before it can begin, and for whom, once that takes seconds.
    pub waiting_for: Option<String>,
    /// PostgreSQL sends nothing, because it waits for that.
    #[serde(skip)]
    pub held_back: bool,
    /// Why the rows of published events stay unmarked: the latest statement that marks them failed.
    pub marks_failing: Option<String>,
    /// Why the last session ended, or why the present one does not get on.
    pub last_error: Option<String>,
}

impl Status {
    /// Time since the relay last got on.
    pub fn last_progress_age(&self) -> Option<Duration> {
        self.last_progress.map(|at| at.elapsed())
    }

    /// How long the oldest event of the log waits that is read and not resolved; 0 if none does.
    pub fn lag(&self) -> Duration {
        waited_since(self.oldest_unresolved_at)
    }

    /// What the broker has yet to take, in bytes of log.
    pub fn lag_bytes(&self) -> u64 {
        self.received_lsn.0.saturating_sub(self.resolved_lsn.0)
    }
}

/// What is written down, compared with the stream: its end, and rows at random.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HistoryStatus {
    /// When that was done last; `None` if it was not yet.
    pub compared_at: Option<Timestamp>,
    /// Rows compared then; none where rows do not say where their messages are.
    pub rows: u64,
    /// Since when it could not be done, if the last time it could not.
    pub failing_since: Option<Timestamp>,
    /// Why.
    pub failing: Option<String>,
    /// The latest that said something else than the stream, if one did.
    pub missing: Option<String>,
    /// How many did so far.
    pub missing_total: u64,
}

/// What the slot makes the server keep.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SlotStatus {
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` if there is no slot.
    pub wal_status: Option<String>,
    /// Bytes of log that the slot keeps.
    pub retained_bytes: u64,
    /// Bytes until the nearer of `relay.wal_limit` and the server's `max_slot_wal_keep_size`;
    /// `None` if neither is set. How full the server's disk is, SQL does not tell.
    pub wal_headroom_bytes: Option<u64>,
    /// When they will be used up if the log goes on growing as it does; `None` while it does not.
    pub wal_headroom_seconds: Option<u64>,
}

/// What a relay is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Connecting and checking.
    #[default]
    Starting,
    /// Another relay has the slot; this one takes over when that one goes.
    Standby,
    /// Reading the slot.
    Active,
    /// Ended.
    Stopped,
}

impl Role {
    /// All roles, in the order of a relay's life.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Standby, Self::Active, Self::Stopped];

    /// The name used in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Active => "active",
            Self::Stopped => "stopped",
        }
    }
}

/// Whether a broker that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// All is well.
    #[default]
    Closed,
    /// One attempt is under way.
    HalfOpen,
    /// Nothing is tried before a time.
    Open,
}

/// Why an event becomes a dead letter of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadLetterReason {
    Unfit,
    Refused,
    MaxAttempts,
    Blocked,
}

/// Events moved to the dead-letter table, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeadLetterCounts {
    /// They have no subject, or cannot be read.
    pub unfit: u64,
    /// The broker, or the client, will never take them.
    pub refused: u64,
    /// The stream did not take them, however often it was tried.
    pub max_attempts: u64,
    /// They wait for an earlier event of their aggregate.
    pub blocked: u64,
}

impl DeadLetterCounts {
    pub(crate) fn count(&mut self, reason: DeadLetterReason) {
        *match reason {
            DeadLetterReason::Unfit => &mut self.unfit,
            DeadLetterReason::Refused => &mut self.refused,
            DeadLetterReason::MaxAttempts => &mut self.max_attempts,
            DeadLetterReason::Blocked => &mut self.blocked,
        } += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.unfit + self.refused + self.max_attempts + self.blocked
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            unfit: self.unfit + other.unfit,
            refused: self.refused + other.refused,
            max_attempts: self.max_attempts + other.max_attempts,
            blocked: self.blocked + other.blocked,
        }
    }
}

fn text<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

fn seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|it| it.as_secs_f64()).serialize(serializer)
}

fn lag<S: Serializer>(since: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    waited_since(*since).as_secs_f64().serialize(serializer)
}

fn waited_since(since: Option<Timestamp>) -> Duration {
    let waited = since.map(|it| Timestamp::now().duration_since(it));
    // Our clock may be behind the server's.
    waited.and_then(|it| Duration::try_from(it).ok()).unwrap_or_default()
}

fn age<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|it| it.elapsed().as_secs_f64()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_shows_positions_as_postgresql_prints_them() {
        let status = Status { confirmed_flush_lsn: Lsn(0x16_B374_D848), ..Status::default() };
        let json = serde_json::to_value(&status).expect("serialisable");
        assert_eq!(json["confirmed_flush_lsn"], "16/B374D848");
        assert_eq!(json["role"], "starting");
        assert_eq!(json["last_progress_age_seconds"], serde_json::Value::Null);
    }

    #[test]
    fn roles_have_the_same_name_in_json_and_metrics() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).expect("serialisable"), role.name());
        }
    }
}
