//! `/api/v1/inbox/dead-letter`: what `tailpost inbox dlq` does, for one event at a time.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use inbox::{Connection, DeadLetters};
use outbox::Table;
use outbox::dead_letters::Action;
use relay::PostgresTarget;
use tracing::info;
use uuid::Uuid;

use crate::admin::api::{
    self, ApiError, Asked, Body, Change, LIMIT_MAX, ListQuery, ShowQuery, json,
};
use crate::refusal::{self, Refusal};

/// Whose dead letters these are. Each request has a connection of its own.
#[derive(Clone)]
pub(crate) struct AppState {
    pub(crate) postgres: PostgresTarget,
    pub(crate) table: Table,
}

impl AppState {
    async fn open(&self, consumer: Option<String>) -> anyhow::Result<DeadLetters> {
        let (client, task) = self.postgres.connect("tailpost inbox api").await?;
        client.batch_execute(&api::bounded()).await?;
        let connection = Connection::with_guard(client, task);
        Ok(DeadLetters::new(connection, &self.table).of_consumer(consumer))
    }
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(state: AppState) -> Router<S> {
    Router::new()
        .route("/api/v1/inbox/dead-letter", get(list))
        .route("/api/v1/inbox/dead-letter/{id}", get(show).delete(discard))
        .route("/api/v1/inbox/dead-letter/{id}/requeue", post(requeue))
        .route("/api/v1/inbox/dead-letter/{id}/reject", post(reject))
        .with_state(state)
}

async fn list(
    State(state): State<AppState>,
    Asked(mut query): Asked<ListQuery>,
) -> Result<Response, ApiError> {
    let consumer = query.consumer.take();
    let (filter, limit) = query.read()?;
    json(&state.open(consumer).await?.overview(&filter.into(), limit).await?)
}

async fn show(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Asked(query): Asked<ShowQuery>,
) -> Result<Response, ApiError> {
    let letters = state.open(query.consumer).await?;
    json(&refusal::only(id, letters.details(&[id][..].into(), query.payload, LIMIT_MAX).await?)?)
}

async fn requeue(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Asked(of): Asked<ShowQuery>,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    decide(&state, Action::Requeue, id, of, change).await
}

async fn reject(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Asked(of): Asked<ShowQuery>,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    decide(&state, Action::Reject, id, of, change).await
}

async fn discard(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Asked(of): Asked<ShowQuery>,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    decide(&state, Action::Discard, id, of, change).await
}

/// Of all consumers that have it, or of the one that is named.
async fn decide(
    state: &AppState,
    action: Action,
    id: Uuid,
    ShowQuery { consumer, .. }: ShowQuery,
    change: Change,
) -> Result<StatusCode, ApiError> {
    let actor = change.actor(action)?;
    let letters = state.open(consumer).await?;
    let of = [id][..].into();
    let done = letters.decide(action, &of, &actor).await?;
    if done.is_empty() {
        return Err(match &letters.list(&of, 1).await?[..] {
            [] => Refusal::no_dead_letter(id).into(),
            _ => Refusal::not_dead(action.name()).into(),
        });
    }
    for (consumer, event_id) in done {
        info!(consumer, %event_id, decision = action.name(), by = actor.name, "decided over HTTP");
    }
    Ok(StatusCode::NO_CONTENT)
}
