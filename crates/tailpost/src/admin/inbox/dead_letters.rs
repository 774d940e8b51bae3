//! `/api/v1/inbox/dead-letter`: what `tailpost inbox dlq` does, for one event at a time.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use inbox::{Connection, DeadLetters, Decision, Grounds, Selection};
use outbox::Table;
use relay::PostgresTarget;
use serde::{Deserialize, Serialize};
use tracing::info;
use uuid::Uuid;

use crate::exit;
use crate::letter::{Letter, Letters};
use crate::output;
use crate::refusal::Refusal;

/// What a list shows unless told otherwise, and at most.
const LIMIT: u32 = 50;
const LIMIT_MAX: u32 = 1_000;

/// Whose dead letters these are. Each request has a connection of its own.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) postgres: PostgresTarget,
    pub(crate) table: Table,
}

impl Desk {
    async fn open(&self) -> anyhow::Result<DeadLetters> {
        let (client, task) = self.postgres.connect("tailpost inbox api").await?;
        Ok(DeadLetters::new(Connection::with_guard(client, task), &self.table))
    }
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(desk: Desk) -> Router<S> {
    Router::new()
        .route("/api/v1/inbox/dead-letter", get(list))
        .route("/api/v1/inbox/dead-letter/{id}", get(show).delete(discard))
        .route("/api/v1/inbox/dead-letter/{id}/requeue", post(requeue))
        .with_state(desk)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    consumer: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowQuery {
    consumer: Option<String>,
    #[serde(default)]
    payload: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeQuery {
    consumer: Option<String>,
}

/// Who changes something, and what for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    by: Option<String>,
    why: Option<String>,
}

/// An error as JSON.
#[derive(Serialize)]
struct Complaint {
    error: String,
    hint: Option<String>,
}

struct Failure(StatusCode, Complaint);

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let status = match exit::number(&error) {
            exit::NOT_FOUND => StatusCode::NOT_FOUND,
            exit::REFUSED => StatusCode::CONFLICT,
            exit::UNREACHABLE => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, Complaint { error: exit::chain(&error), hint: exit::hint(&error) })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

fn json(data: &impl Serialize) -> Result<Response, Failure> {
    let text = output::to_json(data)?;
    Ok(([(header::CONTENT_TYPE, super::super::JSON)], text).into_response())
}

async fn list(
    State(desk): State<Desk>,
    Query(ListQuery { consumer, limit }): Query<ListQuery>,
) -> Result<Response, Failure> {
    let of = Selection { consumer, events: None };
    let found = desk.open().await?.list(&of, limit.unwrap_or(LIMIT).min(LIMIT_MAX)).await?;
    json(&Letters { dead_letters: &found })
}

async fn show(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(ShowQuery { consumer, payload }): Query<ShowQuery>,
) -> Result<Response, Failure> {
    let of = Selection { consumer, events: Some(vec![id]) };
    let found = desk.open().await?.originals(&of, LIMIT_MAX).await?;
    match &found[..] {
        [] => Err(Refusal::no_dead_letter(id).into()),
        [one] => json(&Letter::of(one, payload)),
        several => {
            let consumers: Vec<_> = several.iter().map(|it| it.letter.consumer.clone()).collect();
            Err(Refusal::several_consumers(&consumers).into())
        }
    }
}

async fn requeue(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(of): Query<ChangeQuery>,
    Json(change): Json<Change>,
) -> Result<StatusCode, Failure> {
    decide(&desk, Decision::Requeue, id, of, change).await
}

async fn discard(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(of): Query<ChangeQuery>,
    Json(change): Json<Change>,
) -> Result<StatusCode, Failure> {
    if change.why.as_ref().is_none_or(|why| why.trim().is_empty()) {
        let error = "a dead letter is discarded for a reason".to_owned();
        let hint = Some("say so in \"why\"; it is kept".to_owned());
        return Err(Failure(StatusCode::BAD_REQUEST, Complaint { error, hint }));
    }
    decide(&desk, Decision::Discard, id, of, change).await
}

/// Of all consumers that have it, or of the one that is named.
async fn decide(
    desk: &Desk,
    decision: Decision,
    id: Uuid,
    ChangeQuery { consumer }: ChangeQuery,
    Change { by, why }: Change,
) -> Result<StatusCode, Failure> {
    let of = Selection { consumer, events: Some(vec![id]) };
    let grounds = Grounds { by: by.unwrap_or_else(|| "unnamed".into()), reason: why };
    let letters = desk.open().await?;
    let done = letters.decide(decision, &of, &grounds).await?;
    if done.is_empty() {
        return Err(match &letters.list(&of, 1).await?[..] {
            [] => Refusal::no_dead_letter(id).into(),
            _ => Refusal::not_dead(decision.name()).into(),
        });
    }
    for (consumer, event_id) in done {
        info!(consumer, %event_id, decision = decision.name(), by = grounds.by, "decided over HTTP");
    }
    Ok(StatusCode::NO_CONTENT)
}
