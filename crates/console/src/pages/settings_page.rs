//! With what relays and inboxes run. It is shown and never changed here.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use serde_json::Value;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::sessions::Role;
use crate::state::operator_answers::{Configuration, Setting};
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
    processes: Vec<ProcessSettings>,
    problems: Vec<(String, Problem)>,
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
    let (told, problems) =
        app.ask_each::<Configuration>(&visitor, |_| is_admin, |_| "config".into()).await;
    let of = |(source, told): (String, Configuration)| {
        let is_default = |it: &Setting| it.origin == "default";
        let (defaults, given) = told.settings.into_iter().partition(is_default);
        ProcessSettings { source, version: told.version, given, defaults }
    };
    let processes = told.into_iter().map(of).collect();
    let frame = Frame::new(&app, &visitor, Place::Settings, "Settings");
    page(&SettingsPage { frame, is_admin, processes, problems })
}
