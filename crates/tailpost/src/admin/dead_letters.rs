//! `/api/v1/outbox/dead-letter` and what is done to many of them.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outbox::dead_letters::{Action, BulkRequest, Filter, Progress, Reason};
use relay::Config;
use relay::dead_letters::{DeadLetters, NOT_REJECTED};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::api::{self, ApiError, Asked, Body, Change, ListQuery, ShowQuery, json};
use crate::bulk;

/// Operations that are remembered; the oldest that has ended goes first.
const OPERATIONS_MAX: usize = 16;

/// How old a scraped count may be, and how long counting may take.
const COUNT_AGE: Duration = Duration::from_secs(5);
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// What the handlers share.
#[derive(Clone)]
pub(super) struct AppState {
    config: Arc<Config>,
    operations: Arc<Mutex<Operations>>,
    counted: Arc<tokio::sync::Mutex<Option<Counted>>>,
}

/// When it was tried to count, and the number and the age of the oldest, if it could be.
type Counted = (Instant, Option<(u64, f64)>);

#[derive(Default)]
struct Operations {
    last: u64,
    known: BTreeMap<u64, Operation>,
}

struct Operation {
    progress: watch::Receiver<Progress>,
    stop: CancellationToken,
}

impl AppState {
    pub(super) fn new(config: Config) -> Self {
        Self { config: Arc::new(config), operations: Arc::default(), counted: Arc::default() }
    }

    /// How many dead letters there are, and the age of the oldest in seconds; at most so old as
    /// [`COUNT_AGE`]. Nothing if the database does not say in time: a scrape must not wait for it.
    pub(super) async fn count(&self) -> Option<(u64, f64)> {
        let mut counted = self.counted.lock().await;
        if counted.is_none_or(|(at, _)| at.elapsed() > COUNT_AGE) {
            let count = async {
                let dead_letters = self.open().await.ok()?;
                dead_letters.overview(&Filter::default(), 0).await.ok()
            };
            let overview = tokio::time::timeout(COUNT_TIMEOUT, count).await.ok().flatten();
            let count = overview.map(|it| (it.total, it.oldest_seconds.unwrap_or(0.0)));
            *counted = Some((Instant::now(), count));
        }
        counted.and_then(|(_, count)| count)
    }

    async fn open(&self) -> Result<DeadLetters, ApiError> {
        let dead_letters = DeadLetters::connect(&self.config).await?;
        Ok(dead_letters.bounded(api::STATEMENT_MAX).await?)
    }
}

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/dead-letter", get(list))
        .route("/dead-letter/{id}", get(show).delete(discard))
        .route("/dead-letter/{id}/requeue", post(requeue))
        .route("/aggregates/{aggregate}/requeue", post(requeue_aggregate))
        .route("/dead-letter/operations", post(start))
        .route("/dead-letter/operations/{number}", get(progress).delete(cancel))
}

/// Who requeues something, and what for.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requeue {
    #[serde(default)]
    pub(crate) by: Option<String>,
    #[serde(default)]
    pub(crate) why: Option<Reason>,
    /// A JSON text that replaces the payload. As text, so that numbers keep their digits.
    #[serde(default)]
    pub(crate) payload: Option<String>,
}

/// An operation that was started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) operation: u64,
}

fn unknown(number: u64) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("operation {number} is not known any more"))
}

/// What the inbox's requests may name.
fn no_consumer(consumer: Option<&String>) -> Result<(), ApiError> {
    consumer.map_or(Ok(()), |_| Err(ApiError::bad("events of the outbox have no consumer")))
}

