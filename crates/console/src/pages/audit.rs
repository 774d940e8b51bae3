//! Who did what.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;

use super::audit_pages::{Merge, Pages, Places, Row};
use super::replay::moment;
use crate::app::{App, Source};
use crate::client::Client;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::figures::{count, short};
use crate::state::plan::escape;
use crate::visitor::Visitor;

/// Rows of a page.
const ROWS: usize = 50;

/// What people look for. The lists have more.
const ACTIONS: [&str; 12] = [
    "requeue",
    "discard",
    "reject",
    "mark_processed",
    "try_now",
    "read",
    "replay",
    "rewind",
    "pause",
    "resume",
    "close_breaker",
    "release",
];

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Search {
    source: String,
    action: String,
    actor: String,
    since: String,
    until: String,
    /// As [`Places`].
    cursor: String,
}

impl Search {
    fn parts(&self) -> String {
        let Self { action, actor, since, .. } = self;
        let parts = [("action", action), ("actor", actor), ("since", &moment("since", since))];
        let parts = parts.iter().filter(|(_, it)| !it.trim().is_empty());
        parts.map(|(name, it)| format!("&{name}={}", escape(it.trim()))).collect()
    }

    /// As the API takes it, for entries of before.
    pub(super) fn query(&self, until: &str) -> String {
        let until = if until.is_empty() { moment("until", &self.until) } else { until.to_owned() };
        let until = if until.is_empty() { until } else { format!("&until={}", escape(&until)) };
        format!("{}{until}", self.parts())
    }

    /// Without the page.
    fn address(&self) -> String {
        let (source, until) = (escape(&self.source), escape(&self.until));
        format!("source={source}{}&until={until}", self.parts())
    }
}

impl Row {
    fn what(&self) -> String {
        match self.count {
            1 => {
                let event = || short(self.first.event_id.as_deref().unwrap_or("event"), 80);
                self.first.aggregate.as_deref().map_or_else(event, |it| short(it, 80))
            }
            many => format!("{} events", count(many as u64)),
        }
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    search: Search,
    sources: Vec<String>,
    rows: Vec<Row>,
    /// Where the next page begins.
    next: Option<String>,
    problems: Vec<(String, Problem)>,
}

/// The sources that are searched, one of each database.
pub(super) fn meant<'a>(app: &'a App, search: &Search) -> impl Iterator<Item = Source<'a>> {
    let meant = |it: &&Arc<Client>| {
        search.source == it.key || search.source.is_empty() && !app.is_twin(&it.key)
    };
    app.clients.iter().filter(meant).filter_map(|it| app.source(&it.key).ok())
}

pub(crate) async fn audit(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(search): Query<Search>,
) -> Result<Response, Problem> {
    let places = Places::read(&search.cursor);
    let query = search.query(&places.until);
    let sources = meant(&app, &search);
    let mut merge = Merge::new(sources.filter_map(|it| Pages::behind(it, &places)).collect());
    merge.read(&visitor, &query, ROWS).await;
    let next = merge.places(&places).map(|it| it.to_string());
    let Merge { rows, problems, .. } = merge;
    let sources = app.clients.iter().map(|it| it.key.clone()).collect();
    let frame = Frame::new(&app, &visitor, Place::Audit, "Audit");
    page(&AuditPage { frame, search, sources, rows, next, problems })
}
