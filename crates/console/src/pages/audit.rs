//! Who did what.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::figures::short;
use crate::state::operator_answers::{Audit, Audited};
use crate::state::plan::escape;
use crate::visitor::Visitor;

/// Entries that are asked for: work on many has an entry for each.
const PAGE: u32 = 200;

/// What people look for. The lists have more.
const ACTIONS: [&str; 9] = [
    "requeue",
    "discard",
    "reject",
    "mark_processed",
    "read",
    "replay",
    "rewind",
    "pause",
    "resume",
];

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Search {
    source: String,
    action: String,
    actor: String,
    cursor: String,
}

impl Search {
    fn query(&self) -> String {
        let parts = [("action", &self.action), ("actor", &self.actor), ("cursor", &self.cursor)];
        let parts = parts.iter().filter(|(_, it)| !it.trim().is_empty());
        parts.map(|(name, it)| format!("&{name}={}", escape(it.trim()))).collect()
    }

    fn older(&self, next: &str) -> String {
        let of = Self { cursor: next.to_owned(), ..self.clone() };
        format!("source={}{}", escape(&self.source), of.query())
    }
}

/// Entries in a row that differ in their event alone.
struct Row {
    source: String,
    first: Audited,
    count: usize,
}

impl Row {
    fn person(&self) -> &str {
        person(&self.first.actor)
    }

    fn what(&self) -> String {
        match self.count {
            1 => self.first.aggregate.as_deref().map_or_else(|| "event".into(), |it| short(it, 80)),
            many => format!("{many} events"),
        }
    }
}

/// The inbox writes the database's role before the name.
pub(super) fn person(actor: &str) -> &str {
    let inner = actor.strip_suffix(')').and_then(|it| it.split_once(" ("));
    inner.map_or(actor, |(_, name)| name)
}

fn collapse(rows: &mut Vec<Row>, source: &str, entry: Audited) {
    let is_same = |it: &Audited| {
        let of = |it: &Audited| {
            let Audited { action, actor, why, consumer, .. } = it.clone();
            (action, actor, why, consumer, it.event_id.is_some())
        };
        entry.event_id.is_some() && of(it) == of(&entry)
    };
    match rows.last_mut() {
        Some(last) if last.source == source && is_same(&last.first) => last.count += 1,
        _ => rows.push(Row { source: source.to_owned(), first: entry, count: 1 }),
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    search: Search,
    sources: Vec<String>,
    rows: Vec<Row>,
    /// Where the next page of the only source begins.
    next: Option<String>,
    /// There are older ones, of a source that is to be chosen.
    has_more: bool,
    problems: Vec<(String, Problem)>,
}

pub(crate) async fn audit(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(search): Query<Search>,
) -> Result<Response, Problem> {
    let path = format!("audit?limit={PAGE}{}", search.query());
    let of = |key: &str| search.source.is_empty() || search.source == key;
    let (told, problems) = app.ask_each::<Audit>(&visitor, of, |_| path.clone()).await;
    let sources: Vec<_> = app.clients.iter().map(|it| it.key.clone()).collect();
    let is_one = told.len() == 1;
    let has_more = !is_one && told.iter().any(|(_, it)| it.next.is_some());
    let (mut rows, mut next) = (Vec::new(), None);
    for (source, audit) in told {
        audit.entries.into_iter().for_each(|it| collapse(&mut rows, &source, it));
        next = audit.next.filter(|_| is_one);
    }
    rows.sort_by_key(|it| std::cmp::Reverse(it.first.at));
    let frame = Frame::new(&app, &visitor, Place::Audit, "Audit");
    page(&AuditPage { frame, search, sources, rows, next, has_more, problems })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_many_is_one_row_and_decisions_of_two_people_are_two() {
        let entry = |actor: &str| Audited {
            action: "requeue".into(),
            actor: actor.into(),
            event_id: Some("1".into()),
            ..Audited::default()
        };
        let mut rows = Vec::new();
        for actor in ["postgres (ada)", "postgres (ada)", "postgres (bob)"] {
            collapse(&mut rows, "inbox", entry(actor));
        }
        let told: Vec<_> = rows.iter().map(|it| (it.person(), it.what())).collect();
        assert_eq!(told, [("ada", "2 events".into()), ("bob", "event".into())]);
        assert_eq!(person("operator for ada"), "operator for ada");
    }
}
