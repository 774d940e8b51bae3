//! A request that a consumer goes back in its stream.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How far a rewind is that was requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindState {
    /// Names the request.
    pub id: i64,
    /// The stream.
    pub stream: String,
    #[serde(skip_serializing)]
    /// When the stream was created.
    pub stream_created_at: Option<Timestamp>,
    /// Where the consumer goes back to.
    pub from_sequence: u64,
    /// Up to there processed events are handled again.
    pub until_sequence: u64,
    /// Whether they are at all.
    pub again: bool,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// By the role in the database, and who the client said it was.
    pub requested_by: String,
    /// When a worker began with it.
    pub begun_at: Option<Timestamp>,
    /// Up to there the records of processed events are removed.
    pub removed_to: u64,
    /// How many were.
    pub removed: u64,
    /// When it was done, or given up.
    pub ended_at: Option<Timestamp>,
    /// `rewound`, `cancelled`, or why it was given up.
    pub outcome: Option<String>,
}

impl RewindState {
    /// Whether it was done; not so if it was cancelled or given up.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.outcome.as_deref() == Some("rewound")
    }
}
