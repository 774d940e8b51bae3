//! What the APIs for both queues of dead letters have in common.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use outbox::dead_letters::Filter;
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;

use crate::{exit, output};

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
    pub(crate) why: Option<String>,
}

impl Change {
    /// A name for the audit.
    pub(super) fn decider(&self) -> String {
        self.by.clone().unwrap_or_else(|| "unnamed".into())
    }

    /// For what cannot be undone.
    pub(super) fn reasoned(self) -> Result<Self, Failure> {
        if self.why.as_ref().is_some_and(|it| !it.trim().is_empty()) {
            return Ok(self);
        }
        let error = "a dead letter is discarded or rejected for a reason".to_owned();
        let hint = Some("say so in \"why\"; it is kept".to_owned());
        Err(Failure(StatusCode::BAD_REQUEST, Complaint { error, hint }))
    }
}

/// The filter of a query.
pub(super) fn filter(
    aggregate: Option<String>,
    event_type: Option<String>,
    reason: Option<String>,
    since: Option<String>,
) -> Result<Filter, Failure> {
    let aggregate = aggregate.map(|it| it.parse()).transpose().map_err(Failure::bad)?;
    let since = since.map(|it| it.parse()).transpose();
    let since = since.map_err(|error: jiff::Error| Failure::bad(error))?;
    Ok(Filter { aggregate, event_type, reason, since })
}

/// An error as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Complaint {
    pub(crate) error: String,
    #[serde(default)]
    pub(crate) hint: Option<String>,
}

pub(super) struct Failure(pub(super) StatusCode, pub(super) Complaint);

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        if error.chain().any(was_cut_short) {
            return Self::late();
        }
        let status = match exit::number(&error) {
            exit::NOT_FOUND => StatusCode::NOT_FOUND,
            exit::REFUSED => StatusCode::CONFLICT,
            exit::UNREACHABLE => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, Complaint { error: exit::chain(&error), hint: exit::hint(&error) })
    }
}

/// Whether the server ended the statement, for it took too long.
fn was_cut_short(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<tokio_postgres::Error>();
    error.and_then(tokio_postgres::Error::code) == Some(&SqlState::QUERY_CANCELED)
}

impl Failure {
    fn late() -> Self {
        let error = format!("the database took longer than {STATEMENT_MAX:?}");
        let hint = "somebody may have the table locked (see pg_locks and pg_stat_activity): try \
                    again, or narrow the filter";
        Self(StatusCode::SERVICE_UNAVAILABLE, Complaint { error, hint: Some(hint.to_owned()) })
    }

    pub(super) fn bad(error: impl ToString) -> Self {
        Self(StatusCode::BAD_REQUEST, Complaint { error: error.to_string(), hint: None })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

/// An answer with the version of its schema.
pub(super) fn json(data: &impl Serialize) -> Result<Response, Failure> {
    let text = output::to_json(data)?;
    Ok(([(header::CONTENT_TYPE, super::JSON)], text).into_response())
}
