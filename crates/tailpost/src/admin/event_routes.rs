//! `/api/v1/events` of a relay: looking for events, and what became of one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use operate::dead_letters::Aggregate;
use operate::event_search::{EventFilter, FoundEvent, FoundState, find_events};
use relay::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use servers::describe;
use uuid::Uuid;

use super::api::{AGGREGATE, Asked, LIMIT, LIMIT_MAX, Named, json, limit, parsed};
use super::cursor;
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use crate::output::Versioned;
use crate::story::{self, Story};

/// What a search asks for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// As TYPE:ID
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>", extend("pattern" = AGGREGATE, "examples" = ["order:o-17"]))]
    aggregate: Option<Aggregate>,
    /// Of an aggregate of any type
    aggregate_id: Option<String>,
    /// The event's type
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Happened then or later
    since: Option<Timestamp>,
    /// Happened before
    until: Option<Timestamp>,
    /// What became of it
    state: Option<FoundState>,
    /// Whether only dead letters of consumers beside the outbox are meant
    #[serde(default)]
    dead_at_consumer: bool,
    /// Events of a page
    #[schemars(range(max = LIMIT_MAX), extend("default" = LIMIT))]
    limit: Option<u32>,
    /// `next` of the page before
    cursor: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Events {
    events: Vec<FoundEvent>,
    next: Option<String>,
}

/// `config` has a pool.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(config: Arc<Config>) -> Api<S> {
    let find = Operation::get("/api/v1/events", "Finds events, the newest first")
        .query::<EventsQuery>()
        .answers::<Versioned<Events>>(200, "A page");
    let explain = Operation::get("/api/v1/events/{id}", "Says what became of an event")
        .answers::<Versioned<Story>>(200, "What is known about it, without the payload");
    Api::new().on(find, search).on(explain, show).with_state(config)
}

async fn search(
    State(config): State<Arc<Config>>,
    Asked(query): Asked<EventsQuery>,
) -> Result<Response, ApiError> {
    let EventsQuery { aggregate, aggregate_id, event_type, .. } = query;
    let EventsQuery { since, until, state, dead_at_consumer, limit: most, cursor, .. } = query;
    let filter =
        EventFilter { aggregate, aggregate_id, event_type, since, until, state, dead_at_consumer };
    let (after, limit) = (cursor::decode(cursor.as_deref())?, limit(most)?);
    let mut events = find_events(&config, &filter, after, limit + 1).await?;
    // The list is of the outbox. Who has no inbox here needs no tables for one.
    if let Err(error) = story::add_consumers(&config, &mut events).await
        && !matches!(error, inbox::Error::Tables { .. })
    {
        tracing::warn!(error = describe(&error), "could not look for dead letters of consumers");
    }
    let next = cursor::end_page(&mut events, limit, FoundEvent::place)?;
    json(&Events { events, next })
}

async fn show(
    State(config): State<Arc<Config>>,
    Named(id): Named<Uuid>,
) -> Result<Response, ApiError> {
    json(&story::of(&config, &config.table, id).await?)
}
