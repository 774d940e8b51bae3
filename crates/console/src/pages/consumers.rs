//! Who is behind.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::live_figures::of_consumer;
use crate::state::needs::{consumer_path, why_behind};
use crate::state::picture::{ConsumerView, Picture};
use crate::visitor::Visitor;

/// Why a consumer without a worker does nothing.
const NOBODY: &str = "nobody works on it: no process has run it for a while, so nothing is handled. \
                      `tailpost inbox run` starts one";
/// And what is said of one that nobody is asked about.
const SILENT: &str = "no process of its inbox answers: what is shown is what was last heard";

/// A consumer in a table. Its figures are found by their names.
pub(crate) struct ConsumerRow {
    pub(crate) view: ConsumerView,
    pub(crate) path: String,
    /// Why it does not work, if it does not.
    pub(crate) why: Option<String>,
    /// When its handler is tried next.
    pub(crate) probe: Option<Timestamp>,
}

impl ConsumerRow {
    fn new(view: ConsumerView, picture: &Picture, now: Timestamp) -> Self {
        let path = consumer_path(&view);
        let worker = view.record.as_ref().and_then(|it| it.worker.as_ref());
        let reason = view.status.as_ref().and_then(|it| it.paused.clone());
        let reason = reason.or_else(|| worker?.reason.clone()).or_else(|| view.unready.clone());
        let probe = view.status.as_ref().and_then(|it| it.handler.next_probe_at);
        let probe = probe.filter(|_| view.state() == "breaker open");
        let why = match view.state() {
            "working" => None,
            "behind" => Some(why_behind(&view, picture, now)),
            "no worker" => Some(NOBODY.into()),
            "no answer" => Some(SILENT.into()),
            _ => reason,
        };
        Self { why, probe, path, view }
    }

    pub(crate) fn figure(&self, what: &str) -> String {
        of_consumer(&self.view, what)
    }

    pub(crate) fn is_well(&self) -> bool {
        self.view.state() == "working"
    }

    /// The worker and those that would take over.
    pub(crate) fn worker(&self) -> String {
        let is_there = self.view.has_worker() && !self.view.is_unanswered;
        let worker = self.view.worker().filter(|_| is_there);
        let worker = worker.map_or_else(|| "–".into(), |it| format!("process {it}"));
        match self.view.standbys {
            0 => worker,
            1 => format!("{worker}, 1 standby"),
            others => format!("{worker}, {others} standbys"),
        }
    }
}

pub(crate) fn consumer_rows(picture: &Picture, now: Timestamp) -> Vec<ConsumerRow> {
    picture.consumers().into_iter().map(|it| ConsumerRow::new(it, picture, now)).collect()
}

#[derive(Template)]
#[template(path = "consumers.html")]
struct Consumers {
    frame: Frame,
    consumers: Vec<ConsumerRow>,
    has_inboxes: bool,
}

pub(crate) async fn consumers(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    app.watch.freshen().await;
    let frame = Frame::new(&app, &visitor, Place::Consumers, "Consumers");
    let now = frame.now;
    page(&app.watch.see(|picture| Consumers {
        consumers: consumer_rows(picture, now),
        has_inboxes: !picture.inboxes.is_empty(),
        frame,
    }))
}
