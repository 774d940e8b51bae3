//! `/api/v1/events/{id}/wait`: what becomes of an event, as soon as it is known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use operate::waiting::effects::EffectState;
use outbox::waiting::{Seen, Waiting};
use relay::EventState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::JSON;
use super::api::{Asked, Named};
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use crate::output::{self, Versioned};

/// How long a request waits at most: with the first look, less than it may take.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(3);

/// What a request asks for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitQuery {
    /// How long, such as 500ms; at most 3s, which is also the default
    timeout: Option<String>,
    /// Which consumer, where several run
    processed_by: Option<String>,
}

impl WaitQuery {
    fn patience(&self) -> Result<Duration, ApiError> {
        let Some(text) = &self.timeout else { return Ok(WAIT_MAX) };
        let patience = crate::config::parse_duration(text);
        let patience = patience.map_err(|it| ApiError::bad(format!("`timeout` must be {it}")))?;
        Ok(patience.min(WAIT_MAX))
    }
}

/// An event, and what became of it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Waited<S> {
    pub(crate) id: Uuid,
    #[serde(flatten)]
    pub(crate) state: S,
}

/// What became of an event, for those who only look at the status.
pub(crate) trait Told: Clone + Serialize {
    /// 200 when it happened, 202 when it may happen, 404 for an unknown event, 409 when it never
    /// happens by itself.
    fn status(&self) -> StatusCode;

    /// Whether nothing more becomes of it by itself.
    fn is_final(&self) -> bool {
        matches!(self.status(), StatusCode::OK | StatusCode::CONFLICT)
    }
}

impl Told for EventState {
    fn status(&self) -> StatusCode {
        match self {
            Self::Published { .. } => StatusCode::OK,
            Self::Pending { .. } => StatusCode::ACCEPTED,
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Dropped | Self::Dead { .. } | Self::Discarded { .. } => StatusCode::CONFLICT,
        }
    }
}

impl Told for EffectState {
    fn status(&self) -> StatusCode {
        match self {
            Self::Processed => StatusCode::OK,
            Self::Begun { .. } => StatusCode::ACCEPTED,
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Dead { .. } | Self::Rejected => StatusCode::CONFLICT,
        }
    }
}

/// Those who wait for events of each consumer, by its name.
pub(crate) type WaitingOf = Arc<BTreeMap<String, Waiting<EffectState>>>;

/// What the document says of a state: that it has its name, whichever it is.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "stands for `EventState` and `EffectState`")]
struct AnyState {
    state: String,
}

fn operation() -> Operation {
    let path = "/api/v1/events/{id}/wait";
    Operation::get(path, "Waits until something becomes of an event")
        .query::<WaitQuery>()
        .answers::<Versioned<Waited<AnyState>>>(200, "It happened")
        .answers::<Versioned<Waited<AnyState>>>(202, "It may still happen")
        .answers::<Versioned<Waited<AnyState>>>(404, "Nobody knows the event")
        .answers::<Versioned<Waited<AnyState>>>(409, "It does not happen by itself")
}

/// Of a relay.
pub(super) fn published<S: Clone + Send + Sync + 'static>(waiting: Waiting<EventState>) -> Api<S> {
    Api::new().on(operation().without("processed_by"), until_published).with_state(waiting)
}

/// Of an inbox.
pub(super) fn processed<S: Clone + Send + Sync + 'static>(waiting: WaitingOf) -> Api<S> {
    Api::new().on(operation(), until_processed).with_state(waiting)
}

async fn until_published(
    State(waiting): State<Waiting<EventState>>,
    Named(id): Named<Uuid>,
    Asked(query): Asked<WaitQuery>,
) -> Result<Response, ApiError> {
    if query.processed_by.is_some() {
        return Err(ApiError::bad("ask the inbox that runs the consumer (admin.inbox_listen)"));
    }
    wait(&waiting, id, query.patience()?).await
}

async fn until_processed(
    State(waiting): State<WaitingOf>,
    Named(id): Named<Uuid>,
    Asked(query): Asked<WaitQuery>,
) -> Result<Response, ApiError> {
    let of = match (&query.processed_by, waiting.len()) {
        (Some(consumer), _) => waiting.get(consumer),
        (None, 1) => waiting.values().next(),
        (None, _) => return Err(ApiError::bad("say which consumer with `processed_by`")),
    };
    let here = || waiting.keys().cloned().collect::<Vec<_>>().join(", ");
    let of = of.ok_or_else(|| {
        let detail = format!("this process does not run that consumer, but {}", here());
        ApiError::new(StatusCode::BAD_REQUEST, detail)
    })?;
    wait(of, id, query.patience()?).await
}

async fn wait<S: Told>(
    waiting: &Waiting<S>,
    id: Uuid,
    patience: Duration,
) -> Result<Response, ApiError> {
    let unavailable = |detail: &str| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail);
    let seen = waiting.wait(id, patience).await;
    let seen = seen.map_err(|error| unavailable(&error.to_string()))?;
    let state = seen.map(Seen::into_inner);
    let state = state.ok_or_else(|| unavailable("the database cannot be asked"))?;
    let (status, text) = (state.status(), output::to_json(&Waited { id, state })?);
    Ok((status, [(header::CONTENT_TYPE, JSON)], text).into_response())
}
