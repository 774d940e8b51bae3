//! `/api/v1/replays`: publishing events again.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use operate::dead_letters::{Aggregate, Reason};
use operate::replays::{
    ReplayDecision, ReplayEntry, ReplayPlan, ReplayRequest, ReplaySelection, ReplaySource,
    Unreplayed, ask_replay, decide_replay, plan_replay, replay, replays_after,
};
use relay::{Config, Glob, Lsn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{info, warn};
use uuid::Uuid;

use super::access::Caller;
use super::api::{AGGREGATE, Asked, Body, Change, LIMIT, LIMIT_MAX, Named, json, limit, time};
use super::cursor;
use super::openapi::{Api, Operation};
use super::problem::{ANSWER_MAX, ApiError, WAIT_MAX};
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
    /// With a pool for what goes on when nobody waits for it.
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
    from_lsn: Option<String>,
    to_lsn: Option<String>,
    #[schemars(with = "Option<Timestamp>")]
    since: Option<String>,
    #[schemars(with = "Option<Timestamp>")]
    until: Option<String>,
    #[serde(default)]
    events: Vec<Uuid>,
    #[schemars(extend("pattern" = AGGREGATE))]
    aggregate: Option<String>,
    event_type: Option<String>,
    /// Everything that was ever published: so that nobody says it by saying nothing.
    #[serde(default)]
    all: bool,
    #[schemars(extend("enum" = ["auto", "stream", "table", "wal", null]))]
    source: Option<String>,
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

#[derive(Serialize, JsonSchema)]
struct Shown {
    #[serde(flatten)]
    replay: ReplayEntry,
    failures: Vec<Unreplayed>,
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
            .answers::<Versioned<Shown>>(200, "The replay");
    let decision = |path, summary| {
        let operation = Operation::post(path, summary).body::<Change>();
        operation.answers::<Versioned<Shown>>(200, "The replay as it is now")
    };
    let decide = |decision: ReplayDecision| {
        async move |State(state): State<ReplayState>,
                    caller: Caller,
                    Named(id): Named<Uuid>,
                    Body(change): Body<Change>| {
            decide(state, &caller, decision, id, change).await
        }
    };
    Api::new()
        .on(list, list_all)
        .on(start, begin)
        .on(show, show_one)
        .on(
            decision("/api/v1/replays/{id}/pause", "Publishes nothing more for now"),
            decide(ReplayDecision::Pause),
        )
        .on(
            decision("/api/v1/replays/{id}/resume", "Goes on where it was"),
            decide(ReplayDecision::Resume),
        )
        .on(
            decision("/api/v1/replays/{id}/cancel", "Publishes nothing more"),
            decide(ReplayDecision::Cancel),
        )
        .with_state(state)
}

async fn list_all(
    State(state): State<ReplayState>,
    Asked(ReplaysQuery { limit: most, cursor }): Asked<ReplaysQuery>,
) -> Result<Response, ApiError> {
    let (after, limit): (Option<(Timestamp, Uuid)>, _) =
        (cursor::decode(cursor.as_deref())?, limit(most)?);
    let mut replays = replays_after(&state.config, after, limit + 1).await?;
    let next = cursor::end_page(&mut replays, limit, |it| (it.asked, it.id))?;
    json(&Replays { replays, next })
}

async fn show_one(
    State(state): State<ReplayState>,
    Named(id): Named<Uuid>,
) -> Result<Response, ApiError> {
    let (replay, failures) = replay(&state.config, id, FAILURES).await?;
    json(&Shown { replay, failures })
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
    let source = start.source()?;
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
    // It goes on whether anybody waits or not: a list of many events takes its time.
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
        let lsn = |name: &str, text: Option<String>| {
            let lsn = text.map(|it| it.parse::<Lsn>()).transpose();
            lsn.map_err(|_| ApiError::bad(format!("`{name}` is a position such as 16/B374D848")))
        };
        let aggregate = self.aggregate.take().map(|it| it.parse::<Aggregate>());
        let aggregate = aggregate.transpose().map_err(ApiError::bad)?;
        let event_type = self.event_type.take().map(|it| it.parse::<Glob>());
        if self.events.len() > EVENTS_MAX {
            return Err(ApiError::bad(format!("`events` names more than {EVENTS_MAX}")));
        }
        if self.per_second.is_some_and(|it| !(1..=1_000_000).contains(&it)) {
            return Err(ApiError::bad("`per_second` is from 1 to 1000000"));
        }
        let selection = ReplaySelection {
            from_lsn: lsn("from_lsn", self.from_lsn.take())?,
            to_lsn: lsn("to_lsn", self.to_lsn.take())?,
            since: time("since", self.since.take())?,
            until: time("until", self.until.take())?,
            events: std::mem::take(&mut self.events),
            aggregate: aggregate.map(|it| (it.kind, it.id)),
            event_type: event_type.transpose().map_err(ApiError::bad)?,
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

    fn source(&self) -> Result<Option<ReplaySource>, ApiError> {
        match self.source.as_deref() {
            None | Some("auto") => Ok(None),
            Some("stream") => Ok(Some(ReplaySource::Stream)),
            Some("table") => Ok(Some(ReplaySource::Table)),
            Some("wal") => Ok(Some(ReplaySource::Wal)),
            Some(_) => Err(ApiError::bad("`source` is auto, stream, table or wal")),
        }
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
    // Its list is removed whether anybody waits or not.
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
    Ok(json(&Shown { replay, failures: Vec::new() })?.into_response())
}
