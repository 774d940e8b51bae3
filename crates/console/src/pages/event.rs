//! What became of one event.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use hyper::StatusCode;
use serde::Deserialize;

use super::dead_letters::letter_path;
use crate::app::App;
use crate::client::AskError;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::life::{Life, life};
use crate::state::plan::escape;
use crate::state::story_answers::Story;
use crate::visitor::Visitor;

/// Of several relays, which.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OfRelay {
    source: String,
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    story: Story,
    life: Life,
    aggregate: Option<String>,
    event_type: Option<String>,
    letter_path: Option<String>,
}

pub(crate) async fn event(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(of): Query<OfRelay>,
) -> Result<Response, Problem> {
    let path = format!("events/{}", escape(&id));
    let relays =
        app.sources(Kind::Relay).filter(|it| of.source.is_empty() || of.source == it.key());
    let mut last =
        Problem::not_found("the console was given no --relay-url, so it finds no events");
    for relay in relays {
        match relay.get::<Story>(&visitor, &path).await {
            Ok(story) => return shown(&app, &visitor, relay.key(), story),
            Err(error) => {
                let is_unknown = matches!(
                    error,
                    AskError::Refused {
                        status: StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST,
                        ..
                    }
                );
                last = error.into();
                if !is_unknown {
                    break;
                }
            }
        }
    }
    Err(last)
}

fn shown(app: &App, visitor: &Visitor, source: &str, story: Story) -> Result<Response, Problem> {
    let of_row = story.row.as_ref().map(|it| format!("{}:{}", it.aggregate_type, it.aggregate_id));
    let of_letter =
        || story.dead_letter.as_ref().and_then(crate::state::answers::Letter::aggregate);
    let event_type = story.row.as_ref().map(|it| it.event_type.clone());
    let of_letter_type = || story.dead_letter.as_ref().and_then(|it| it.event_type.clone());
    let frame = Frame::new(app, visitor, Place::Events, "Event");
    page(&EventPage {
        frame,
        life: life(&story),
        aggregate: of_row.or_else(of_letter),
        event_type: event_type.or_else(of_letter_type),
        letter_path: story.dead_letter.as_ref().map(|it| letter_path(source, it)),
        story,
    })
}
