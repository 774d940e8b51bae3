//! Decisions about dead letters, one by one.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::dead_letters::{queue_of, verb_of};
use crate::app::{App, change, with};
use crate::fields::Fields;
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::plan::{Verb, escape};
use crate::visitor::Visitor;

/// Letters that a form may select: those of a page.
const SELECTED_MAX: usize = 50;

/// Decides about one.
pub(crate) async fn decide(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, id, action)): Path<(String, String, String)>,
    fields: Fields,
) -> Result<Response, Problem> {
    let verb = verb_of(&action)?;
    let consumer = fields.get("consumer").unwrap_or_default();
    // Only a payload that was edited is sent: one decision, and not the original beside it.
    let payload = fields.raw("payload").filter(|it| fields.raw("original") != Some(*it));
    let letter = Selected { source: &source, id: &id, consumer };
    letter.decide(&app, &visitor, verb, (fields.get("why"), payload, fields.get("seen"))).await?;
    Ok(Redirect::to(&back(&app, &fields)).into_response())
}

/// Decides about those that are selected.
pub(crate) async fn decide_selected(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let verb = verb_of(fields.get("action").unwrap_or_default())?;
    let selected: Vec<_> = fields.all("letter").filter_map(Selected::read).collect();
    if selected.is_empty() {
        return Err(Problem::bad("no dead letter is selected"));
    }
    if selected.len() > SELECTED_MAX {
        return Err(Problem::bad(format!("at most {SELECTED_MAX} are selected")));
    }
    let mut refused = Vec::new();
    for letter in &selected {
        let decided = letter.decide(&app, &visitor, verb, (fields.get("why"), None, None)).await;
        if let Err(problem) = decided {
            refused.push(format!("{}: {}", letter.id, problem.detail));
        }
    }
    if refused.is_empty() {
        return Ok(Redirect::to(&back(&app, &fields)).into_response());
    }
    let done = selected.len() - refused.len();
    let detail = format!("{done} of {} are done. {}", selected.len(), refused.join(". "));
    Err(Problem::new(StatusCode::CONFLICT, detail))
}

/// Where the form was: the filter survives the action.
fn back(app: &App, fields: &Fields) -> String {
    let back = fields.get("back").filter(|it| it.starts_with("/dead-letters"));
    format!("{}{}", app.settings.base_path, back.unwrap_or("/dead-letters"))
}

/// A letter as a form names it.
struct Selected<'a> {
    source: &'a str,
    id: &'a str,
    consumer: &'a str,
}

impl<'a> Selected<'a> {
    fn read(value: &'a str) -> Option<Self> {
        let mut parts = value.splitn(3, ' ');
        let (source, id) = (parts.next()?, parts.next()?);
        Some(Self { source, id, consumer: parts.next().unwrap_or_default() })
    }

    async fn decide(
        &self,
        app: &App,
        visitor: &Visitor,
        verb: Verb,
        (why, payload, seen): (Option<&str>, Option<&str>, Option<&str>),
    ) -> Result<(), Problem> {
        if verb.is_final() && why.is_none() {
            return Err(Problem::bad("what is for good needs a reason: say why"));
        }
        let source = app.source(self.source)?;
        let (queue, id) = (queue_of(source.kind()), escape(self.id));
        let whose = match (source.kind(), self.consumer) {
            (Kind::Inbox, consumer) if !consumer.is_empty() => {
                format!("?consumer={}", escape(consumer))
            }
            _ => String::new(),
        };
        let (method, path) = match verb {
            Verb::Discard => (Method::DELETE, format!("{queue}/dead-letter/{id}{whose}")),
            verb => (Method::POST, format!("{queue}/dead-letter/{id}/{}{whose}", verb.name())),
        };
        let mut body: Value = change(why);
        if let Some(payload) = payload {
            body = with(body, "payload", &json!(payload));
        }
        source.change_seen::<Value>(visitor, (method, &path), seen, body).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selected_letter_has_its_consumer_whatever_that_is_called() {
        let it = Selected::read("inbox 17 a b").expect("whole");
        assert_eq!((it.source, it.id, it.consumer), ("inbox", "17", "a b"));
        assert_eq!(Selected::read("relay 17 ").map(|it| it.consumer), Some(""));
        assert!(Selected::read("relay").is_none());
    }
}
