//! What the APIs for both queues of dead letters have in common.

use std::fmt::Display;
use std::str::FromStr;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use operate::dead_letters::{Action, Actor, Aggregate, AuditEntry, Filter, Reason};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::access::Caller;
use super::problem::ApiError;
use crate::config::Role;
use crate::output;

/// What a list shows unless told otherwise, and at most.
pub(super) const LIMIT: u32 = 50;
pub(super) const LIMIT_MAX: u32 = 1_000;

/// As a query or a request has it.
pub(super) const AGGREGATE: &str = r"^[\s\S]*:[\s\S]*$";

/// Who changes something, and what for.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    #[serde(default)]
    pub(crate) by: Option<String>,
    #[serde(default)]
    pub(crate) why: Option<Reason>,
}

/// A [`Change`] that needs a reason, as the document has it.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a change without a reason is refused with a hint instead")]
pub(super) struct FinalChange {
    by: Option<String>,
    why: Reason,
}

/// What an `Overview` is.
pub(super) const OVERVIEW: &str = "How many, why, and a page of them";

impl Change {
    /// For the audit. What is for good needs a reason.
    pub(super) fn actor(self, action: Action, caller: &Caller) -> Result<Actor, ApiError> {
        if action.is_final() && self.why.is_none() {
            let detail = "a dead letter is discarded or rejected for a reason";
            return Err(ApiError::bad(detail).with_hint("say so in \"why\"; it is kept"));
        }
        Ok(Actor { name: caller.name(self.by), via: "http".into(), why: self.why })
    }
}

/// What a listing asks for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// As TYPE:ID
    #[serde(default, deserialize_with = "parsed")]
    #[schemars(with = "Option<String>", extend("pattern" = AGGREGATE, "examples" = ["order:o-17"]))]
    pub(crate) aggregate: Option<Aggregate>,
    /// The event's type
    #[serde(rename = "type")]
    pub(crate) event_type: Option<String>,
    /// In the reason, in any case
    pub(crate) reason: Option<String>,
    /// Dead since then or later
    pub(crate) since: Option<Timestamp>,
    /// Dead letters of a page
    #[schemars(range(max = LIMIT_MAX), extend("default" = LIMIT))]
    pub(crate) limit: Option<u32>,
    /// `next` of the page before
    pub(crate) cursor: Option<String>,
    /// Only of this consumer
    pub(crate) consumer: Option<String>,
}

impl ListQuery {
    /// The filter and the limit.
    pub(super) fn read(self) -> Result<(Filter, u32), ApiError> {
        let Self { aggregate, event_type, reason, since, limit: most, .. } = self;
        Ok((Filter { aggregate, event_type, reason, since }, limit(most)?))
    }
}

/// What is given as text.
pub(super) fn parsed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|it| it.parse()).transpose().map_err(D::Error::custom)
}

/// How many a page has.
pub(super) fn limit(asked: Option<u32>) -> Result<u32, ApiError> {
    let limit = asked.unwrap_or(LIMIT);
    if limit > LIMIT_MAX {
        return Err(ApiError::bad(format!("`limit` is at most {LIMIT_MAX}")));
    }
    Ok(limit)
}

/// What a request for one asks for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowQuery {
    /// With payload and headers; needs the role operator
    #[serde(default)]
    pub(super) payload: bool,
    /// Only of this consumer
    pub(super) consumer: Option<String>,
}

impl ShowQuery {
    /// What events carry may be about people: who reads it is written down.
    pub(super) fn reader(&self, caller: &Caller) -> Result<Option<Actor>, ApiError> {
        if !self.payload {
            return Ok(None);
        }
        caller.must_be(Role::Operator)?;
        Ok(Some(Actor { name: caller.name(None), via: "http".into(), why: None }))
    }
}

/// A JSON body, and an [`ApiError`] if it is none.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Json::<Value>::from_request(request, state).await;
        let Json(body) = body.map_err(|it| ApiError::new(it.status(), it.body_text()))?;
        let wrong = |detail: String| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
        if !is_of_objects(&body) {
            return Err(wrong("the body and what is in it are JSON objects, not lists".into()));
        }
        let read = serde_path_to_error::deserialize(body);
        read.map(Self).map_err(|error| wrong(error.to_string()))
    }
}

/// The only list that a request has.
const LIST: &str = "events";

/// serde would also read a struct from a list of its fields.
fn is_of_objects(value: &Value) -> bool {
    let is_fit = |(name, value): (&String, &Value)| match value {
        Value::Object(_) => is_of_objects(value),
        Value::Array(_) => name == LIST,
        _ => true,
    };
    value.as_object().is_some_and(|fields| fields.iter().all(is_fit))
}

/// A part of a path, and an [`ApiError`] if it is none.
pub(super) struct Named<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let named = Path::from_request_parts(parts, state).await;
        let Path(named) = named.map_err(|it| ApiError::new(it.status(), it.body_text()))?;
        Ok(Self(named))
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

/// The dead letter that somebody has seen, by since when it is dead: what `If-Match` names.
pub(super) struct Seen(pub(super) Option<Timestamp>);

impl<S: Send + Sync> FromRequestParts<S> for Seen {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(tag) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let tag = tag.to_str().unwrap_or_default().trim();
        let number = tag.trim_matches('"').parse().ok();
        let dead_at = number.and_then(|it| Timestamp::from_microsecond(it).ok());
        // Another's tag names nothing of ours. No letter is so old.
        Ok(Self((tag != "*").then(|| dead_at.unwrap_or(Timestamp::UNIX_EPOCH))))
    }
}

/// Somebody else was first.
pub(super) fn changed(history: &[AuditEntry], state: &str) -> ApiError {
    let last = history.iter().rfind(|it| it.action != "read");
    let last = last.map_or_else(String::new, |it| {
        let why = it.why.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
        let at = it.at.strftime("%Y-%m-%d %H:%M:%S UTC");
        format!("{} by {} at {at}{why}; ", it.action, it.actor)
    });
    let detail = format!("it has changed since it was shown: {last}it is {state} now");
    let hint = "look at it again, and decide again";
    ApiError::new(StatusCode::PRECONDITION_FAILED, detail).with_hint(hint)
}

/// An answer that names what it shows.
pub(super) fn tagged(data: &impl Serialize, etag: Option<&str>) -> Result<Response, ApiError> {
    let mut response = json(data)?;
    if let Some(tag) = etag.and_then(|it| it.parse().ok()) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    Ok(response)
}

/// An answer with the version of its schema.
pub(super) fn json(data: &impl Serialize) -> Result<Response, ApiError> {
    let text = output::to_json(data)?;
    Ok(([(header::CONTENT_TYPE, super::JSON)], text).into_response())
}
