//! What the APIs for both queues of dead letters have in common.

use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use outbox::dead_letters::{Action, Actor, Filter, Reason};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;

use crate::exit::{self, Kind};
use crate::output;

/// What a list shows unless told otherwise, and at most.
pub(super) const LIMIT: u32 = 50;
pub(super) const LIMIT_MAX: u32 = 1_000;

/// How long the database may work on a statement of a request: less than the request may take, so
/// that the answer says why.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(3);

/// Has the server end what takes longer: it holds a connection there and one here.
pub(super) fn bounded() -> String {
    format!("SET statement_timeout = {}", STATEMENT_MAX.as_millis())
}

/// Who changes something, and what for.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    #[serde(default)]
    pub(crate) by: Option<String>,
    #[serde(default)]
    pub(crate) why: Option<Reason>,
}

impl Change {
    /// For the audit. What is for good needs a reason.
    pub(super) fn actor(self, action: Action) -> Result<Actor, ApiError> {
        if action.is_final() && self.why.is_none() {
            let detail = "a dead letter is discarded or rejected for a reason";
            let hint = Some("say so in \"why\"; it is kept".to_owned());
            return Err(ApiError { hint, ..ApiError::new(StatusCode::BAD_REQUEST, detail) });
        }
        let name = self.by.unwrap_or_else(|| "unnamed".into());
        Ok(Actor { name, via: "http".into(), why: self.why })
    }
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
    /// Only of an inbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consumer: Option<String>,
}

impl ListQuery {
    /// The filter and the limit.
    pub(super) fn read(self) -> Result<(Filter, u32), ApiError> {
        let Self { aggregate, event_type, reason, since, limit, consumer: _ } = self;
        let aggregate = aggregate.map(|it| it.parse()).transpose().map_err(ApiError::bad)?;
        let since = since.map(|it| it.parse()).transpose();
        let since = since.map_err(|error: jiff::Error| ApiError::bad(error))?;
        let limit = limit.unwrap_or(LIMIT).min(LIMIT_MAX);
        Ok((Filter { aggregate, event_type, reason, since }, limit))
    }
}

/// What a request for one asks for, in the query.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowQuery {
    #[serde(default)]
    pub(super) payload: bool,
    /// Only of an inbox.
    pub(super) consumer: Option<String>,
}

/// Why a request was not answered, as RFC 9457 wants it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ApiError {
    pub(crate) title: String,
    pub(crate) status: u16,
    pub(crate) detail: String,
    /// What can be done about it.
    #[serde(default)]
    pub(crate) hint: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, detail: impl ToString) -> Self {
        let title = status.canonical_reason().unwrap_or("Error").to_owned();
        Self { title, status: status.as_u16(), detail: detail.to_string(), hint: None }
    }

    pub(super) fn bad(detail: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    fn late() -> Self {
        let detail = format!("the database took longer than {STATEMENT_MAX:?}");
        let hint = "somebody may have the table locked (see pg_locks and pg_stat_activity): try \
                    again, or narrow the filter";
        let hint = Some(hint.to_owned());
        Self { hint, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }
}

impl<E: Into<anyhow::Error>> From<E> for ApiError {
    fn from(error: E) -> Self {
        let error = error.into();
        if error.chain().any(was_cut_short) {
            return Self::late();
        }
        let status = match exit::kind(&error) {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Refused => StatusCode::CONFLICT,
            Kind::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::TimedOut | Kind::BadConfiguration | Kind::Failed => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self { hint: exit::hint(&error), ..Self::new(status, exit::chain(&error)) }
    }
}

/// Whether the server ended the statement, for it took too long.
fn was_cut_short(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<tokio_postgres::Error>();
    error.and_then(tokio_postgres::Error::code) == Some(&SqlState::QUERY_CANCELED)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, kind, serde_json::to_string(&self).unwrap_or_default()).into_response()
    }
}

/// A JSON body, and an [`ApiError`] if it is none.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Json::from_request(request, state).await;
        let Json(body) = body.map_err(|it| ApiError::new(it.status(), it.body_text()))?;
        Ok(Self(body))
    }
}

/// A query, and an [`ApiError`] if it is none.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        let Query(query) = query.map_err(|it| ApiError::new(it.status(), it.body_text()))?;
        Ok(Self(query))
    }
}

/// An answer with the version of its schema.
pub(super) fn json(data: &impl Serialize) -> Result<Response, ApiError> {
    let text = output::to_json(data)?;
    Ok(([(header::CONTENT_TYPE, super::JSON)], text).into_response())
}
