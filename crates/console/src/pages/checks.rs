//! What `/readyz` and the doctor find.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::operator_answers::{Check, Doctor};
use crate::state::picture::{Picture, Process};
use crate::visitor::Visitor;

/// A process, and why it is not ready, if it is not.
struct ReadyRow {
    address: String,
    reason: Option<String>,
}

/// What the doctor of a relay or an inbox says.
struct Visit {
    source: String,
    at: Option<Timestamp>,
    /// The worst first.
    findings: Vec<Check>,
    /// What could not be looked at, by why not.
    skipped: Vec<(String, Vec<Check>)>,
    /// What is as it should be.
    sound: Vec<Check>,
}

#[derive(Template)]
#[template(path = "checks.html")]
struct ChecksPage {
    frame: Frame,
    ready: Vec<ReadyRow>,
    visits: Vec<Visit>,
    problems: Vec<(String, Problem)>,
}

pub(crate) async fn checks(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let (told, problems) = app.ask_each::<Doctor>(&visitor, |_| true, |_| "doctor".into()).await;
    app.watch.freshen().await;
    let ready = app.watch.see(ready_rows);
    let frame = Frame::new(&app, &visitor, Place::Checks, "Checks");
    let visits = told.into_iter().map(|(source, doctor)| Visit::new(source, doctor)).collect();
    page(&ChecksPage { frame, ready, visits, problems })
}

impl Visit {
    fn new(source: String, doctor: Doctor) -> Self {
        let (sound, mut findings): (Vec<_>, Vec<_>) =
            doctor.checks.into_iter().partition(|it| it.severity == "ok");
        findings.sort_by_key(|it| it.severity != "error");
        let mut skipped: Vec<(String, Vec<Check>)> = Vec::new();
        for it in findings.extract_if(.., |it| it.severity == "skipped") {
            match skipped.iter_mut().find(|(why, _)| *why == it.evidence) {
                Some((_, alike)) => alike.push(it),
                None => skipped.push((it.evidence.clone(), vec![it])),
            }
        }
        Self { source, at: doctor.checked_at, findings, skipped, sound }
    }
}

fn ready_rows(picture: &Picture) -> Vec<ReadyRow> {
    fn row<S>(process: &Process<S>) -> ReadyRow {
        let ready = &process.ready;
        let of_consumers = ready.consumers.iter().filter(|(_, it)| !it.ready);
        let of_consumers = of_consumers
            .map(|(name, it)| format!("{name}: {}", it.reason.as_deref().unwrap_or("not ready")));
        let all: Vec<_> = ready.reason.iter().cloned().chain(of_consumers).collect();
        let reason = match process.is_up() {
            false => Some("it does not answer".into()),
            true if ready.ready => None,
            true if all.is_empty() => Some("not ready".into()),
            true => Some(all.join("; ")),
        };
        ReadyRow { address: process.address.clone(), reason }
    }
    let relays = picture.relays.iter().flat_map(|it| &it.processes).map(row);
    relays.chain(picture.inboxes.iter().flat_map(|it| &it.processes).map(row)).collect()
}
