//! Who did what.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::audit_pages::{Merge, Pages, Places, Row};
use super::replay::moment;
use crate::app::{App, Source};
use crate::client::Client;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::figures::{count, short};
use crate::state::plan::{escape, is_id};
use crate::visitor::Visitor;

/// Rows of a page.
const ROWS: usize = 50;

/// What people look for. The lists have more.
const ACTIONS: [&str; 13] = [
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
    "unread",
];

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Search {
    source: String,
    action: String,
    actor: String,
    /// An event's id, or an aggregate.
    about: String,
    since: String,
    until: String,
    /// As [`Places`].
    cursor: String,
}

impl Search {
    fn parts(&self, about: &str, since: &str) -> String {
        let parts = [
            ("action", &*self.action),
            ("actor", &self.actor),
            (about, &self.about),
            ("since", since),
        ];
        let parts = parts.iter().filter(|(_, it)| !it.trim().is_empty());
        parts.map(|(name, it)| format!("&{name}={}", escape(it.trim()))).collect()
    }

    /// As the API takes it, for entries of before.
    pub(super) fn query(&self, until: &str) -> String {
        let until = if until.is_empty() { moment("until", &self.until) } else { until.to_owned() };
        let until = if until.is_empty() { until } else { format!("&until={}", escape(&until)) };
        let about = if is_id(self.about.trim()) { "event" } else { "aggregate" };
        format!("{}{until}", self.parts(about, &moment("since", &self.since)))
    }

    fn is_empty(&self) -> bool {
        self.source.is_empty() && self.query("").is_empty()
    }

    /// Without the page.
    fn address(&self) -> String {
        let (source, until) = (escape(&self.source), escape(&self.until));
        format!("source={source}{}&until={until}", self.parts("about", &self.since))
    }

    /// The same of other days, by their names.
    fn days(&self, now: &Timestamp) -> [(&'static str, String); 3] {
        let day = |ago: i64| {
            (*now - SignedDuration::from_hours(24 * ago)).strftime("%FT00:00").to_string()
        };
        let some = [
            ("Today", day(0), String::new()),
            ("Yesterday", day(1), day(0)),
            ("7 days", day(6), String::new()),
        ];
        some.map(|(name, since, until)| (name, Self { since, until, ..self.clone() }.address()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_from_midnight_to_midnight_and_keeps_what_else_is_looked_for() {
        let search = Search { about: "order:o-17".into(), ..Search::default() };
        let now: Timestamp = "2026-11-26T09:31:07Z".parse().expect("a time");
        let [today, yesterday, _] = search.days(&now);
        let begins = "source=&about=order%3Ao-17&since=2026-11-26T00%3A00&until=";
        assert_eq!(today, ("Today", begins.to_owned()));
        assert!(yesterday.1.ends_with("&since=2026-11-25T00%3A00&until=2026-11-26T00%3A00"));
        assert_eq!(search.query(""), "&aggregate=order%3Ao-17");
        let of_event = Search { about: format!(" {} ", "0".repeat(36)), ..Search::default() };
        assert!(of_event.query("").starts_with("&event=000"));
    }
}
