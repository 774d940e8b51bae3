//! What came of a decision about one event: a sentence that the page behind it asks for.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use hyper::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::app::App;
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::outcome::{of_consumer, of_letter};
use crate::state::plan::escape;
use crate::state::story_answers::Marking;
use crate::visitor::Visitor;

/// Where it was decided.
#[derive(Debug, Deserialize)]
pub(crate) struct Where {
    source: String,
    consumer: String,
}

/// What was done with an event, with its address, or that of what comes of it.
pub(super) fn said_of(event: &str, said: &str, at: Option<(&str, &str)>) -> String {
    let query = |(source, consumer)| {
        format!("/outcome?source={}&consumer={}", escape(source), escape(consumer))
    };
    format!("{said}\n/events/{}{}", escape(event), at.map(query).unwrap_or_default())
}

/// A text. As long as it is not the last one, the answer is 202.
pub(crate) async fn outcome(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(at): Query<Where>,
) -> Result<Response, Problem> {
    let (source, now) = (app.source(&at.source)?, Timestamp::now());
    let (said, is_final) = match source.kind() {
        Kind::Relay => {
            let path = &format!("outbox/dead-letter/{}", escape(&id));
            of_letter(&source.get(&visitor, path).await?, now)
        }
        Kind::Inbox => {
            let (consumer, event) = (escape(&at.consumer), escape(&id));
            let path = format!("consumers/{consumer}/events/{event}/mark-processed");
            // A plan has what is known of the event.
            let body = json!({ "dry_run": true });
            let known: Marking = source.change(&visitor, Method::POST, &path, body).await?;
            of_consumer(&known.before, now)
        }
    };
    let status = if is_final { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, said).into_response())
}
