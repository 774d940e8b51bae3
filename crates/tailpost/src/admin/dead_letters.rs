//! `/api/v1/outbox/dead-letter` and what is done to many of them.
//!
//! Changes need a JSON body, which a page of another origin cannot send without asking first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use operate::dead_letters::outbox_letters::{DeadLetter, DeadLetters, NOT_REJECTED};
use operate::dead_letters::{Action, BulkRequest, DeadLetterDetail, Filter, Overview, Reason};
use relay::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::info;
use uuid::Uuid;

use super::access::Caller;
use super::api::{
    Asked, Body, Change, FinalChange, ListQuery, Named, OVERVIEW, Seen, ShowQuery, changed, json,
    tagged,
};
use super::cursor;
use super::openapi::{Api, Operation};
use super::operations::{self, Operations};
use super::problem::ApiError;
use crate::letters;
use crate::output::Versioned;

/// Where its operations are.
const OPERATIONS: operations::Paths =
    ["/api/v1/outbox/dead-letter/operations", "/api/v1/outbox/dead-letter/operations/{number}"];

/// How old a scraped count may be, and how long counting may take.
const COUNT_AGE: Duration = Duration::from_secs(5);
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// What the handlers share.
#[derive(Clone)]
pub(super) struct AppState {
    /// With a pool for requests.
    config: Arc<Config>,
    /// With a pool for operations, which go on after their request.
    background: Arc<Config>,
    operations: Operations,
    counted: Arc<tokio::sync::Mutex<Option<Counted>>>,
}

/// When it was tried to count, and the number and the age of the oldest, if it could be.
type Counted = (Instant, Option<(u64, f64)>);

impl AppState {
    /// Each with a pool.
    pub(super) fn new(config: Arc<Config>, background: Arc<Config>) -> Self {
        Self { config, background, operations: Operations::new(), counted: Arc::default() }
    }

    /// How many dead letters there are, and the age of the oldest in seconds; at most so old as
    /// [`COUNT_AGE`]. Nothing if the database does not say in time: a scrape must not wait for it.
    pub(super) async fn count(&self) -> Option<(u64, f64)> {
        let mut counted = self.counted.lock().await;
        if counted.is_none_or(|(at, _)| at.elapsed() > COUNT_AGE) {
            // Who scrapes may give up before that, and again.
            *counted = Some((Instant::now(), None));
            let count = async {
                let dead_letters = self.open().await.ok()?;
                dead_letters.overview(&Filter::default(), None, 0).await.ok()
            };
            let overview = tokio::time::timeout(COUNT_TIMEOUT, count).await.ok().flatten();
            let count = overview.map(|it| (it.total, it.oldest_seconds.unwrap_or(0.0)));
            *counted = Some((Instant::now(), count));
        }
        counted.and_then(|(_, count)| count)
    }

