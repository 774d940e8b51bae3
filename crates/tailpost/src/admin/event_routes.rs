//! `/api/v1/events` of a relay: looking for events, and what became of one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use operate::event_search::{EventFilter, EventPlace, FoundEvent, FoundState, find_events};
use relay::Config;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::api::{Asked, Named, json, limit, time};
use super::cursor;
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use crate::story;

/// What a search asks for, in the query.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    aggregate: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    since: Option<String>,
    until: Option<String>,
    state: Option<FoundState>,
    limit: Option<u32>,
    cursor: Option<String>,
}

impl EventsQuery {
    fn read(self) -> Result<(EventFilter, Option<EventPlace>, u32), ApiError> {
        let Self { aggregate, event_type, since, until, state, limit: most, cursor } = self;
        let aggregate = aggregate.map(|it| it.parse()).transpose().map_err(ApiError::bad)?;
        let (since, until) = (time("since", since)?, time("until", until)?);
        let filter = EventFilter { aggregate, event_type, since, until, state };
        Ok((filter, cursor::decode(cursor.as_deref())?, limit(most)?))
    }
}

#[derive(Serialize)]
struct Events {
    events: Vec<FoundEvent>,
    next: Option<String>,
}

/// `config` has a pool.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(config: Arc<Config>) -> Api<S> {
    let found = "{schema_version: integer, events: [Event], next: text?}";
    let find = Operation::get("/api/v1/events", "Finds events, the newest first")
        .query("aggregate", "As TYPE:ID", "aggregate")
        .query("type", "The event's type", "text")
        .query("since", "Happened then or later", "time")
        .query("until", "Happened before", "time")
        .query("state", "What became of it", "pending|published|dead|discarded")
        .query("limit", "Events of a page", "limit")
        .query("cursor", "`next` of the page before", "text")
        .answers(200, "A page", found);
    let story = "{schema_version: integer, id: uuid, row: object?, decisions: [AuditEntry],
                  consumers: object, notes: [text]}";
    let explain = Operation::get("/api/v1/events/{id}", "Says what became of an event").answers(
        200,
        "What is known about it, without the payload",
        story,
    );
    Api::new().on(find, search).on(explain, show).with_state(config)
}

async fn search(
    State(config): State<Arc<Config>>,
    Asked(query): Asked<EventsQuery>,
) -> Result<Response, ApiError> {
    let (filter, after, limit) = query.read()?;
    let mut events = find_events(&config, &filter, after, limit + 1).await?;
    let next = cursor::end_page(&mut events, limit, FoundEvent::place)?;
    json(&Events { events, next })
}

async fn show(
    State(config): State<Arc<Config>>,
    Named(id): Named<Uuid>,
) -> Result<Response, ApiError> {
    json(&story::of(&config, &config.table, id).await?)
}
