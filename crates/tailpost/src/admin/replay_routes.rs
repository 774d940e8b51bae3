//! `/api/v1/replays`: publishing events again.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use operate::dead_letters::{Aggregate, Reason};
use operate::replays::{
    ReplayDecision, ReplayEntry, ReplayPlan, ReplayRequest, ReplaySelection, Unreplayed,
    ask_replay, decide_replay, plan_replay, replay,
};
use relay::{Config, Glob, Lsn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{info, warn};
use uuid::Uuid;

use super::access::Caller;
use super::api::{AGGREGATE, Asked, Body, Change, LIMIT, LIMIT_MAX, Named, json, limit, parsed};
use super::cursor;
use super::openapi::{Api, Operation};
use super::problem::{ANSWER_MAX, ApiError, WAIT_MAX};
use crate::cli::SourceArg;
use crate::output::Versioned;

/// Events listed that could not be published.
const FAILURES: u32 = 100;
/// Events that a request may name.
const EVENTS_MAX: usize = 10_000;

const PLAN_LATE: &str = "counting the rows of the table takes longer: use `tailpost replay`, which \
                         waits for as long as it takes";

#[derive(Clone)]
pub(super) struct ReplayState {
    /// With a pool for requests.
    pub(super) config: Arc<Config>,
    /// With a pool for work that goes on after its request.
    pub(super) background: Arc<Config>,
    /// One at a time is asked for: that takes two connections.
    pub(super) turn: Arc<Semaphore>,
}

/// What a list asks for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReplaysQuery {
    /// Replays of a page
    #[schemars(range(max = LIMIT_MAX), extend("default" = LIMIT))]
    limit: Option<u32>,
    /// `next` of the page before
    cursor: Option<String>,
}

/// What is to be published again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>")]
    from_lsn: Option<Lsn>,
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>")]
    to_lsn: Option<Lsn>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    #[serde(default)]
    events: Vec<Uuid>,
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>", extend("pattern" = AGGREGATE))]
    aggregate: Option<Aggregate>,
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>")]
    event_type: Option<Glob>,
    /// Everything that was ever published: so that nobody says it by saying nothing.
    #[serde(default)]
    all: bool,
    source: Option<SourceArg>,
    to_subject_prefix: Option<String>,
    #[schemars(range(min = 1, max = 1_000_000))]
    per_second: Option<u32>,
    #[serde(default)]
    dry_run: bool,
    by: Option<String>,
    why: Option<Reason>,
}

#[derive(Serialize, JsonSchema)]
struct Replays {
    replays: Vec<ReplayEntry>,
    next: Option<String>,
}

/// A replay, and events that it could not publish.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownReplay {
    #[serde(flatten)]
    pub(crate) replay: ReplayEntry,
    pub(crate) failures: Vec<Unreplayed>,
}

