//! What is running: replays, and work on many dead letters.

use std::sync::{Arc, PoisonError};

use askama::Template;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::app::App;
use crate::client::AskError;
use crate::fields::Fields;
use crate::frame::{Frame, Place, page};
use crate::operations::Operation;
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::answers::{Progress, Replay};
use crate::state::figures::{count, short};
use crate::state::picture::Picture;
use crate::state::plan::percent;
use crate::visitor::Visitor;

/// A replay in a table.
pub(crate) struct WorkRow {
    pub(crate) source: String,
    pub(crate) replay: Replay,
}

impl WorkRow {
    pub(crate) fn what(&self) -> String {
        selection(&self.replay)
    }

    pub(crate) fn percent(&self) -> u64 {
        percent(self.replay.published, self.replay.events.unwrap_or(0))
    }

    /// The id's beginning is enough to tell replays apart.
    pub(crate) fn number(&self) -> String {
        self.replay.id.chars().take(8).collect()
    }

    pub(crate) fn figure(&self) -> String {
        format!("replay.{}", self.replay.id)
    }

    pub(crate) fn path(&self) -> String {
        format!("/work/replays/{}/{}", self.source, self.replay.id)
    }
}

/// What a replay publishes again, in a few words.
pub(crate) fn selection(it: &Replay) -> String {
    let mut parts = Vec::new();
    if let (Some(kind), Some(id)) = (&it.aggregate_type, &it.aggregate_id) {
        parts.push(short(&format!("{kind}:{id}"), 80));
    }
    parts.extend(it.event_type.as_ref().map(|it| short(it, 80)));
    match it.event_ids.len() {
        0 => {}
        1 => parts.push(format!("event {}", it.event_ids[0])),
        many => parts.push(format!("{} events by id", count(many as u64))),
    }
    let bound = |word: &str, at: &Option<String>| Some(format!("{word} {}", at.as_ref()?));
    parts.extend(bound("since", &it.since));
    parts.extend(bound("until", &it.until));
    parts.extend(bound("from", &it.from_lsn));
    parts.extend(bound("to", &it.to_lsn));
    if parts.is_empty() { "everything".into() } else { parts.join(" ") }
}

pub(crate) fn replay_rows(picture: &Picture) -> Vec<WorkRow> {
    all_replays(picture).into_iter().filter(|it| it.replay.is_under_way()).collect()
}

fn all_replays(picture: &Picture) -> Vec<WorkRow> {
    let of = |relay: &crate::state::picture::Relay| {
        let source = relay.key.clone();
        let row = move |replay: &Replay| WorkRow { source: source.clone(), replay: replay.clone() };
        relay.books.replays.iter().map(row).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = picture.relays.iter().flat_map(of).collect();
    rows.sort_by_key(|it| !it.replay.is_under_way());
    rows
}

/// Work on many dead letters, and how far it is.
struct OperationRow {
    operation: Operation,
    progress: Option<Progress>,
}

impl OperationRow {
    fn percent(&self) -> u64 {
        let done = |it: &Progress| percent(it.done + it.skipped, it.total);
        self.progress.as_ref().map_or(0, done)
    }

    fn state(&self) -> &'static str {
        match &self.progress {
            None => "no answer",
            Some(it) if it.cancelled => "cancelled",
            Some(it) if it.ended => "done",
            Some(_) => "running",
        }
    }

    fn said(&self) -> String {
        let Some(it) = &self.progress else { return "–".into() };
        let skipped = match it.skipped {
            0 => String::new(),
            skipped => format!(", {} skipped", count(skipped)),
        };
        format!("{} of {}{skipped}", count(it.done), count(it.total))
    }
}

#[derive(Template)]
#[template(path = "work.html")]
struct Work {
    frame: Frame,
    replays: Vec<WorkRow>,
    operations: Vec<OperationRow>,
    relays: Vec<String>,
}

pub(crate) async fn work(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    app.watch.freshen().await;
    let known = app.operations.lock().unwrap_or_else(PoisonError::into_inner).all();
    let asked = join_all(known.into_iter().map(|it| ask(&app, &visitor, it))).await;
    let relays = app.sources(Kind::Relay).map(|it| it.key().to_owned()).collect();
    let frame = Frame::new(&app, &visitor, Place::Work, "Work");
    page(&app.watch.see(|picture| Work {
        replays: all_replays(picture),
        operations: asked.into_iter().flatten().collect(),
        relays,
        frame,
    }))
}

async fn ask(app: &App, visitor: &Visitor, operation: Operation) -> Option<OperationRow> {
    let source = app.source(&operation.source).ok()?;
    let path = format!("outbox/dead-letter/operations/{}", operation.number);
    match source.get(visitor, &path).await {
        Ok(progress) => Some(OperationRow { operation, progress: Some(progress) }),
        Err(AskError::Refused { status: StatusCode::NOT_FOUND, .. }) => {
            // The relay was started anew, or has done much since.
            let mut known = app.operations.lock().unwrap_or_else(PoisonError::into_inner);
            known.forget(&operation);
            None
        }
        Err(_) => Some(OperationRow { operation, progress: None }),
    }
}

/// Ends work on many dead letters.
pub(crate) async fn cancel_operation(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, number)): Path<(String, u64)>,
    _: Fields,
) -> Result<Response, Problem> {
    let path = format!("outbox/dead-letter/operations/{number}");
    app.source(&source)?.change::<Value>(&visitor, Method::DELETE, &path, json!({})).await?;
    Ok(Redirect::to(&format!("{}/work", app.settings.base_path)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_said_in_a_few_words() {
        let replay = |json: &str| serde_json::from_str::<Replay>(json).expect("readable");
        let of = |json| selection(&replay(json));
        assert_eq!(of("{}"), "everything");
        assert_eq!(
            of(r#"{"aggregate_type": "order", "aggregate_id": "o-1", "since": "09:00"}"#),
            "order:o-1 since 09:00"
        );
        assert_eq!(of(r#"{"event_ids": ["a", "b"]}"#), "2 events by id");
    }
}
