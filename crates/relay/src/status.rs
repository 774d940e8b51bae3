use std::time::{Duration, Instant};

use pgoutput::Lsn;
use serde::{Serialize, Serializer};

/// What a running relay knows about itself. Published through a `watch` channel.
///
/// Totals count since the process started. Positions belong to the present session and satisfy
/// `confirmed_flush_lsn <= resolved_lsn <= received_lsn`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// What the relay is doing.
    pub role: Role,
    /// Whether the replication connection is up.
    pub postgres_connected: bool,
    /// Whether the connection to NATS is up.
    pub nats_connected: bool,
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
    /// Rows without an id, which are neither published nor parked.
    pub unidentified_rows: u64,
    /// Fast-ingest batches begun; messages that go by themselves are in none.
    pub batches_total: u64,
    /// How often the stream's tail was read to find out what is stored.
    pub resyncs_total: u64,
    /// Messages of other writers met in the stream.
    pub foreign_total: u64,
    /// Messages of PostgreSQL's log with the outbox's prefix that were passed over.
    pub ignored_total: u64,
    /// How often a connection to either server had to be opened again.
    pub reconnects_total: u64,
    /// When the relay last got on: an event was resolved, or, connected to both servers, it had
    /// none to resolve.
    #[serde(rename = "last_progress_age_seconds", serialize_with = "age")]
    pub last_progress: Option<Instant>,
    /// From the commit in PostgreSQL to the acknowledgement by the broker.
    pub commit_to_ack: Latency,
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
    /// What the relay waits for before it can begin, and for whom, once that takes seconds.
    pub waiting_for: Option<String>,
    /// Why the last session ended, or why the present one does not get on.
    pub last_error: Option<String>,
}

impl Status {
    /// Time since the relay last got on.
    #[must_use]
    pub fn last_progress_age(&self) -> Option<Duration> {
        self.last_progress.map(|at| at.elapsed())
    }

    /// What the broker has yet to take, in bytes of log.
    #[must_use]
    pub fn lag_bytes(&self) -> u64 {
        self.received_lsn.0.saturating_sub(self.resolved_lsn.0)
    }
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
    #[must_use]
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

/// A histogram of durations with fixed bounds, cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Latency {
    /// How many durations there are for each bound of [`BOUNDS`](Self::BOUNDS), and above all.
    pub counts: [u64; 16],
    /// Their sum, in seconds.
    pub sum_seconds: f64,
}

impl Latency {
    /// The upper bounds of the buckets, in seconds. The last bucket has none.
    pub const BOUNDS: [f64; 15] =
        [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.counts[Self::BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum_seconds += seconds;
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

fn text<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

fn seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|it| it.as_secs_f64()).serialize(serializer)
}

fn age<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|it| it.elapsed().as_secs_f64()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_below_it() {
        let mut latency = Latency::default();
        for millis in [0, 1, 2, 60_000, 60_001] {
            latency.record(Duration::from_millis(millis));
        }
        assert_eq!(latency.counts[..2], [2, 1]);
        assert_eq!(latency.counts[14..], [1, 1]);
        assert_eq!(latency.count(), 5);
        assert!((latency.sum_seconds - 120.004).abs() < 1e-9, "{}", latency.sum_seconds);
    }

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
