//! A request that a consumer goes back in its stream.

use std::fmt;

use jiff::Timestamp;
use outbox::Event;
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
    /// Which of them.
    #[serde(flatten)]
    pub only: RewindOnly,
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

/// Which processed events are handled again: those that are of all that is named here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindOnly {
    /// The type of their aggregate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_type: Option<String>,
    /// Its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
    /// Their own type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
}

impl RewindOnly {
    /// Whether all events are meant.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this event is meant.
    #[must_use]
    pub fn means(&self, event: &Event) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|it| it == name);
        // Types and ids may have colons: all that are written so are meant.
        let aggregate = match (&self.aggregate_type, &self.aggregate_id) {
            (Some(kind), Some(id)) => {
                format!("{kind}:{id}") == format!("{}:{}", event.aggregate_type, event.aggregate_id)
            }
            (kind, id) => is(kind, &event.aggregate_type) && is(id, &event.aggregate_id),
        };
        aggregate && is(&self.event_type, &event.event_type)
    }
}

impl fmt::Display for RewindOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aggregate = self.aggregate_type.as_ref().zip(self.aggregate_id.as_ref());
        let aggregate = aggregate.map(|(kind, id)| format!("aggregate {kind}:{id}"));
        let event_type = self.event_type.as_ref().map(|it| format!("type {it}"));
        let words: Vec<_> = aggregate.into_iter().chain(event_type).collect();
        f.write_str(&words.join(" and "))
    }
}

impl RewindState {
    /// Whether it was done; not so if it was cancelled or given up.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.outcome.as_deref() == Some("rewound")
    }
}
