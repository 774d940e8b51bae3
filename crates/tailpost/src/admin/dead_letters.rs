//! `/api/v1/outbox/dead-letter` and what is done to many of them.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use relay::Config;
use relay::dead_letters::{Action, Author, DeadLetters, Filter, Overview, Progress, Story};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::api::{self, Change, Complaint, Failure, LIMIT, LIMIT_MAX};

/// Operations that are remembered; the oldest that has ended goes first.
const OPERATIONS_MAX: usize = 16;

/// How old a scraped count may be, and how long counting may take.
const COUNT_AGE: Duration = Duration::from_secs(5);
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Desk {
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

impl Desk {
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

    async fn open(&self) -> Result<DeadLetters, Failure> {
        let dead_letters = DeadLetters::connect(&self.config).await?;
        Ok(dead_letters.bounded(api::STATEMENT_MAX).await?)
    }
}

pub(super) fn routes() -> Router<Desk> {
    Router::new()
        .route("/dead-letter", get(list))
        .route("/dead-letter/{id}", get(show).delete(discard))
        .route("/dead-letter/{id}/requeue", post(requeue))
        .route("/aggregates/{aggregate}/requeue", post(requeue_aggregate))
        .route("/dead-letter/operations", post(start))
        .route("/dead-letter/operations/{number}", get(progress).delete(cancel))
}

/// What a listing asks for, in the query.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aggregate: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u32>,
}

/// Who requeues something, and what for.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requeue {
    #[serde(default)]
    pub(crate) by: Option<String>,
    #[serde(default)]
    pub(crate) why: Option<String>,
    /// A JSON text that replaces the payload. As text, so that numbers keep their digits.
    #[serde(default)]
    pub(crate) payload: Option<String>,
}

/// Something to be done to many.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) action: Action,
    pub(crate) filter: Filter,
    /// Only says what would be done.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Events a second.
    #[serde(default)]
    pub(crate) rate: Option<u32>,
    #[serde(default)]
    pub(crate) by: Option<String>,
    #[serde(default)]
    pub(crate) why: Option<String>,
}

/// An operation that was started.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) operation: u64,
}

fn unknown(number: u64) -> Failure {
    let error = format!("operation {number} is not known any more");
    Failure(StatusCode::NOT_FOUND, Complaint { error, hint: None })
}

fn author(change: Change) -> Author {
    Author { name: change.decider(), via: "http".into(), why: change.why }
}

async fn list(
    State(desk): State<Desk>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Overview>, Failure> {
    let ListQuery { aggregate, event_type, reason, since, limit } = query;
    let filter = api::filter(aggregate, event_type, reason, since)?;
    let limit = limit.unwrap_or(LIMIT).min(LIMIT_MAX);
    Ok(Json(desk.open().await?.overview(&filter, limit).await?))
}

#[derive(Deserialize)]
struct ShowQuery {
    #[serde(default)]
    payload: bool,
}

async fn show(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Query(query): Query<ShowQuery>,
) -> Result<Json<Story>, Failure> {
    Ok(Json(desk.open().await?.story(id, query.payload).await?))
}

async fn requeue(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Json(Requeue { by, why, payload }): Json<Requeue>,
) -> Result<StatusCode, Failure> {
    let author = author(Change { by, why });
    desk.open().await?.requeue(id, payload.as_deref(), &author).await?;
    info!(event = %id, by = author.name, "requeued a dead letter");
    Ok(StatusCode::NO_CONTENT)
}

async fn requeue_aggregate(
    State(desk): State<Desk>,
    Path(aggregate): Path<String>,
    Json(change): Json<Change>,
) -> Result<Json<u64>, Failure> {
    let aggregate = aggregate.parse().map_err(Failure::bad)?;
    let author = author(change);
    let requeued = desk.open().await?.requeue_aggregate(&aggregate, &author).await?;
    info!(%aggregate, requeued, by = author.name, "requeued an aggregate's dead letters");
    Ok(Json(requeued))
}

async fn discard(
    State(desk): State<Desk>,
    Path(id): Path<Uuid>,
    Json(change): Json<Change>,
) -> Result<StatusCode, Failure> {
    let author = author(change.reasoned()?);
    desk.open().await?.discard(id, &author).await?;
    info!(event = %id, by = author.name, "discarded a dead letter");
    Ok(StatusCode::NO_CONTENT)
}

async fn start(State(desk): State<Desk>, Json(order): Json<Order>) -> Result<Response, Failure> {
    if order.dry_run {
        let overview = desk.open().await?.overview(&order.filter, 0).await?;
        return Ok(Json(overview).into_response());
    }
    // No request waits for what it does.
    let dead_letters = DeadLetters::connect(&desk.config).await?;
    let Order { action, filter, rate, by, why, .. } = order;
    let change = Change { by, why };
    let author = author(match action {
        Action::Requeue => change,
        Action::Discard => change.reasoned()?,
    });
    let (sender, progress) = watch::channel(Progress::default());
    let stop = CancellationToken::new();
    let operation = desk.remember(Operation { progress, stop: stop.clone() })?;
    info!(operation, ?action, by = author.name, "working through dead letters");
    tokio::spawn(async move {
        let worked =
            dead_letters.work_through(action, &filter, rate, &author, &sender, &stop).await;
        if let Err(error) = worked {
            let error = crate::exit::chain(&error.into());
            warn!(operation, error, "could not go on working through dead letters");
            sender.send_modify(|it| (it.ended, it.last_refusal) = (true, Some(error)));
        }
    });
    Ok((StatusCode::ACCEPTED, Json(Started { operation })).into_response())
}

async fn progress(
    State(desk): State<Desk>,
    Path(number): Path<u64>,
) -> Result<Json<Progress>, Failure> {
    let operations = desk.operations.lock().unwrap_or_else(PoisonError::into_inner);
    let operation = operations.known.get(&number).ok_or(unknown(number))?;
    Ok(Json(operation.progress.borrow().clone()))
}

async fn cancel(State(desk): State<Desk>, Path(number): Path<u64>) -> Result<StatusCode, Failure> {
    let operations = desk.operations.lock().unwrap_or_else(PoisonError::into_inner);
    operations.known.get(&number).ok_or(unknown(number))?.stop.cancel();
    Ok(StatusCode::ACCEPTED)
}

impl Desk {
    fn remember(&self, operation: Operation) -> Result<u64, Failure> {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        if operations.known.len() >= OPERATIONS_MAX {
            let mut known = operations.known.iter();
            let ended = known.find(|(_, it)| it.progress.borrow().ended).map(|it| *it.0);
            let Some(ended) = ended else {
                let error = format!("{OPERATIONS_MAX} operations are under way");
                return Err(Failure(StatusCode::CONFLICT, Complaint { error, hint: None }));
            };
            operations.known.remove(&ended);
        }
        operations.last += 1;
        let number = operations.last;
        operations.known.insert(number, operation);
        Ok(number)
    }
}
