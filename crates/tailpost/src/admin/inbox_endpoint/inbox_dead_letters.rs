//! `/api/v1/inbox/dead-letter`: what `tailpost inbox dlq` does, for one event at a time.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use inbox::{Connection, DeadLetters, Decision, Grounds, Selection};
use outbox::Table;
use relay::PostgresTarget;
use serde::Deserialize;
use tracing::info;
use uuid::Uuid;

use crate::admin::api::{self, Change, Failure, LIMIT, LIMIT_MAX, json};
use crate::letter::Letter;
use crate::refusal::Refusal;

/// Whose dead letters these are. Each request has a connection of its own.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) postgres: PostgresTarget,
    pub(crate) table: Table,
}

impl Desk {
    async fn open(&self) -> anyhow::Result<DeadLetters> {
        let (client, task) = self.postgres.connect("tailpost inbox api").await?;
        client.batch_execute(&api::bounded()).await?;
        Ok(DeadLetters::new(Connection::with_guard(client, task), &self.table))
    }
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(desk: Desk) -> Router<S> {
    Router::new()
        .route("/api/v1/inbox/dead-letter", get(list))
        .route("/api/v1/inbox/dead-letter/{id}", get(show).delete(discard))
        .route("/api/v1/inbox/dead-letter/{id}/requeue", post(requeue))
        .route("/api/v1/inbox/dead-letter/{id}/reject", post(reject))
        .with_state(desk)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    consumer: Option<String>,
    aggregate: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    reason: Option<String>,
    since: Option<String>,
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

fn named(consumer: Option<String>, id: Uuid) -> Selection {
    Selection { consumer, events: Some(vec![id]), ..Selection::default() }
}

async fn list(
    State(desk): State<Desk>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Failure> {
    let ListQuery { consumer, aggregate, event_type, reason, since, limit } = query;
    let filter = api::filter(aggregate, event_type, reason, since)?;
    let of = Selection { consumer, filter, ..Selection::default() };
    let limit = limit.unwrap_or(LIMIT).min(LIMIT_MAX);
    json(&desk.open().await?.overview(&of, limit).await?)
}

async fn show(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(ShowQuery { consumer, payload }): Query<ShowQuery>,
) -> Result<Response, Failure> {
    let of = named(consumer, id);
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

async fn reject(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(of): Query<ChangeQuery>,
    Json(change): Json<Change>,
) -> Result<StatusCode, Failure> {
    decide(&desk, Decision::Reject, id, of, change.reasoned()?).await
}

async fn discard(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(of): Query<ChangeQuery>,
    Json(change): Json<Change>,
) -> Result<StatusCode, Failure> {
    decide(&desk, Decision::Discard, id, of, change.reasoned()?).await
}

/// Of all consumers that have it, or of the one that is named.
async fn decide(
    desk: &Desk,
    decision: Decision,
    id: Uuid,
    ChangeQuery { consumer }: ChangeQuery,
    change: Change,
) -> Result<StatusCode, Failure> {
    let of = named(consumer, id);
    let grounds = Grounds { by: change.decider(), why: change.why };
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
