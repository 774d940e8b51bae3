//! `/api/v1/rewinds`: consumers that go back in their stream, as `tailpost inbox rewind` sends them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::BoxFuture;
use inbox::{Connection, RewindOnly};
use jiff::Timestamp;
use operate::consumers::{Rewind, RewindPlan, RewindTarget, Rewinder};
use operate::dead_letters::{Actor, Aggregate, Reason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::info;

use super::consumer_routes::{ConsumerState, unknown};
use crate::admin::access::Caller;
use crate::admin::api::{AGGREGATE, Body, Change, Named, json, parsed};
use crate::admin::openapi::{Api, Operation};
use crate::admin::problem::{ANSWER_MAX, ApiError};
use crate::output::Versioned;

/// What plans and requests rewinds of a consumer, if it runs here. A plan takes a connection to NATS.
pub(crate) type Rewinders = Arc<
    dyn Fn(String, Connection) -> BoxFuture<'static, anyhow::Result<Option<Rewinder>>>
        + Send
        + Sync,
>;

const ONE: &str = "/api/v1/consumers/{name}/rewinds";
/// Requests that are listed.
const LISTED: u32 = 20;
/// How long a plan counts.
const COUNT_MAX: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct RewindRoutes {
    consumers: ConsumerState,
    rewinders: Rewinders,
}

/// Where a consumer goes back to: one of `since` and `to_sequence`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RewindRequest {
    /// To what was stored then or later
    since: Option<Timestamp>,
    /// To this sequence of the stream
    #[schemars(range(min = 1, max = i64::MAX))]
    to_sequence: Option<u64>,
    /// Handle events again that were processed: their effects repeat. Needs `why`
    #[serde(default)]
    again: bool,
    /// With `again`: only events of this aggregate, as TYPE:ID
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>", extend("pattern" = AGGREGATE))]
    aggregate: Option<Aggregate>,
    /// With `again`: only events of this type
    event_type: Option<String>,
    #[serde(default)]
    dry_run: bool,
    by: Option<String>,
    why: Option<Reason>,
}

/// A plan, and the same in words: labels, and what they say.
#[derive(Serialize, JsonSchema)]
struct Planned {
    #[serde(flatten)]
    plan: RewindPlan,
    in_words: Vec<(&'static str, String)>,
}

#[derive(Serialize, JsonSchema)]
struct Rewinds {
    rewinds: Vec<Rewind>,
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(
    consumers: ConsumerState,
    rewinders: Rewinders,
) -> Api<S> {
    let list_all = Operation::get("/api/v1/rewinds", "Lists consumers that went back")
        .answers::<Versioned<Rewinds>>(200, "The latest requests of all consumers");
    let start = Operation::post(ONE, "Sends a consumer back in its stream")
        .body::<RewindRequest>()
        .answers::<Versioned<Planned>>(200, "What would be done: `dry_run`")
        .answers::<Versioned<Rewind>>(202, "Its worker does it");
    let withdraw = Operation::delete(ONE, "Withdraws a rewind that has not begun")
        .body::<Change>()
        .answers_nothing(204, "The consumer stays where it is");
    Api::new()
        .on(list_all, list)
        .on(start, begin)
        .on(withdraw, cancel)
        .with_state(RewindRoutes { consumers, rewinders })
}

impl RewindRequest {
    fn target(&self) -> Result<RewindTarget, ApiError> {
        let bad = |detail: &str| Err(ApiError::bad(detail));
        match (self.since, self.to_sequence) {
            (_, Some(0)) => bad("`to_sequence` is at least 1"),
            (_, Some(sequence)) if i64::try_from(sequence).is_err() => {
                bad("`to_sequence` is no sequence")
            }
            (None, Some(sequence)) => Ok(RewindTarget::Sequence(sequence)),
            (Some(time), None) => Ok(RewindTarget::Since(time)),
            _ => bad("say either `since` or `to_sequence`"),
        }
    }

    fn only(&self) -> Result<RewindOnly, ApiError> {
        let aggregate = self.aggregate.clone().map(|it| (it.kind, it.id));
        let (aggregate_type, aggregate_id) = aggregate.unzip();
        let event_type = self.event_type.clone();
        let only = RewindOnly { aggregate_type, aggregate_id, event_type };
        if !self.again && !only.is_all() {
            return Err(ApiError::bad("`aggregate` and `event_type` need `again`"));
        }
        if self.again && !self.dry_run && self.why.is_none() {
            let detail = "effects repeat for a reason";
            return Err(ApiError::bad(detail).with_hint("say so in \"why\"; it is kept"));
        }
        Ok(only)
    }
}

async fn list(State(state): State<RewindRoutes>) -> Result<Response, ApiError> {
    json(&Rewinds { rewinds: state.consumers.open().await?.rewinds(None, LISTED).await? })
}

async fn begin(
    State(state): State<RewindRoutes>,
    caller: Caller,
    Named(name): Named<String>,
    Body(request): Body<RewindRequest>,
) -> Result<Response, ApiError> {
    let began = timeout(ANSWER_MAX, state.begin(&caller, &name, request)).await;
    began.unwrap_or_else(|_| {
        let detail = format!("the stream was not looked through within {ANSWER_MAX:?}");
        let hint = "use `tailpost inbox rewind`, which waits for as long as it takes";
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_hint(hint))
    })
}

impl RewindRoutes {
    async fn begin(
        &self,
        caller: &Caller,
        name: &str,
        request: RewindRequest,
    ) -> Result<Response, ApiError> {
        let (target, only) = (request.target()?, request.only()?);
        let rewinder = (self.rewinders)(name.to_owned(), self.consumers.lent().await?).await?;
        let Some(rewinder) = rewinder else { return Err(unknown(name)) };
        let limit = if request.dry_run { COUNT_MAX } else { Duration::ZERO };
        let looked_at = watch::Sender::default();
        let rewinder = rewinder.counting_within(limit);
        let plan = rewinder.plan(target, (request.again, only), &looked_at).await?;
        if request.dry_run {
            let in_words = plan.in_words();
            return json(&Planned { plan, in_words });
        }
        let actor = Actor { name: caller.name(request.by), via: "http".into(), why: request.why };
        let it = rewinder.request(&plan, &actor).await?;
        if (it.from_sequence, it.again, &it.only) != (plan.from_sequence, plan.again, &plan.only) {
            let (from, by, at) = (it.from_sequence, it.requested_by, it.requested_at);
            let detail = format!("it is to go back to sequence {from}, as {by} asked at {at}");
            let hint = "wait for that, or withdraw it with DELETE while no worker has begun";
            return Err(ApiError::new(StatusCode::CONFLICT, detail).with_hint(hint));
        }
        info!(consumer = name, from = it.from_sequence, by = actor.name, "rewound over HTTP");
        let listed = self.consumers.open().await?.rewinds(Some(name), 1).await?;
        let mut response = json(&listed.first())?;
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    }
}

async fn cancel(
    State(state): State<RewindRoutes>,
    caller: Caller,
    Named(name): Named<String>,
    Body(change): Body<Change>,
) -> Result<StatusCode, ApiError> {
    let actor = Actor { name: caller.name(change.by), via: "http".into(), why: change.why };
    match state.consumers.open().await?.cancel_rewind(&name, &actor).await? {
        Some(_) => Ok(StatusCode::NO_CONTENT),
        None => {
            let detail = format!("no rewind of {name} is requested and not begun");
            Err(ApiError::new(StatusCode::NOT_FOUND, detail))
        }
    }
}
