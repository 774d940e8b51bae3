//! What went wrong, as RFC 9457 wants it told. What an engine refuses is a 409; `errors.rs` says what
//! that is.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;

use crate::errors;
use crate::errors::Kind;

/// How long something is waited for before the answer: less than the request may take.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(2);

/// After this long a request whose work goes on is answered all the same.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(4);

/// How long the database may work on a statement of a request: less than the request may take, so
/// that the answer says why.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(3);

/// Why a request was not answered, as RFC 9457 wants it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Problem")]
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

    pub(super) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// As `from`, with another hint if the database took too long.
    pub(super) fn or_late(error: impl Into<anyhow::Error>, hint: &str) -> Self {
        let error = error.into();
        match error.chain().any(was_cut_short) {
            true => Self::late().with_hint(hint),
            false => error.into(),
        }
    }

    fn late() -> Self {
        let detail = format!("the database took longer than {STATEMENT_MAX:?}");
        let hint = "somebody may have the table locked (see pg_locks and pg_stat_activity): try \
                    again, or narrow the filter";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_hint(hint)
    }
}

/// The class of what the database cannot take, such as a NUL in a text.
const DATA_EXCEPTION: &str = "22";

impl<E: Into<anyhow::Error>> From<E> for ApiError {
    fn from(error: E) -> Self {
        let error = error.into();
        if error.chain().any(was_cut_short) {
            return Self::late();
        }
        if let Some(code) = error.chain().find_map(sql_state)
            && code.code().starts_with(DATA_EXCEPTION)
        {
            return Self::bad(errors::chain(&error));
        }
        let status = match errors::kind(&error) {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Refused => StatusCode::CONFLICT,
            Kind::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::TimedOut | Kind::BadConfiguration | Kind::Failed => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self { hint: errors::hint(&error), ..Self::new(status, errors::chain(&error)) }
    }
}

/// Whether the server ended the statement, for it took too long.
fn was_cut_short(error: &(dyn std::error::Error + 'static)) -> bool {
    sql_state(error) == Some(&SqlState::QUERY_CANCELED)
}

fn sql_state<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a SqlState> {
    error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let again = [(header::RETRY_AFTER, "1")];
        let again = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(again);
        (status, kind, again, serde_json::to_string(&self).unwrap_or_default()).into_response()
    }
}
