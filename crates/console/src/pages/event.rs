//! What became of one event.

use std::collections::BTreeSet;
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
use crate::state::figures::counted;
use crate::state::life::{Life, Mark, end_at, end_of_outbox, life};
use crate::state::needs::consumer_path;
use crate::state::picture::Picture;
use crate::state::plan::{escape, is_id};
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
    /// Where the events of its aggregate are.
    siblings: Option<String>,
    ends: Vec<End>,
}

/// What became of it somewhere.
struct End {
    place: String,
    /// The page of the consumer.
    path: Option<String>,
    mark: Mark,
    said: String,
    letter_path: Option<String>,
}

/// In the outbox, and at every consumer that there is.
fn ends(app: &App, source: &str, story: &Story) -> Vec<End> {
    let (mark, said) = end_of_outbox(story);
    let is_published = mark == Mark::Done;
    let letter = story.dead_letter.as_ref().filter(|it| it.discarded_at.is_none());
    let letter_path = letter.map(|it| letter_path(source, it));
    let outbox = End { place: "Outbox and stream".into(), path: None, mark, said, letter_path };
    let views = app.watch.see(Picture::consumers);
    let known = views.iter().map(|it| &it.name).chain(story.consumers.keys());
    let of_consumer = |name: &String| {
        let view = views.iter().find(|it| it.name == *name);
        let (of, story_of) = (view.map(|it| it.source.clone()), story.consumers.get(name));
        let (mark, said) = end_at(story_of).unwrap_or_else(|| {
            let waiting = view.and_then(|it| it.waiting()).filter(|it| *it > 0);
            (Mark::Open, why_unknown(is_published, waiting))
        });
        let is_dead = story_of.is_some_and(|it| it.dead_letter.is_some());
        let letter_path = of
            .filter(|_| is_dead)
            .map(|source| format!("/dead-letters/{source}/{}?consumer={}", story.id, escape(name)));
        End { place: name.clone(), path: view.map(consumer_path), mark, said, letter_path }
    };
    let names: BTreeSet<_> = known.collect();
    [outbox].into_iter().chain(names.into_iter().map(of_consumer)).collect()
}

/// Why a consumer has no record of it.
fn why_unknown(is_published: bool, waiting: Option<u64>) -> String {
    match waiting {
        _ if !is_published => "nothing: it is not published".into(),
        Some(waiting) => {
            let wait = counted(waiting, "event waits", "events wait");
            format!("no record yet: {wait} for this consumer")
        }
        None => "no record: it does not take the event, or has deleted the record since".into(),
    }
}

pub(crate) async fn event(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(of): Query<OfRelay>,
) -> Result<Response, Problem> {
    if !is_id(&id) {
        return Err(Problem::no_id(&id));
    }
    let path = format!("events/{}", escape(&id));
    let relays =
        app.sources(Kind::Relay).filter(|it| of.source.is_empty() || of.source == it.key());
    let mut last =
        Problem::not_found("the console was given no --relay-url, so it finds no events");
    for relay in relays {
        match relay.get::<Story>(&visitor, &path).await {
            Ok(story) => {
                // It knows the consumers.
                app.watch.freshen().await;
                return shown(&app, &visitor, relay.key(), story);
            }
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
    let aggregate = of_row.or_else(of_letter);
    let address = |it: &String| format!("/events?source={source}&q={}", escape(it));
    page(&EventPage {
        frame,
        life: life(&story),
        siblings: aggregate.as_ref().map(address),
        ends: ends(app, source, &story),
        aggregate,
        event_type: event_type.or_else(of_letter_type),
        story,
    })
}
