//! Finds an event.

use std::cmp::Reverse;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::figures::short;
use crate::state::plan::{escape, is_aggregate, is_id};
use crate::state::story_answers::{Events, FoundEvent};
use crate::visitor::Visitor;

const PAGE: u32 = 50;
/// An event that is not published for longer is in trouble.
const PENDING_SECONDS: i64 = 60;

/// Stands among the states, though an event may have another one, too.
const AT_CONSUMER: &str = "dead_at_consumer";

/// What is looked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Search {
    /// One field for what a person has at hand: an id, or an aggregate with or without its type.
    q: String,
    source: String,
    #[serde(rename = "type")]
    event_type: String,
    state: String,
    cursor: String,
}

impl Search {
    fn id(&self) -> Option<&str> {
        Some(self.q.trim()).filter(|it| is_id(it))
    }

    /// Without the page.
    fn address(&self) -> String {
        let parts = [
            ("q", &self.q),
            ("source", &self.source),
            ("type", &self.event_type),
            ("state", &self.state),
        ];
        let parts = parts.iter().filter(|(_, it)| !it.is_empty());
        parts.map(|(name, it)| format!("{name}={}", escape(it))).collect::<Vec<_>>().join("&")
    }

    fn query(&self) -> String {
        let (at_consumer, yes) = (self.state == AT_CONSUMER, "true".to_owned());
        let parts = [
            (if self.q.contains(':') { "aggregate" } else { "aggregate_id" }, &self.q),
            ("type", &self.event_type),
            if at_consumer { (AT_CONSUMER, &yes) } else { ("state", &self.state) },
            ("cursor", &self.cursor),
        ];
        let mut query = format!("limit={PAGE}");
        for (name, value) in parts.iter().filter(|(_, it)| !it.trim().is_empty()) {
            query.push_str(&format!("&{name}={}", escape(value.trim())));
        }
        query
    }
}

/// What became of an event, as a page says it.
pub(crate) fn in_words(state: &str) -> &str {
    match state {
        "pending" => "waiting",
        "dead" => "dead at the relay",
        AT_CONSUMER => "dead at a consumer",
        other => other,
    }
}

struct EventRow {
    event: FoundEvent,
    source: String,
}

impl EventRow {
    fn aggregate(&self) -> String {
        let (kind, id) = (&self.event.aggregate_type, &self.event.aggregate_id);
        let text = |it: &Option<String>| it.clone().unwrap_or_else(|| "–".into());
        short(&format!("{}:{}", text(kind), text(id)), 80)
    }

    fn kind(&self) -> String {
        short(self.event.event_type.as_deref().unwrap_or("–"), 80)
    }

    fn state(&self) -> &str {
        in_words(&self.event.state)
    }

    /// The consumers of which it is a dead letter.
    fn dead_at(&self) -> Option<String> {
        (!self.event.dead_at.is_empty()).then(|| short(&self.event.dead_at.join(", "), 80))
    }

    /// What was inserted a moment ago is published in a moment.
    fn is_well(&self, now: &Timestamp) -> bool {
        let is_young = |at: Timestamp| now.as_second() - at.as_second() < PENDING_SECONDS;
        match &*self.event.state {
            "published" => true,
            "pending" => self.event.error.is_none() && self.event.occurred_at.is_none_or(is_young),
            _ => false,
        }
    }
}

/// Of those that happened at one time the stream has the order.
fn in_order(rows: &mut [EventRow]) {
    rows.sort_by_key(|it| Reverse((it.event.occurred_at, it.event.stream_seq)));
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    frame: Frame,
    search: Search,
    sources: Vec<String>,
    rows: Vec<EventRow>,
    next: Option<String>,
    problem: Option<Problem>,
}

pub(crate) async fn events(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(mut search): Query<Search>,
) -> Result<Response, Problem> {
    if let Some(id) = search.id() {
        return Ok(Redirect::to(&format!("{}/events/{id}", app.settings.base_path)).into_response());
    }
    let sources: Vec<_> = app.sources(Kind::Relay).map(|it| it.key().to_owned()).collect();
    if search.source.is_empty() {
        search.source = sources.first().cloned().unwrap_or_default();
    }
    let (mut rows, mut next, mut problem) = (Vec::new(), None, None);
    let asked = match app.source(&search.source) {
        Ok(_) if search.q.contains(':') && !is_aggregate(&search.q) => {
            Err(Problem::no_aggregate(&search.q))
        }
        Ok(source) => {
            let path = format!("events?{}", search.query());
            source.get::<Events>(&visitor, &path).await.map_err(Problem::from)
        }
        Err(_) => Err(Problem::bad("the console was given no --relay-url, so it finds no events")),
    };
    match asked {
        Ok(found) => {
            let of = |event| EventRow { event, source: search.source.clone() };
            rows = found.events.into_iter().map(of).collect();
            in_order(&mut rows);
            next = found.next;
        }
        Err(error) => problem = Some(error),
    }
    let frame = Frame::new(&app, &visitor, Place::Events, "Events");
    page(&EventsPage { frame, search, sources, rows, next, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_moment_ago_is_in_no_trouble() {
        let now: Timestamp = "2026-11-26T09:31:07Z".parse().expect("a time");
        let is_well = |state: &str, seconds: i64, error: Option<&str>| {
            let event = FoundEvent {
                state: state.into(),
                occurred_at: Some(now - jiff::SignedDuration::from_secs(seconds)),
                error: error.map(str::to_owned),
                ..FoundEvent::default()
            };
            EventRow { event, source: "relay".into() }.is_well(&now)
        };
        assert!(is_well("pending", 3, None) && is_well("published", 900, None));
        assert!(!is_well("pending", 900, None) && !is_well("dead", 3, None));
        assert!(!is_well("pending", 3, Some("too large")));
    }

    #[test]
    fn events_of_one_time_are_in_the_order_of_the_stream() {
        let row = |second: i64, stream_seq| {
            let occurred_at = Timestamp::from_second(second).ok();
            let event = FoundEvent { occurred_at, stream_seq, ..FoundEvent::default() };
            EventRow { event, source: "relay".into() }
        };
        let all = [(7, Some(3303)), (7, Some(3304)), (9, None), (7, Some(3306)), (7, Some(3302))];
        let mut rows = all.map(|(second, seq)| row(second, seq));
        in_order(&mut rows);
        let order = [None, Some(3306), Some(3304), Some(3303), Some(3302)];
        assert_eq!(rows.map(|it| it.event.stream_seq), order);
    }

    #[test]
    fn an_id_is_told_from_an_aggregate() {
        let search = |q: &str| Search { q: q.into(), ..Search::default() };
        assert!(search(" 0198f3f0-0000-7000-8000-000000000000 ").id().is_some());
        assert!(search("order:o-17").id().is_none());
        assert_eq!(search("order:a/b").query(), "limit=50&aggregate=order%3Aa%2Fb");
        assert_eq!(search("o-17").query(), "limit=50&aggregate_id=o-17");
        let dead = Search { state: AT_CONSUMER.into(), ..Search::default() };
        assert_eq!(dead.query(), "limit=50&dead_at_consumer=true");
    }
}
