//! Finding events in the outbox and among its dead letters.

use jiff::Timestamp;
use relay::{Config, Error};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::dead_letters::Aggregate;
use crate::sql::Store;

/// What has become of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundState {
    /// Nothing yet, or attempts that failed.
    Pending,
    /// It is in the stream, or a route dropped it.
    Published,
    /// It is a dead letter.
    Dead,
    /// It was one, and is never published.
    Discarded,
}

/// Which events are meant: those of which everything that is said is true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Those of this aggregate.
    pub aggregate: Option<Aggregate>,
    /// Those of aggregates of this id, whatever their type.
    pub aggregate_id: Option<String>,
    /// Those of this type.
    pub event_type: Option<String>,
    /// Those that happened then or later.
    pub since: Option<Timestamp>,
    /// Those that happened before.
    pub until: Option<Timestamp>,
    /// Those of which this has become.
    pub state: Option<FoundState>,
    /// Those that are a dead letter of a consumer beside the outbox.
    pub dead_at_consumer: bool,
}

/// Where an event is in the order of a search: when it happened, and its id. Those that do not say
/// when come last.
pub type EventPlace = (Option<Timestamp>, Uuid);

/// An event. Its payload is left out.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FoundEvent {
    /// Its id.
    pub id: Uuid,
    /// What has become of it.
    pub state: FoundState,
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// Its aggregate.
    pub aggregate_id: String,
    /// Its type.
    pub event_type: String,
    /// When it happened, by its producer.
    pub occurred_at: Option<Timestamp>,
    /// Attempts to publish it that failed.
    pub attempts: u32,
    /// Why the last one failed, or why it is a dead letter.
    pub error: Option<String>,
    /// When it was marked as published.
    pub published_at: Option<Timestamp>,
    /// The stream that has it.
    pub stream: Option<String>,
    /// As which sequence.
    pub stream_seq: Option<i64>,
    /// The consumers beside the outbox of which it is a dead letter.
    pub dead_at: Vec<String>,
}

impl FoundEvent {
    /// Where it is in the order of a search.
    pub fn place(&self) -> EventPlace {
        (self.occurred_at, self.id)
    }
}

/// Events, the newest first, at most `limit`, of those behind `after`.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached, or the outbox is not set up.
pub async fn find_events(
    config: &Config,
    filter: &EventFilter,
    after: Option<EventPlace>,
    limit: u32,
) -> Result<Vec<FoundEvent>, Error> {
    let store = Store::brief(config, "tailpost events").await?;
    store.check_tables().await?;
    store.find_events(filter, after, limit).await
}
