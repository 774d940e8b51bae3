//! Decisions about dead letters, one by one.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::came_of_it::said_of;
use super::dead_letters::{Again, Filter, list_page, queue_of, verb_of};
use super::letter::show_again;
use crate::app::{App, change, with};
use crate::fields::Fields;
use crate::frame::done;
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::figures::counted;
use crate::state::plan::{Verb, escape};
use crate::visitor::Visitor;

/// Letters that a form may select: those of a page.
const SELECTED_MAX: usize = 50;

/// Of them so many are named afterwards.
const NAMED_MAX: usize = 5;

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
    let with = (fields.get("why"), payload, fields.get("seen"));
    match letter.decide(&app, &visitor, verb, with).await {
        Ok(kind) => {
            let said = format!("Event {id} is {}.", verb.done(kind));
            let at = (verb == Verb::Requeue).then_some((&*source, consumer));
            let said = said_of(&id, &said, at);
            Ok(done(&app, &back(&fields), &said))
        }
        Err(problem) => {
            let again = Again::of(&fields, problem.clone());
            show_again(&app, &visitor, (&source, &id), &fields, again).await.or(Err(problem))
        }
    }
}

/// Decides about those that are selected.
pub(crate) async fn decide_selected(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let again = match decide_each(&app, &visitor, &fields).await {
        Ok(said) => return Ok(done(&app, &back(&fields), &said)),
        Err(again) => again,
    };
    let address = back(&fields).parse().ok();
    let filter = address.and_then(|it| Query::<Filter>::try_from_uri(&it).ok());
    let problem = again.problem.clone();
    let page = list_page(&app, &visitor, filter.unwrap_or_default().0, again).await;
    page.map_err(|error| problem.unwrap_or(error))
}

/// What was done, or the form with what was not.
async fn decide_each(app: &App, visitor: &Visitor, fields: &Fields) -> Result<String, Again> {
    let refused = |problem| Again::of(fields, problem);
    visitor.must_be_operator().map_err(refused)?;
    let verb = verb_of(fields.get("action").unwrap_or_default()).map_err(refused)?;
    let selected: Vec<_> = fields.all("letter").filter_map(Selected::read).collect();
    if selected.is_empty() {
        return Err(refused(Problem::bad("no dead letter is selected: tick those that are meant")));
    }
    if selected.len() > SELECTED_MAX {
        return Err(refused(Problem::bad(format!("at most {SELECTED_MAX} are selected"))));
    }
    let why = fields.get("why");
    if verb.is_final() && why.is_none() {
        return Err(refused(Problem::no_reason()));
    }
    let (mut said, mut failed, mut ticked) = ("", Vec::new(), Vec::new());
    for (letter, value) in selected.iter().zip(fields.all("letter")) {
        match letter.decide(app, visitor, verb, (why, None, None)).await {
            Ok(kind) => said = verb.done(kind),
            Err(problem) => {
                failed.push(format!("{}: {}", letter.id, problem.detail));
                ticked.push(value.to_owned());
            }
        }
    }
    let done = selected.len() - failed.len();
    if failed.is_empty() {
        let ids: Vec<_> = selected.iter().map(|it| it.id).take(NAMED_MAX).collect();
        if let ([id], 1) = (&*ids, done) {
            return Ok(said_of(id, &format!("Event {id} is {said}."), None));
        }
        let more = if done > ids.len() { ", …" } else { "" };
        let letters = counted(done as u64, "dead letter is", "dead letters are");
        return Ok(format!("{letters} {said}. {}{more}", ids.join(", ")));
    }
    let detail = format!("{done} of {} are done. {}", selected.len(), failed.join(". "));
    Err(Again { ticked, ..refused(Problem::new(StatusCode::CONFLICT, detail)) })
}

/// Where the form was: the filter survives the action.
fn back(fields: &Fields) -> String {
    let back = fields.get("back").filter(|it| it.starts_with("/dead-letters"));
    back.unwrap_or("/dead-letters").to_owned()
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
    ) -> Result<Kind, Problem> {
        if verb.is_final() && why.is_none() {
            return Err(Problem::no_reason());
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
        Ok(source.kind())
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
