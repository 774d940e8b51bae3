//! One event of a consumer: it counts as processed since its effect was made by other means, or is
//! tried at once.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::came_of_it::said_of;
use super::rewind::back;
use crate::app::{App, change};
use crate::fields::Fields;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::life::{Step, branch};
use crate::state::plan::{escape, is_id};
use crate::state::story_answers::Marking;
use crate::visitor::Visitor;

/// Which event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Which {
    event: String,
}

/// What is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Mark,
    Try,
}

impl Deed {
    /// As paths have it.
    fn of(name: &str) -> Result<Self, Problem> {
        match name {
            "mark-processed" => Ok(Self::Mark),
            "try-now" => Ok(Self::Try),
            _ => Err(Problem::not_found("this is nothing that is done with an event")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mark => "mark-processed",
            Self::Try => "try-now",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Mark => "Mark an event as processed",
            Self::Try => "Try an event now",
        }
    }
}

#[derive(Template)]
#[template(path = "one_event.html")]
struct OneEvent {
    frame: Frame,
    deed: Deed,
    name: String,
    path: String,
    event: String,
    plan: Option<Result<Vec<Step>, Problem>>,
    /// Of an event that is to be tried: no attempt of it waits.
    is_vain: bool,
}

/// The form, and what is known of the event.
pub(crate) async fn plan(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name, deed)): Path<(String, String, String)>,
    Query(which): Query<Which>,
) -> Result<Response, Problem> {
    let (of, event) = (app.source(&source)?, which.event.trim().to_owned());
    let deed = Deed::of(&deed)?;
    let mut is_vain = false;
    let plan = if event.is_empty() {
        None
    } else if !is_id(&event) {
        Some(Err(Problem::no_id(&event)))
    } else {
        let (path, body) = (path_of(&name, &event, Deed::Mark), json!({ "dry_run": true }));
        let known = of.change::<Marking>(&visitor, Method::POST, &path, body).await;
        let fails =
            |it: &Marking| it.before.record.as_ref().is_some_and(|it| it.status == "FAILED");
        is_vain = deed == Deed::Try && known.as_ref().is_ok_and(|it| !fails(it));
        Some(known.map(|it| branch(&name, &it.before).steps))
    };
    let path = format!("/consumers/{}/{}", escape(&source), escape(&name));
    let frame = Frame::new(&app, &visitor, Place::Consumers, deed.title());
    page(&OneEvent { frame, deed, name, path, event, plan, is_vain })
}

pub(super) async fn carry_out(
    app: &App,
    visitor: &Visitor,
    (source, name, deed): (String, String, String),
    which: &Which,
    fields: &Fields,
) -> Result<Response, Problem> {
    let deed = Deed::of(&deed)?;
    let why = match deed {
        Deed::Mark => {
            Some(fields.need("why", "an event counts as processed for a reason: say why")?)
        }
        Deed::Try => fields.get("why"),
    };
    let path = path_of(&name, which.event.trim(), deed);
    let asked = app.source(&source)?;
    let done = asked.change::<Value>(visitor, Method::POST, &path, change(why)).await;
    let said = match (deed, done) {
        // It was handled meanwhile, or is a dead letter: the link says what.
        (Deed::Try, Err(problem)) if problem.status == StatusCode::CONFLICT => {
            "There was nothing to try: the event does not wait any more."
        }
        (_, Err(problem)) => return Err(problem),
        (Deed::Mark, Ok(_)) => {
            "Marked: the event counts as processed, and later ones of its aggregate go on."
        }
        (Deed::Try, Ok(_)) => "The event is tried now.",
    };
    let at = (deed == Deed::Try).then_some((&*source, &*name));
    let said = said_of(which.event.trim(), said, at);
    Ok(back(app, (&source, &name), &said))
}

fn path_of(name: &str, event: &str, deed: Deed) -> String {
    format!("consumers/{}/events/{}/{}", escape(name), escape(event), deed.name())
}
