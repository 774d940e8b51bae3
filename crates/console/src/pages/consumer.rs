//! One consumer, and why it waits.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use hyper::Method;
use serde_json::Value;

use super::consumers::{ConsumerRow, consumer_rows};
use super::rewind_rows::RewindRow;
use crate::app::{App, change};
use crate::fields::Fields;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::answers::{Consumer, Decision};
use crate::state::operator_answers::Rewinds;
use crate::state::plan::escape;
use crate::visitor::Visitor;

#[derive(Template)]
#[template(path = "consumer.html")]
struct ConsumerPage {
    frame: Frame,
    row: ConsumerRow,
    /// As the database has it now, or why it does not say.
    record: Result<Consumer, Problem>,
    facts: Vec<(&'static str, String)>,
    rewinds: Vec<RewindRow>,
    history: Vec<Decision>,
    letters_path: String,
}

impl ConsumerPage {
    fn is_paused(&self) -> bool {
        self.record.as_ref().is_ok_and(|it| it.pause.is_some())
    }
}

pub(crate) async fn consumer(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let of = app.source(&source)?;
    app.watch.freshen().await;
    let asked = of.get::<Consumer>(&visitor, &format!("consumers/{}", escape(&name))).await;
    let record = asked.map_err(Problem::from);
    // The page is whole without them.
    let rewinds: Rewinds = of.get(&visitor, "rewinds").await.unwrap_or_default();
    let rewinds = rewinds.rewinds.into_iter().filter(|it| it.consumer == name);
    let rewinds = rewinds.map(|it| RewindRow { source: source.clone(), it }).collect();
    let frame = Frame::new(&app, &visitor, Place::Consumers, &name);
    let now = frame.now;
    let row = app.watch.see(|picture| {
        let rows = consumer_rows(picture, now).into_iter();
        rows.into_iter().find(|it| it.view.source == source && it.view.name == name)
    });
    let Some(mut row) = row else {
        return Err(record
            .err()
            .unwrap_or_else(|| Problem::not_found("no consumer has this name")));
    };
    // What was asked just now is newer than what the poller has.
    row.view.record = record.as_ref().ok().cloned().or(row.view.record);
    let history = record.as_ref().map(|it| it.history.clone()).unwrap_or_default();
    let letters_path = format!("/dead-letters?source={source}&consumer={}", escape(&name));
    let facts = facts(&row, &frame);
    page(&ConsumerPage { frame, row, record, facts, rewinds, history, letters_path })
}

fn facts(row: &ConsumerRow, frame: &Frame) -> Vec<(&'static str, String)> {
    use crate::state::figures::{clock, counted};
    let mut facts = Vec::new();
    if let Some(status) = &row.view.status {
        let pending =
            status.pending.map_or_else(|| "unknown".into(), |it| counted(it, "event", "events"));
        facts.push(("Not delivered yet", pending));
        facts.push(("In the worker's memory", counted(status.held, "event", "events")));
        facts.push((
            "Aggregates at work or waiting",
            counted(status.lanes, "aggregate", "aggregates"),
        ));
        facts.push((
            "Processed since its start",
            counted(status.counts.processed, "event", "events"),
        ));
        facts.push(("Attempts to repeat", counted(status.counts.retried, "event", "events")));
    }
    if let Some(worker) = row.view.record.as_ref().and_then(|it| it.worker.as_ref()) {
        facts.push(("Worker", worker.owner.clone()));
        if let Some(at) = worker.acquired_at {
            facts.push(("It has the role since", clock(at, frame.now)));
        }
        facts.extend(worker.went_back.clone().map(|it| ("Went back", it)));
    }
    facts
}

/// Pause, resume, close the breaker.
pub(crate) async fn change_consumer(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name, action)): Path<(String, String, String)>,
    fields: Fields,
) -> Result<Response, Problem> {
    let verb = match &*action {
        "pause" => "pause",
        "resume" => "resume",
        "close-breaker" => "breaker/close",
        _ => return Err(Problem::not_found("this is nothing that is done with a consumer")),
    };
    let path = format!("consumers/{}/{verb}", escape(&name));
    let body = change(fields.get("why"));
    app.source(&source)?.change::<Value>(&visitor, Method::POST, &path, body).await?;
    let back = fields.get("back").filter(|it| *it == "/").map_or_else(
        || format!("/consumers/{}/{}", escape(&source), escape(&name)),
        |_| "/".to_owned(),
    );
    let back = format!("{}{back}", app.settings.base_path);
    Ok(Redirect::to(&back).into_response())
}
