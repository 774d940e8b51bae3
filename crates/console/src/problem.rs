//! What cannot be done, and why, as a page says it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::client::AskError;
use crate::state::figures::short;

/// A refusal, in the words of whoever refuses.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) title: &'static str,
    pub(crate) detail: String,
    pub(crate) hint: Option<String>,
    /// Where to sign in, if that is what is missing.
    pub(crate) sign_in: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::UNAUTHORIZED => "Sign in again",
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "Decided already",
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => "Not understood",
            StatusCode::TOO_MANY_REQUESTS => "Too often",
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => "No answer",
            StatusCode::GATEWAY_TIMEOUT => "Too slow",
            _ => "Refused",
        };
        Self { status, title, detail: detail.into(), hint: None, sign_in: None }
    }

    pub(crate) fn not_found(detail: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn no_reason() -> Self {
        Self::bad("this cannot be undone, so it needs a reason: fill in why")
    }

    pub(crate) fn no_aggregate(text: &str) -> Self {
        let text = short(text.trim(), 80);
        let detail =
            format!("an aggregate is named with its type, as in order:o-17; not so {text}");
        Self::bad(detail)
    }

    pub(crate) fn no_id(text: &str) -> Self {
        let example = "0198f3f0-0000-7000-8000-000000000001";
        let text = short(text.trim(), 80);
        Self::bad(format!("an event's id is one such as {example}, and not {text}"))
    }

    /// As sentences.
    pub(crate) fn says(&self) -> String {
        let parts = [Some(&self.detail), self.hint.as_ref()].into_iter().flatten();
        parts.map(|it| sentence(it)).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Refused { status: StatusCode::UNAUTHORIZED, .. } => Self::new(
                StatusCode::UNAUTHORIZED,
                "The token is not known any more: it was revoked or replaced.",
            ),
            AskError::Refused { status, refused } => {
                Self { hint: refused.hint, ..Self::new(status, refused.detail) }
            }
            other => Self::new(StatusCode::BAD_GATEWAY, other.to_string()),
        }
    }
}

fn sentence(text: &str) -> String {
    let mut rest = text.trim().chars();
    let first = rest.next().map(|it| it.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.trim().ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", rest.as_str())
}

/// The guard writes the page: it knows who looks at it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.detail.clone()).into_response();
        response.extensions_mut().insert(self);
        response
    }
}
