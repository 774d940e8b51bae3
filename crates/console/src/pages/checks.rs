//! What `/readyz` and the doctor find.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::needs::of_servers;
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
    /// Some are not known yet: the page is loaded again.
    is_under_way: bool,
}

pub(crate) async fn checks(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let (told, mut problems) =
        app.ask_each::<Doctor>(&visitor, |_| true, |_| "doctor".into()).await;
    let asked = problems.len();
    problems.retain(|(_, it)| !it.detail.contains("have not ended"));
    let is_under_way = problems.len() < asked;
    app.watch.freshen().await;
    let ready = app.watch.see(|it| ready_rows(it, Timestamp::now()));
    let frame = Frame::new(&app, &visitor, Place::Checks, "Checks");
    let visits = told.into_iter().map(|(source, doctor)| Visit::new(source, doctor)).collect();
    page(&ChecksPage { frame, ready, visits, problems, is_under_way })
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

fn ready_rows(picture: &Picture, now: Timestamp) -> Vec<ReadyRow> {
    /// A process calls itself ready for a while: it knows sooner what is away.
    fn row<S>(process: &Process<S>, newer: Option<String>) -> ReadyRow {
        let ready = &process.ready;
        let of_consumers = ready.consumers.iter().filter(|(_, it)| !it.ready);
        let of_consumers = of_consumers
            .map(|(name, it)| format!("{name}: {}", it.reason.as_deref().unwrap_or("not ready")));
        let all: Vec<_> = ready.reason.iter().cloned().chain(of_consumers).collect();
        let reason = match process.is_up() {
            false => Some("it does not answer".into()),
            true if ready.ready => newer,
            true if all.is_empty() => Some("not ready".into()),
            true => Some(all.join("; ")),
        };
        ReadyRow { address: process.address.clone(), reason }
    }
    let relays = picture.relays.iter().flat_map(|it| &it.processes).map(|it| {
        let mut active = it.status.shards().iter().filter(|it| it.role == "active");
        row(it, active.find_map(|it| of_servers("", it, now)).map(|it| it.what))
    });
    let inboxes = picture.inboxes.iter().flat_map(|it| &it.processes).map(|it| {
        let mut paused = it.status.consumers.values().filter_map(|it| it.paused.clone());
        row(it, paused.find(|it| it.starts_with("the broker is away")))
    });
    relays.chain(inboxes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::picture::tests::{at, picture, with_relay};

    #[test]
    fn a_relay_that_calls_itself_ready_is_not_while_its_broker_is_away() {
        let reason = |is_there| {
            let round = with_relay(|it, _| it.nats_connected = is_there);
            ready_rows(&picture([round]), at(1)).swap_remove(0).reason
        };
        assert_eq!(reason(true), None);
        assert_eq!(reason(false).as_deref(), Some("NATS is away: nothing is published"));
    }
}
