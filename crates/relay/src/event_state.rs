//! What those are told who wait until an event is published.

use serde::{Deserialize, Serialize};

/// What has become of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EventState {
    /// Neither the outbox nor the dead letters have it: it is not committed, or was deleted.
    Unknown,
    /// It is in the outbox, and the stream does not have it.
    Pending {
        /// How often it was tried to publish it in vain.
        attempts: u32,
        /// Why the last attempt failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The stream has it.
    Published {
        /// The stream, if the row says so.
        stream: Option<String>,
        /// Its sequence there, if the row says so.
        seq: Option<u64>,
    },
    /// A route drops it: it will never be in the stream.
    Dropped,
    /// It is a dead letter.
    Dead {
        /// Why.
        reason: String,
    },
    /// It was a dead letter, and somebody decided that it is never published.
    Discarded {
        /// Why it was a dead letter.
        reason: String,
    },
}