#[derive(Serialize, JsonSchema)]
struct Begun {
    dry_run: bool,
    /// One for each shard in which there is something to do.
    replays: Vec<Uuid>,
    plans: Vec<ReplayPlan>,
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(state: ReplayState) -> Api<S> {
    let list = Operation::get("/api/v1/replays", "Lists replays, the newest first")
        .query::<ReplaysQuery>()
        .answers::<Versioned<Replays>>(200, "A page");
    let start = Operation::post("/api/v1/replays", "Publishes events again, or says what would be")
        .body::<Start>()
        .answers::<Versioned<Begun>>(200, "Nothing is to be done, or `dry_run` was given")
        .answers::<Versioned<Begun>>(202, "A relay begins within a second");
    let show =
        Operation::get("/api/v1/replays/{id}", "Shows a replay and what it could not publish")
            .answers::<Versioned<ShownReplay>>(200, "The replay");
    let decide = |decision: ReplayDecision| {
        async move |State(state): State<ReplayState>,
                    caller: Caller,
                    Named(id): Named<Uuid>,
                    Body(change): Body<Change>| {
            decide(state, &caller, decision, id, change).await
        }
    };
    let decisions = [
        ("/api/v1/replays/{id}/pause", "Publishes nothing more for now", ReplayDecision::Pause),
        ("/api/v1/replays/{id}/resume", "Goes on where it was", ReplayDecision::Resume),
        ("/api/v1/replays/{id}/cancel", "Publishes nothing more", ReplayDecision::Cancel),
    ];
    let api = Api::new().on(list, list_all).on(start, begin).on(show, show_one);
    let api = decisions.into_iter().fold(api, |api, (path, summary, decision)| {
        let operation = Operation::post(path, summary).body::<Change>();
        let operation = operation.answers::<Versioned<ShownReplay>>(200, "The replay as it is now");
        api.on(operation, decide(decision))
    });
    api.with_state(state)
}

async fn list_all(
    State(state): State<ReplayState>,
    Asked(ReplaysQuery { limit: most, cursor }): Asked<ReplaysQuery>,
) -> Result<Response, ApiError> {
    let (after, limit): (Option<(Timestamp, Uuid)>, _) =
        (cursor::decode(cursor.as_deref())?, limit(most)?);
    let mut replays = operate::replays::replays(&state.config, after, limit + 1).await?;
    let next = cursor::end_page(&mut replays, limit, |it| (it.asked, it.id))?;
    json(&Replays { replays, next })
}

async fn show_one(
    State(state): State<ReplayState>,
    Named(id): Named<Uuid>,
) -> Result<Response, ApiError> {
    let (replay, failures) = replay(&state.config, id, FAILURES).await?;
    json(&ShownReplay { replay, failures })
}

async fn begin(
    State(state): State<ReplayState>,
    caller: Caller,
    Body(mut start): Body<Start>,
) -> Result<Response, ApiError> {
    if !start.dry_run && start.why.is_none() {
        let detail = "events are published again for a reason";
        return Err(ApiError::bad(detail).with_hint("say so in \"why\"; it is kept"));
    }
    let request = start.request(&caller)?;
    let source = start.source.and_then(SourceArg::source);
    let prefix = request.subject_prefix.as_deref();
    let plans = plan_replay(&state.config, &request.selection, source, prefix).await;
    let plans = plans.map_err(|error| ApiError::or_late(error, PLAN_LATE))?;
    let is_nothing = plans.iter().all(|it| it.source().is_none_or(|it| it.events == Some(0)));
    if start.dry_run || is_nothing {
        let dry_run = start.dry_run;
        return json(&Begun { dry_run, replays: Vec::new(), plans });
    }
    let turn = timeout(WAIT_MAX, Arc::clone(&state.turn).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        let detail = "another replay is being asked for";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    // It goes on after the request: a list of many events takes its time.
    let asking = tokio::spawn(async move {
        let _turn = turn;
        let asked = ask_replay(&state.background, &plans, &request).await;
        match &asked {
            Ok(ids) => info!(replays = ?ids, by = request.by, "asked for a replay over HTTP"),
            Err(error) => warn!(%error, by = request.by, "could not ask for a replay"),
        }
        asked.map(|replays| Begun { dry_run: false, replays, plans })
    });
    let asked = timeout(ANSWER_MAX, asking).await.map_err(|_| still_at_it())?;
    let asked = asked.map_err(|error| ApiError::from(anyhow::Error::from(error)))??;
    let mut response = json(&asked)?;
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn still_at_it() -> ApiError {
    let detail = format!("it is not written down within {ANSWER_MAX:?}, and goes on");
    let hint = "GET /api/v1/replays shows it when it is";
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, detail).with_hint(hint)
}

impl Start {
    fn request(&mut self, caller: &Caller) -> Result<ReplayRequest, ApiError> {
        if self.events.len() > EVENTS_MAX {
            return Err(ApiError::bad(format!("`events` names more than {EVENTS_MAX}")));
        }
        if self.per_second.is_some_and(|it| !(1..=1_000_000).contains(&it)) {
            return Err(ApiError::bad("`per_second` is from 1 to 1000000"));
        }
        let selection = ReplaySelection {
            from_lsn: self.from_lsn,
            to_lsn: self.to_lsn,
            since: self.since,
            until: self.until,
            events: std::mem::take(&mut self.events),
            aggregate: self.aggregate.take().map(|it| (it.kind, it.id)),
            event_type: self.event_type.take(),
        };
        if selection.is_everything() != self.all {
            return Err(ApiError::bad("say which events, or \"all\": true, and not both"));
        }
        Ok(ReplayRequest {
            selection,
            subject_prefix: self.to_subject_prefix.take(),
            per_second: self.per_second,
            by: caller.name(self.by.take()),
            reason: self.why.as_ref().map(|it| it.as_str().to_owned()).unwrap_or_default(),
        })
    }
}

async fn decide(
    state: ReplayState,
    caller: &Caller,
    decision: ReplayDecision,
    id: Uuid,
    Change { by, why }: Change,
) -> Result<Response, ApiError> {
    let by = caller.name(by);
    // The removal of its list goes on after the request.
    let deciding = tokio::spawn(async move {
        let why = why.as_ref().map(Reason::as_str);
        let decided = decide_replay(&state.background, id, decision, &by, why).await;
        if decided.is_ok() {
            info!(replay = %id, ?decision, by, "decided about a replay over HTTP");
        }
        decided
    });
    let decided = timeout(ANSWER_MAX, deciding).await.map_err(|_| still_at_it())?;
    let replay = decided.map_err(|error| ApiError::from(anyhow::Error::from(error)))??;
    Ok(json(&ShownReplay { replay, failures: Vec::new() })?.into_response())
}
