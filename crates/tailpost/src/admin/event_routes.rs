//! `/api/v1/events` of a relay: looking for events, and what became of one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use outbox::Table;
use relay::Config;
use relay::event_search::{EventFilter, EventPlace, FoundEvent, FoundState, find_events};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::api::{Asked, Named, json, limit, time};
use super::cursor;
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use super::schemas::{self, EVENT_STATES, answer, list, named, or_null, text};
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
    state: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

impl EventsQuery {
    fn read(self) -> Result<(EventFilter, Option<EventPlace>, u32), ApiError> {
        let Self { aggregate, event_type, since, until, state, limit: most, cursor } = self;
        let aggregate = aggregate.map(|it| it.parse()).transpose().map_err(ApiError::bad)?;
        let state = state.map(|it| match it.as_str() {
            "pending" => Ok(FoundState::Pending),
            "published" => Ok(FoundState::Published),
            "dead" => Ok(FoundState::Dead),
            "discarded" => Ok(FoundState::Discarded),
            _ => Err(ApiError::bad(format!("`state` is one of {}", EVENT_STATES.join(", ")))),
        });
        let (since, until) = (time("since", since)?, time("until", until)?);
        let filter = EventFilter { aggregate, event_type, since, until, state: state.transpose()? };
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
    let found = answer([("events", list(named("Event"))), ("next", schemas::next())]);
    let find = Operation::get("/api/v1/events", "Finds events, the newest first")
        .query("aggregate", "As TYPE:ID", schemas::aggregate())
        .query("type", "The event's type", text())
        .query("since", "Happened then or later", schemas::time())
        .query("until", "Happened before", schemas::time())
        .query("state", "What became of it", schemas::one_of(&EVENT_STATES))
        .query("limit", "Events of a page", schemas::limit())
        .query("cursor", "`next` of the page before", text())
        .answers(200, "A page", found);
    let story = answer([
        ("id", schemas::uuid()),
        ("row", or_null(serde_json::json!({ "type": "object" }))),
        ("decisions", list(named("AuditEntry"))),
        ("consumers", serde_json::json!({ "type": "object" })),
        ("notes", list(text())),
    ]);
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
    // One more says whether there is another page.
    let mut events = find_events(&config, &filter, after, limit + 1).await?;
    let has_more = events.len() > limit as usize;
    events.truncate(limit as usize);
    let last = events.last().filter(|_| has_more);
    let next = last.map(|it| cursor::encode(&it.place())).transpose()?;
    json(&Events { events, next })
}

async fn show(
    State(config): State<Arc<Config>>,
    Named(id): Named<Uuid>,
) -> Result<Response, ApiError> {
    let table: &Table = &config.table;
    json(&story::of(&config, table, id).await?)
}