    async fn open(&self) -> Result<DeadLetters, ApiError> {
        Ok(DeadLetters::connect(&self.config).await?)
    }
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(state: AppState) -> Api<S> {
    let list_all =
        Operation::get("/api/v1/outbox/dead-letter", "Lists what could not be published")
            .query::<ListQuery>()
            .without("consumer")
            .answers::<Versioned<Overview<DeadLetter>>>(200, OVERVIEW);
    let show_one = Operation::get("/api/v1/outbox/dead-letter/{id}", "Shows a dead letter")
        .query::<ShowQuery>()
        .without("consumer")
        .answers::<Versioned<DeadLetterDetail<DeadLetter>>>(200, "What is known about it");
    let discard_one =
        Operation::delete("/api/v1/outbox/dead-letter/{id}", "Discards a dead letter")
            .if_match()
            .body::<FinalChange>()
            .answers_nothing(204, "It is never published");
    let requeue_one =
        Operation::post("/api/v1/outbox/dead-letter/{id}/requeue", "Publishes it after all")
            .if_match()
            .body::<Requeue>()
            .answers_nothing(204, "A relay publishes it");
    let path = "/api/v1/outbox/aggregates/{aggregate}/requeue";
    let requeue_all = Operation::post(path, "Publishes an aggregate's dead letters after all")
        .body::<Change>()
        .answers::<u64>(200, "How many");
    let operations = operations::routes(OPERATIONS, state.operations.clone());
    Api::new()
        .on(list_all, list)
        .on(show_one, show)
        .on(discard_one, discard)
        .on(requeue_one, requeue)
        .on(requeue_all, requeue_aggregate)
        .on(operations::beginning::<DeadLetter>(OPERATIONS), start)
        .with_state(state)
        .merge(operations)
}

/// Who requeues something, and what for.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
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

/// What the inbox's requests may name.
fn no_consumer(consumer: Option<&String>) -> Result<(), ApiError> {
    consumer.map_or(Ok(()), |_| Err(ApiError::bad("events of the outbox have no consumer")))
}

async fn list(
    State(state): State<AppState>,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, ApiError> {
    no_consumer(query.consumer.as_ref())?;
    let after = cursor::decode(query.cursor.as_deref())?;
    let (filter, limit) = query.read()?;
    let mut page = state.open().await?.overview(&filter, after, limit + 1).await?;
    page.next = cursor::end_page(&mut page.dead_letters, limit, DeadLetter::place)?;
    json(&page)
}

async fn show(
    State(state): State<AppState>,
    caller: Caller,
    Named(id): Named<Uuid>,
    Asked(query): Asked<ShowQuery>,
) -> Result<Response, ApiError> {
    no_consumer(query.consumer.as_ref())?;
    let (reader, letters) = (query.reader(&caller)?, state.open().await?);
    if let Some(reader) = &reader {
        letters.note_reading(id, reader).await?;
    }
    let detail = letters.detail(id, reader.is_some()).await?;
    tagged(&detail, detail.etag.as_deref())
}

async fn requeue(
    State(state): State<AppState>,
    caller: Caller,
    Named(id): Named<Uuid>,
    seen: Seen,
    Body(Requeue { by, why, payload }): Body<Requeue>,
) -> Result<StatusCode, ApiError> {
    let actor = Change { by, why }.actor(Action::Requeue, &caller)?;
    let letters = state.open().await?;
    let done = letters.requeue(id, payload.as_deref(), seen.0, &actor).await;
    as_seen(&letters, id, &seen, done).await?;
    info!(event_id = %id, by = actor.name, "requeued a dead letter");
    Ok(StatusCode::NO_CONTENT)
}

async fn requeue_aggregate(
    State(state): State<AppState>,
    caller: Caller,
    Named(aggregate): Named<String>,
    Body(change): Body<Change>,
) -> Result<Json<u64>, ApiError> {
    let aggregate = aggregate.parse().map_err(ApiError::bad)?;
    let actor = change.actor(Action::Requeue, &caller)?;
    let requeued = state.open().await?.requeue_aggregate(&aggregate, &actor).await?;
    info!(%aggregate, requeued, by = actor.name, "requeued an aggregate's dead letters");
    Ok(Json(requeued))
}

async fn discard(
    State(state): State<AppState>,
    caller: Caller,
    Named(id): Named<Uuid>,
    seen: Seen,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    let actor = change.actor(Action::Discard, &caller)?;
    let letters = state.open().await?;
    let done = letters.discard(id, seen.0, &actor).await;
    as_seen(&letters, id, &seen, done).await?;
    info!(event_id = %id, by = actor.name, "discarded a dead letter");
    Ok(StatusCode::NO_CONTENT)
}

/// Who saw another state is told what changed.
async fn as_seen(
    letters: &DeadLetters,
    id: Uuid,
    seen: &Seen,
    done: Result<(), relay::Error>,
) -> Result<(), ApiError> {
    match done {
        Err(relay::Error::NoDeadLetter { .. }) if seen.0.is_some() => {
            let now = letters.detail(id, false).await?;
            Err(changed(&now.history, &now.state))
        }
        done => Ok(done?),
    }
}

async fn start(
    State(state): State<AppState>,
    caller: Caller,
    Body(mut request): Body<BulkRequest>,
) -> Result<Response, ApiError> {
    if request.action == Action::Reject {
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, NOT_REJECTED));
    }
    no_consumer(request.consumer.as_ref())?;
    let actor = operations::check(&mut request, &caller)?;
    // The request fails if the database is unreachable. It does not wait for the rest.
    let dead_letters = state.open().await?;
    if request.dry_run {
        return json(&dead_letters.overview(&request.filter, None, 0).await?);
    }
    drop(dead_letters);
    let (background, asked) = (state.background, request.clone());
    state.operations.begin(request, move |progress, stop| {
        Box::pin(async move {
            let dead_letters = DeadLetters::connect(&background).await?;
            letters::work_through(&dead_letters, &asked, &actor, &progress, &stop).await
        })
    })
}
