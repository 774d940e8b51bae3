//! One consumer, and why it waits.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use hyper::Method;
use jiff::Timestamp;
use serde_json::Value;

use super::consumers::{ConsumerRow, consumer_rows};
use super::one_event::{self, Which};
use super::rewind::back;
use super::rewind_rows::RewindRow;
use crate::app::{App, change};
use crate::fields::Fields;
use crate::frame::{Frame, Place, done, page};
use crate::problem::Problem;
use crate::state::answers::{Consumer, Decision, Failing, HeldUp};
use crate::state::figures::{ABSENT, clock, count, counted, first_line, short};
use crate::state::operator_answers::Rewinds;
use crate::state::picture::ConsumerView;
use crate::state::plan::escape;
use crate::visitor::Visitor;

#[derive(Template)]
#[template(path = "consumer.html")]
struct ConsumerPage {
    frame: Frame,
    row: ConsumerRow,
    /// As the database has it now, or why it does not say.
    record: Result<Consumer, Problem>,
    failing: Vec<FailingRow>,
    /// How many fail.
    failed: u64,
    facts: Vec<(&'static str, String)>,
    rewinds: Vec<RewindRow>,
    history: Vec<Decision>,
    letters_path: String,
}

/// An event that fails and is tried again.
struct FailingRow {
    event_id: String,
    aggregate: Option<String>,
    event_type: String,
    attempts: u64,
    error: String,
    next_attempt_at: Option<Timestamp>,
    /// What is done with one that has no such time.
    now: &'static str,
    waiting: String,
}

fn failing_rows(view: &ConsumerView) -> Vec<FailingRow> {
    let now = match (view.breaker(), view.status.as_ref().map_or(0, |it| it.busy)) {
        (Some("open"), 0) => "when the breaker closes",
        (_, 0) => "soon",
        _ => "at it now",
    };
    let row = |(it, held_up): (&Failing, Option<&HeldUp>)| FailingRow {
        event_id: it.event_id.clone(),
        aggregate: held_up.and_then(|it| it.aggregate.as_deref()).map(|it| short(it, 80)),
        event_type: held_up.and_then(|it| it.event_type.clone()).unwrap_or_default(),
        attempts: it.attempts,
        error: first_line(&it.last_error),
        next_attempt_at: it.next_attempt_at,
        now,
        waiting: held_up.map_or_else(|| ABSENT.into(), |it| count(it.waiting)),
    };
    view.failing().map(row).collect()
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
        let mut rows = consumer_rows(picture, now).into_iter();
        // Another source may stand for this one.
        let is_twin = picture.is_twin(&source);
        rows.find(|it| it.view.name == name && (is_twin || it.view.source == source))
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
    let (facts, failing) = (facts(&row, &frame), failing_rows(&row.view));
    let failed = row.view.record.as_ref().map_or(0, |it| it.failed);
    let shown =
        ConsumerPage { frame, row, record, failing, failed, facts, rewinds, history, letters_path };
    page(&shown)
}

fn facts(row: &ConsumerRow, frame: &Frame) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(status) = &row.view.status {
        let pending =
            status.pending.map_or_else(|| "unknown".into(), |it| counted(it, "event", "events"));
        facts.push(("Not delivered yet", pending));
        facts.push(("In the memory of its workers", counted(status.held, "event", "events")));
        facts.push((
            "Aggregates at work or waiting",
            counted(status.lanes, "aggregate", "aggregates"),
        ));
        facts.push((
            "Processed since its start",
            counted(status.counts.processed, "event", "events"),
        ));
        // What became a dead letter is not tried again, and failed, too.
        let failed = status.counts.retried + status.counts.dead;
        facts.push(("Attempts that failed since its start", count(failed)));
    }
    if let Some(worker) = row.view.record.as_ref().and_then(|it| it.worker.as_ref()) {
        let is_there = worker.is_valid && !row.view.is_unanswered;
        facts.push((if is_there { "Worker" } else { "Last worker" }, worker.owner.clone()));
        if let Some(at) = worker.acquired_at.filter(|_| is_there) {
            facts.push(("It has the role since", clock(at, frame.now)));
        }
        facts.extend(worker.went_back.clone().map(|it| ("Went back", it)));
        facts.extend(worker.unread.clone().map(|it| ("Unread", it)));
    }
    facts
}

/// Pauses, resumes, closes the breaker, or does something with one event.
pub(crate) async fn change_consumer(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name, action)): Path<(String, String, String)>,
    Query(which): Query<Which>,
    fields: Fields,
) -> Result<Response, Problem> {
    let (verb, said) = match &*action {
        "pause" => ("pause", format!("{name} is paused.")),
        "resume" => ("resume", format!("{name} goes on.")),
        "close-breaker" => ("breaker/close", format!("{name} tries its handler again.")),
        _ => {
            let what = (source, name, action);
            return one_event::carry_out(&app, &visitor, what, &which, &fields).await;
        }
    };
    let path = format!("consumers/{}/{verb}", escape(&name));
    let body = change(fields.get("why"));
    app.source(&source)?.change::<Value>(&visitor, Method::POST, &path, body).await?;
    if fields.get("back") == Some("/") {
        return Ok(done(&app, "/", &said));
    }
    Ok(back(&app, (&source, &name), &said))
}
