//! One dead letter.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::dead_letters::{Again, Filter, LetterRow, queue_of};
use crate::app::{App, Source};
use crate::fields::Fields;
use crate::frame::{Frame, Place, page_with};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::answers::{Letter, LetterDetail, Letters};
use crate::state::plan::{escape, is_id};
use crate::visitor::Visitor;

/// Dead letters of the same aggregate that are listed.
const NEIGHBOURS: u32 = 20;

/// Of several consumers that have the event as a dead letter, which.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Whose {
    pub(crate) consumer: String,
    /// The list that it was found in, by its address.
    pub(crate) from: String,
}

impl Whose {
    fn of(fields: &Fields) -> Self {
        let get = |name| fields.raw(name).unwrap_or_default().to_owned();
        let back = get("back");
        let from = back.split_once('?').map_or("", |(_, from)| from).to_owned();
        Self { consumer: get("consumer"), from }
    }

    fn query(&self) -> String {
        if self.consumer.is_empty() {
            String::new()
        } else {
            format!("consumer={}", escape(&self.consumer))
        }
    }
}

#[derive(Template)]
#[template(path = "letter.html")]
struct LetterPage {
    frame: Frame,
    source: String,
    is_outbox: bool,
    id: String,
    detail: LetterDetail,
    letter: Option<Letter>,
    neighbours: Vec<LetterRow>,
    /// Payload and headers, if they were asked for.
    content: Option<Content>,
    /// The address of the list.
    back: String,
    again: Again,
}

struct Content {
    payload: String,
    /// As somebody has edited it.
    edited: String,
    is_json: bool,
    headers: String,
}

impl LetterPage {
    fn aggregate(&self) -> String {
        self.letter.as_ref().and_then(Letter::aggregate).unwrap_or_else(|| "–".into())
    }

    /// Whether somebody who may change anything may change the payload, if it is JSON.
    fn is_editable(&self) -> bool {
        self.is_outbox && self.is_undecided() && self.frame.may_change
    }

    /// What else of its aggregate is a dead letter, and what only waits behind one.
    fn kin(&self) -> Vec<(&'static str, Vec<&LetterRow>)> {
        let (wait, dead): (Vec<_>, Vec<_>) =
            self.neighbours.iter().partition(|it| it.letter.blocked_by.is_some());
        let all = [("Also dead of", dead), ("Waiting, of", wait)];
        all.into_iter().filter(|(_, rows)| !rows.is_empty()).collect()
    }

    fn is_undecided(&self) -> bool {
        self.detail.state == "dead"
    }
}

pub(crate) async fn letter(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, id)): Path<(String, String)>,
    Query(whose): Query<Whose>,
) -> Result<Response, Problem> {
    show(&app, &visitor, (&source, &id), &whose, (false, Again::default())).await
}

/// The same with payload and headers. A form, so that nobody gets there by following a link.
pub(crate) async fn letter_content(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, id)): Path<(String, String)>,
    fields: Fields,
) -> Result<Response, Problem> {
    visitor.must_be_operator()?;
    let shown = (true, Again::default());
    show(&app, &visitor, (&source, &id), &Whose::of(&fields), shown).await
}

/// Where a form of it was refused, and the page is loaded again.
pub(crate) async fn again(
    State(app): State<Arc<App>>,
    Path((source, id, _)): Path<(String, String, String)>,
) -> Response {
    let (source, id) = (escape(&source), escape(&id));
    let path = format!("{}/dead-letters/{source}/{id}", app.settings.base_path);
    Redirect::to(&path).into_response()
}

/// The page with a form of it that was not carried out.
pub(super) async fn show_again(
    app: &App,
    visitor: &Visitor,
    letter: (&str, &str),
    fields: &Fields,
    again: Again,
) -> Result<Response, Problem> {
    let has_content = again.payload.is_some();
    show(app, visitor, letter, &Whose::of(fields), (has_content, again)).await
}

async fn show(
    app: &App,
    visitor: &Visitor,
    (key, id): (&str, &str),
    whose: &Whose,
    (has_content, mut again): (bool, Again),
) -> Result<Response, Problem> {
    let source = app.source(key)?;
    if !is_id(id) {
        return Err(Problem::no_id(id));
    }
    let queue = queue_of(source.kind());
    let asks = if has_content { "payload=true&" } else { "" };
    let path = format!("{queue}/dead-letter/{}?{asks}{}", escape(id), whose.query());
    let detail: LetterDetail = source.get(visitor, path.trim_end_matches(['?', '&'])).await?;
    let letter = detail.dead_letter.clone();
    // What is decided has no buttons, and no advice to press them.
    if let Some(problem) = again.problem.as_mut().filter(|_| detail.state != "dead") {
        problem.hint = None;
    }
    let neighbours = match &letter {
        Some(letter) => neighbours(&source, visitor, letter, id).await,
        None => Vec::new(),
    };
    let content = has_content.then(|| content(&detail, again.payload.as_ref()));
    let frame = Frame::new(app, visitor, Place::DeadLetters, "Dead letter");
    let sign = if whose.from.is_empty() { "" } else { "?" };
    let shown = LetterPage {
        frame,
        source: key.to_owned(),
        is_outbox: source.kind() == Kind::Relay,
        id: id.to_owned(),
        letter,
        neighbours,
        content,
        detail,
        back: format!("/dead-letters{sign}{}", whose.from),
        again,
    };
    page_with(shown.again.status(), &shown)
}

/// What else of its aggregate is dead: it matters for the order.
async fn neighbours(
    source: &Source<'_>,
    visitor: &Visitor,
    letter: &Letter,
    id: &str,
) -> Vec<LetterRow> {
    let Some(aggregate) = letter.aggregate() else { return Vec::new() };
    let filter = Filter {
        source: source.key().to_owned(),
        consumer: letter.consumer.clone().unwrap_or_default(),
        aggregate,
        ..Filter::default()
    };
    let query = filter.address();
    let query = query.split_once('&').map_or("", |(_, rest)| rest);
    let path = format!("{}/dead-letter?limit={NEIGHBOURS}&{query}", queue_of(source.kind()));
    // The page is whole without them.
    let found: Letters = source.get(visitor, &path).await.unwrap_or_default();
    let others = found.dead_letters.into_iter().filter(|it| it.id != id);
    let row = |letter| LetterRow { source: source.key().to_owned(), letter, from: String::new() };
    others.map(row).collect()
}

fn content(detail: &LetterDetail, edited: Option<&String>) -> Content {
    let json = detail.payload.as_ref().map(|it| it.get().to_owned());
    let headers = detail.headers.as_ref().map_or_else(|| "{}".into(), |it| it.get().to_owned());
    let is_json = json.is_some();
    let payload = json.or_else(|| detail.payload_base64.clone()).unwrap_or_default();
    Content { is_json, edited: edited.unwrap_or(&payload).clone(), payload, headers }
}
