//! With what relays and inboxes run, and what they delete. It is shown and never changed here.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use serde_json::Value;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::sessions::Role;
use crate::settings::{Kind, Upstream};
use crate::state::figures::{bytes, count, rounded};
use crate::state::operator_answers::{Configuration, Partition, Retained, Setting};
use crate::visitor::Visitor;

/// The settings of a relay or an inbox.
struct ProcessSettings {
    source: String,
    version: String,
    given: Vec<Setting>,
    defaults: Vec<Setting>,
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    is_admin: bool,
    upstreams: Vec<Upstream>,
    processes: Vec<ProcessSettings>,
    kept: Vec<(String, Retained)>,
    problems: Vec<(String, Problem)>,
}

impl Partition {
    fn size(&self) -> String {
        bytes(self.bytes)
    }

    /// PostgreSQL has counted them once, or never.
    fn about(&self) -> String {
        if self.rows < 0.0 { "–".into() } else { count(rounded(self.rows)) }
    }

    /// Without what every range has.
    fn range(&self) -> &str {
        self.range.trim_start_matches("FOR VALUES ")
    }
}

impl Setting {
    fn text(&self) -> String {
        match &self.value {
            None => "–".into(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }
}

pub(crate) async fn settings(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let is_admin = visitor.role == Role::Admin;
    let (kept, mut problems) = app.ask_each(&visitor, |_| true, |_| "retention".into()).await;
    let (told, unread) =
        app.ask_each::<Configuration>(&visitor, |_| is_admin, |_| "config".into()).await;
    problems.extend(unread);
    let of = |(source, told): (String, Configuration)| {
        let is_default = |it: &Setting| it.origin == "default";
        let (defaults, given) = told.settings.into_iter().partition(is_default);
        ProcessSettings { source, version: told.version, given, defaults }
    };
    let processes = told.into_iter().map(of).collect();
    let frame = Frame::new(&app, &visitor, Place::Settings, "Settings");
    let upstreams = app.settings.upstreams.clone();
    page(&SettingsPage { frame, is_admin, upstreams, processes, kept, problems })
}
