use jiff::Timestamp;
use relay::Error;
use serde::{Deserialize, Serialize};

use crate::dead_letters::Group;
use crate::sql::RewindNotes;

/// What `tailpost status` tells: the state that both servers keep, whether a relay runs or not.
#[derive(Debug, Default, Serialize)]
pub struct StatusReport {
    /// The slot, if it exists and is the only one.
    pub slot: Option<SlotReport>,
    /// The outbox table and the dead-letter table.
    pub outbox: OutboxReport,
    /// The stream, if it exists, is the only one, and the broker can be reached.
    pub stream: Option<StreamReport>,
    /// What retention did; `None` if there was no pass yet.
    pub retention: Option<RetentionReport>,
    /// Partitions by day, if the outbox has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<PartitionsStatus>,
    /// Each shard, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardReport>,
    /// What an operator should look at, each a sentence with its remedy.
    pub warnings: Vec<String>,
    /// Slots without a reader. Whether a relay is about to read them is unknown to the servers.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Why something is missing above: the broker cannot be reached, or stream or slot does not
    /// exist.
    #[serde(skip)]
    pub incomplete: Option<Error>,
}

/// One of several shards.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ShardReport {
    /// Its number, from 0 on.
    pub shard: u32,
    /// Its slot, if it exists.
    pub slot: Option<SlotReport>,
    /// Its rows that are not marked as published, of those that were counted for all.
    pub unpublished: u64,
    /// Its stream, if it exists and the broker can be reached.
    pub stream: Option<StreamReport>,
}

/// A replication slot, after `pg_replication_slots`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SlotReport {
    /// Its name.
    pub name: String,
    /// Whether a relay reads it now.
    pub active: bool,
    /// `reserved`, `extended`, `unreserved`, or `lost`.
    pub wal_status: Option<String>,
    /// The position up to which PostgreSQL was told to forget.
    pub confirmed_flush_lsn: Option<String>,
    /// The server's present end of the log.
    pub current_lsn: String,
    /// Bytes of log between the two.
    pub lag_bytes: u64,
    /// Bytes of log that the slot keeps PostgreSQL from removing.
    pub retained_bytes: u64,
    /// Why PostgreSQL gave the slot up, as PostgreSQL 17 and later say it.
    pub invalidation_reason: Option<String>,
    /// While PostgreSQL makes it: whose transaction that waits for.
    pub waits_for: Option<String>,
    /// Why it was created, the last time.
    pub created_because: Option<String>,
    /// When that was.
    pub created_at: Option<String>,
    /// Rows published from the table since then, because the log could not bring them.
    pub gap_rows: Option<u64>,
    /// When none of them was left; `None` while some are, or no relay has looked.
    pub gap_filled_at: Option<String>,
    /// Bytes of log that may still be written before the slot is lost; `None` if unlimited.
    pub safe_wal_bytes: Option<i64>,
    /// The slot that trails behind it, if there is one, or is to be.
    #[serde(skip_deserializing)]
    pub rewind: Option<RewindReport>,
}

/// The rewind slot.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RewindReport {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub exists: bool,
    /// Whether it is to be: `rewind.retain` is not off.
    pub is_wanted: bool,
    /// `reserved`, `extended`, `unreserved`, or `lost`.
    pub wal_status: Option<String>,
    /// It brings what committed there or later.
    pub from_lsn: Option<String>,
    /// What committed then or later is in it, as far as a time is known.
    pub from: Option<Timestamp>,
    /// How long that is ago.
    pub from_seconds: Option<f64>,
    /// Bytes of log that it keeps PostgreSQL from removing.
    pub retained_bytes: u64,
    /// How many of them the relay's own slot does not keep.
    pub extra_bytes: u64,
    /// What else is known of it.
    #[serde(flatten)]
    pub notes: RewindNotes,
}

/// The outbox in the database.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OutboxReport {
    /// The table, as `schema.name`.
    pub table: String,
    /// Rows not marked as published, counted up to a limit.
    pub unpublished: u64,
    /// Whether the count stopped at its limit.
    pub unpublished_is_capped: bool,
    /// Rows that a route dropped, counted up to a limit; `None` if no route drops events.
    pub dropped: Option<u64>,
    /// Rows without an id, counted up to a limit. They are not among the unpublished.
    pub unidentified: u64,
    /// Rows whose events are published or parked, and which are locked.
    pub owed: u64,
    /// Rows of published events whose marks the database refuses.
    pub marks_refused: u64,
    /// Why it refuses one of them.
    pub mark_refusal: Option<String>,
    /// Age of the oldest of the unpublished rows.
    pub oldest_unpublished_seconds: Option<f64>,
    /// Events in the dead-letter table that are not discarded.
    pub dead_letters: u64,
    /// Age of the oldest of them.
    pub oldest_dead_letter_seconds: Option<f64>,
    /// Why the newest 10,000 are there, the most frequent reasons first.
    pub dead_letter_reasons: Vec<Group>,
    /// Aggregates whose later events wait for one of them.
    pub blocked_aggregates: u64,
    /// Why the latest of them is there.
    pub latest_dead_letter_reason: Option<String>,
}

/// What passes of retention did, in whatever process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RetentionReport {
    /// When the last one came to its end, as a time of RFC 3339.
    pub last_success_at: Option<Timestamp>,
    /// How long that is ago.
    pub last_success_seconds: Option<f64>,
    /// Rows that were published before this may be gone.
    pub deleted_before: Option<Timestamp>,
    /// Rows of the outbox deleted so far.
    pub rows_deleted: u64,
    /// Dead letters deleted so far.
    pub dead_letters_deleted: u64,
    /// Entries of the audit of dead letters deleted so far.
    pub audit_deleted: u64,
    /// Partitions dropped so far.
    pub partitions_dropped: u64,
    /// Why rows are kept that are old enough.
    pub held_by: Option<String>,
    /// Why the latest pass failed, if it did.
    pub failure: Option<String>,
    /// When it did.
    pub failed_at: Option<Timestamp>,
}

/// The partitions of an outbox that has some by day.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PartitionsStatus {
    /// How many there are.
    pub count: u64,
    /// Up to when inserts have a partition, as a time of RFC 3339; `None` if for ever.
    pub until: Option<String>,
    /// How far ahead that is.
    pub horizon_seconds: Option<f64>,
}

/// The stream at the broker.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StreamReport {
    /// Its name.
    pub name: String,
    /// Messages in it.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sequence of the last message.
    pub last_sequence: u64,
    /// Where in the log the last message came from, if a relay wrote it.
    pub last_position: Option<String>,
    /// What it has lost, if it was ever found to lack messages that it had acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostReport>,
    /// How many servers keep it.
    pub replicas: usize,
}

/// Messages that the stream acknowledged and lacked when that was last found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LostReport {
    /// When it was found.
    pub at: Timestamp,
    /// How many sequences were missing.
    pub messages: u64,
    /// How many of them rows named, which are published again.
    pub rows: u64,
    /// Whether they still are.
    #[serde(skip_serializing, default)]
    pub restores: bool,
}
