//! What the API answers about events: which there are, and what became of one. See `answers`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::answers::{Decision, FailedAttempt, Letter, Replay};

/// `/api/v1/events`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Events {
    pub(crate) events: Vec<FoundEvent>,
    pub(crate) next: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct FoundEvent {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) occurred_at: Option<Timestamp>,
    pub(crate) error: Option<String>,
    pub(crate) stream: Option<String>,
    pub(crate) stream_seq: Option<u64>,
    pub(crate) dead_at: Vec<String>,
}

/// `/api/v1/events/{id}`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Story {
    pub(crate) id: String,
    pub(crate) row: Option<RowStory>,
    pub(crate) dead_letter: Option<Letter>,
    pub(crate) decisions: Vec<Decision>,
    pub(crate) message: Option<MessageStory>,
    pub(crate) replays: Vec<Replay>,
    pub(crate) notes: Vec<String>,
    pub(crate) consumers: BTreeMap<String, ConsumerStory>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RowStory {
    pub(crate) status: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: String,
    /// As PostgreSQL prints it.
    pub(crate) occurred_at: Option<String>,
    pub(crate) transaction: Option<String>,
    pub(crate) seq: Option<i64>,
    pub(crate) attempts: u64,
    pub(crate) error: Option<String>,
    pub(crate) next_attempt_at: Option<String>,
    pub(crate) published_at: Option<String>,
    pub(crate) commit_lsn: Option<String>,
    pub(crate) stream: Option<String>,
    pub(crate) stream_seq: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct MessageStory {
    pub(crate) stream: String,
    pub(crate) seq: u64,
    pub(crate) subject: String,
    pub(crate) stored_at: String,
    pub(crate) position: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ConsumerStory {
    pub(crate) record: Option<EventRecord>,
    /// The newest, in order.
    pub(crate) failed_attempts: Vec<FailedAttempt>,
    pub(crate) dead_letter: Option<Letter>,
    pub(crate) decisions: Vec<Decision>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct EventRecord {
    pub(crate) status: String,
    pub(crate) attempts: u64,
    pub(crate) received_at: Option<Timestamp>,
    pub(crate) claimed_at: Option<Timestamp>,
    pub(crate) processed_at: Option<Timestamp>,
    pub(crate) next_attempt_at: Option<Timestamp>,
    pub(crate) worker: Option<String>,
    pub(crate) outcome: Option<String>,
    pub(crate) last_error: Option<String>,
}

/// What became of an event that was to count as processed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Marking {
    pub(crate) before: ConsumerStory,
}