async fn list(
    State(state): State<AppState>,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, ApiError> {
    no_consumer(query.consumer.as_ref())?;
    let (filter, limit) = query.read()?;
    json(&state.open().await?.overview(&filter, limit).await?)
}

async fn show(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Asked(query): Asked<ShowQuery>,
) -> Result<Response, ApiError> {
    no_consumer(query.consumer.as_ref())?;
    json(&state.open().await?.detail(id, query.payload).await?)
}

async fn requeue(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(Requeue { by, why, payload }): Body<Requeue>,
) -> Result<StatusCode, ApiError> {
    let actor = Change { by, why }.actor(Action::Requeue)?;
    state.open().await?.requeue(id, payload.as_deref(), &actor).await?;
    info!(event = %id, by = actor.name, "requeued a dead letter");
    Ok(StatusCode::NO_CONTENT)
}

async fn requeue_aggregate(
    State(state): State<AppState>,
    Path(aggregate): Path<String>,
    Body(change): Body<Change>,
) -> Result<Json<u64>, ApiError> {
    let aggregate = aggregate.parse().map_err(ApiError::bad)?;
    let actor = change.actor(Action::Requeue)?;
    let requeued = state.open().await?.requeue_aggregate(&aggregate, &actor).await?;
    info!(%aggregate, requeued, by = actor.name, "requeued an aggregate's dead letters");
    Ok(Json(requeued))
}

async fn discard(
    State(state): State<AppState>,
    Path(id): Path<Uuid>,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    let actor = change.actor(Action::Discard)?;
    state.open().await?.discard(id, &actor).await?;
    info!(event = %id, by = actor.name, "discarded a dead letter");
    Ok(StatusCode::NO_CONTENT)
}

async fn start(
    State(state): State<AppState>,
    Body(mut request): Body<BulkRequest>,
) -> Result<Response, ApiError> {
    if request.action == Action::Reject {
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, NOT_REJECTED));
    }
    if request.dry_run {
        return json(&state.open().await?.overview(&request.filter, 0).await?);
    }
    let change = Change { by: request.by.take(), why: request.why.take() };
    let actor = change.actor(request.action)?;
    // No request waits for what it does.
    let dead_letters = DeadLetters::connect(&state.config).await?;
    let (sender, progress) = watch::channel(Progress::default());
    let stop = CancellationToken::new();
    let operation = state.remember(Operation { progress, stop: stop.clone() })?;
    info!(operation, action = ?request.action, by = actor.name, "working through dead letters");
    tokio::spawn(async move {
        let worked = bulk::work_through(&dead_letters, &request, &actor, &sender, &stop).await;
        if let Err(error) = worked {
            let error = crate::exit::chain(&error);
            warn!(operation, error, "could not go on working through dead letters");
            sender.send_modify(|it| (it.ended, it.last_refusal) = (true, Some(error)));
        }
    });
    Ok((StatusCode::ACCEPTED, Json(Started { operation })).into_response())
}

async fn progress(
    State(state): State<AppState>,
    Path(number): Path<u64>,
) -> Result<Json<Progress>, ApiError> {
    let operations = state.operations.lock().unwrap_or_else(PoisonError::into_inner);
    let operation = operations.known.get(&number).ok_or(unknown(number))?;
    Ok(Json(operation.progress.borrow().clone()))
}

async fn cancel(
    State(state): State<AppState>,
    Path(number): Path<u64>,
) -> Result<StatusCode, ApiError> {
    let operations = state.operations.lock().unwrap_or_else(PoisonError::into_inner);
    operations.known.get(&number).ok_or(unknown(number))?.stop.cancel();
    Ok(StatusCode::ACCEPTED)
}

impl AppState {
    fn remember(&self, operation: Operation) -> Result<u64, ApiError> {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        if operations.known.len() >= OPERATIONS_MAX {
            let mut known = operations.known.iter();
            let ended = known.find(|(_, it)| it.progress.borrow().ended).map(|it| *it.0);
            let Some(ended) = ended else {
                let detail = format!("{OPERATIONS_MAX} operations are under way");
                return Err(ApiError::new(StatusCode::CONFLICT, detail));
            };
            operations.known.remove(&ended);
        }
        operations.last += 1;
        let number = operations.last;
        operations.known.insert(number, operation);
        Ok(number)
    }
}
