//! `…/dead-letter/operations`: work on many dead letters, which goes on after its request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use operate::dead_letters::{Actor, BulkRequest, Overview, Progress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::access::Caller;
use super::api::{Change, Named, json};
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use crate::output::Versioned;

/// Operations that are remembered; the oldest that has ended goes first.
const OPERATIONS_MAX: usize = 16;

/// Of them, those that work at a time. Further ones wait for their turn.
pub(super) const OPERATIONS_AT_ONCE: usize = 2;

/// The operations on one queue of dead letters.
#[derive(Clone)]
pub(crate) struct Operations {
    known: Arc<Mutex<Known>>,
    turns: Arc<Semaphore>,
}

#[derive(Default)]
struct Known {
    last: u64,
    all: BTreeMap<u64, Work>,
}

struct Work {
    request: BulkRequest,
    began_at: Timestamp,
    ended_at: Arc<OnceLock<Timestamp>>,
    progress: watch::Receiver<Progress>,
    stop: CancellationToken,
}

/// An operation that was started.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Started {
    pub(crate) operation: u64,
}

/// What an operation does, and how far it is.
#[derive(Serialize, JsonSchema)]
struct Shown {
    operation: u64,
    began_at: Timestamp,
    ended_at: Option<Timestamp>,
    /// As it was asked for, and by whom.
    request: BulkRequest,
    progress: Progress,
}

#[derive(Serialize, JsonSchema)]
struct AllShown {
    /// The newest first. Those of before the process's start are forgotten.
    operations: Vec<Shown>,
}

/// Where the operations of a queue are: all, and one of them.
pub(super) type Paths = [&'static str; 2];

/// What begins one, as the document has it.
pub(super) fn beginning<L: JsonSchema>([all, _]: Paths) -> Operation {
    Operation::post(all, "Works on many at once")
        .body::<BulkRequest>()
        .answers::<Versioned<Overview<L>>>(200, "What would be done: `dry_run`")
        .answers::<Started>(202, "It has begun")
}

/// What lists, shows and cancels them.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(
    [all, one]: Paths,
    operations: Operations,
) -> Api<S> {
    let list_all = Operation::get(all, "Lists work on many")
        .answers::<Versioned<AllShown>>(200, "What is under way, and what has ended");
    let progress_of = Operation::get(one, "Says how far an operation is")
        .answers::<Progress>(200, "How far it is");
    let cancel_one = Operation::delete(one, "Ends an operation")
        .body::<serde_json::Value>()
        .answers_nothing(202, "It ends after what it is at");
    Api::new()
        .on(list_all, list)
        .on(progress_of, progress)
        .on(cancel_one, cancel)
        .with_state(operations)
}

/// Who wants it. A request that cannot be carried out is refused.
pub(super) fn check(request: &mut BulkRequest, caller: &Caller) -> Result<Actor, ApiError> {
    for (name, value) in [("rate", request.rate), ("first", request.first)] {
        if value == Some(0) {
            let detail = format!("`{name}` is at least 1");
            return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        }
    }
    let change = Change { by: request.by.take(), why: request.why.clone() };
    let actor = change.actor(request.action, caller)?;
    request.by = Some(actor.name.clone());
    Ok(actor)
}

impl Operations {
    pub(super) fn new() -> Self {
        Self { known: Arc::default(), turns: Arc::new(Semaphore::new(OPERATIONS_AT_ONCE)) }
    }

    /// Begins what `work` does, and answers at once.
    pub(super) fn begin(
        &self,
        request: BulkRequest,
        work: impl FnOnce(
            watch::Sender<Progress>,
            CancellationToken,
        ) -> BoxFuture<'static, anyhow::Result<()>>
        + Send
        + 'static,
    ) -> Result<Response, ApiError> {
        let (sender, progress) = watch::channel(Progress::default());
        let (stop, turns) = (CancellationToken::new(), Arc::clone(&self.turns));
        let (action, by) = (request.action, request.by.clone().unwrap_or_default());
        let began_at = Timestamp::now();
        let ended = Arc::<OnceLock<_>>::default();
        let (ended_at, ends) = (Arc::clone(&ended), stop.clone());
        let work_of = Work { request, began_at, ended_at, progress, stop: ends };
        let operation = self.remember(work_of)?;
        info!(operation, ?action, by, "working through dead letters");
        tokio::spawn(async move {
            let told = sender.clone();
            let worked = async {
                let _turn = turns.acquire().await?;
                work(sender, stop).await
            };
            let worked = worked.await;
            ended.get_or_init(Timestamp::now);
            if let Err(error) = worked {
                let error = crate::errors::chain(&error);
                warn!(operation, error, "could not go on working through dead letters");
                told.send_modify(|it| (it.ended, it.last_refusal) = (true, Some(error)));
            }
        });
        Ok((StatusCode::ACCEPTED, Json(Started { operation })).into_response())
    }

    fn remember(&self, work: Work) -> Result<u64, ApiError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.all.len() >= OPERATIONS_MAX {
            let ended = known.all.iter().find(|(_, it)| it.progress.borrow().ended);
            let Some(ended) = ended.map(|(number, _)| *number) else {
                let detail = format!("{OPERATIONS_MAX} operations are under way");
                return Err(ApiError::new(StatusCode::CONFLICT, detail));
            };
            known.all.remove(&ended);
        }
        known.last += 1;
        let number = known.last;
        known.all.insert(number, work);
        Ok(number)
    }
}

fn unknown(number: u64) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("operation {number} is not known any more"))
}

async fn list(State(operations): State<Operations>) -> Result<Response, ApiError> {
    let known = operations.known.lock().unwrap_or_else(PoisonError::into_inner);
    let shown = known.all.iter().rev().map(|(number, it)| Shown {
        operation: *number,
        began_at: it.began_at,
        ended_at: it.ended_at.get().copied(),
        request: it.request.clone(),
        progress: it.progress.borrow().clone(),
    });
    json(&AllShown { operations: shown.collect() })
}

async fn progress(
    State(operations): State<Operations>,
    Named(number): Named<u64>,
) -> Result<Json<Progress>, ApiError> {
    let known = operations.known.lock().unwrap_or_else(PoisonError::into_inner);
    let work = known.all.get(&number).ok_or(unknown(number))?;
    Ok(Json(work.progress.borrow().clone()))
}

async fn cancel(
    State(operations): State<Operations>,
    Named(number): Named<u64>,
) -> Result<StatusCode, ApiError> {
    let known = operations.known.lock().unwrap_or_else(PoisonError::into_inner);
    known.all.get(&number).ok_or(unknown(number))?.stop.cancel();
    Ok(StatusCode::ACCEPTED)
}
