//! What is running: replays, and work on many dead letters.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use futures_util::future::join_all;
use hyper::Method;
use serde_json::{Value, json};

use super::dead_letters::{Filter, queue_of};
use super::rewind_rows::RewindRow;
use crate::app::{App, with};
use crate::fields::Fields;
use crate::frame::{Frame, Place, done, page};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::answers::{Letters, Replay, ShardStatus};
use crate::state::figures::{ABSENT, count, latency, short};
use crate::state::operator_answers::{
    Comparisons, Operation, OperationRequest, Operations, Rewinds,
};
use crate::state::picture::Picture;
use crate::state::plan::percent;
use crate::visitor::Visitor;

/// Requeues of which the page says how many such letters are dead since.
const COUNTED_MAX: usize = 5;

/// A replay in a table.
pub(crate) struct WorkRow {
    pub(crate) source: String,
    pub(crate) replay: Replay,
}

impl WorkRow {
    pub(crate) fn what(&self) -> String {
        selection(&self.replay)
    }

    pub(crate) fn percent(&self) -> u64 {
        percent(self.replay.published, self.replay.events.unwrap_or(0))
    }

    /// The id's beginning is enough to tell replays apart.
    pub(crate) fn number(&self) -> String {
        self.replay.id.chars().take(8).collect()
    }

    pub(crate) fn figure(&self) -> String {
        format!("replay.{}", self.replay.id)
    }

    pub(crate) fn path(&self) -> String {
        format!("/work/replays/{}/{}", self.source, self.replay.id)
    }
}

/// What a replay publishes again, in a few words.
pub(crate) fn selection(it: &Replay) -> String {
    let mut parts = Vec::new();
    if let (Some(kind), Some(id)) = (&it.aggregate_type, &it.aggregate_id) {
        parts.push(short(&format!("{kind}:{id}"), 80));
    }
    parts.extend(it.event_type.as_ref().map(|it| short(it, 80)));
    match it.event_ids.len() {
        0 => {}
        1 => parts.push(format!("event {}", it.event_ids[0])),
        many => parts.push(format!("{} events by id", count(many as u64))),
    }
    let bound = |word: &str, at: &Option<String>| Some(format!("{word} {}", at.as_ref()?));
    parts.extend(bound("since", &it.since));
    parts.extend(bound("until", &it.until));
    parts.extend(bound("from", &it.from_lsn));
    parts.extend(bound("to", &it.to_lsn));
    if parts.is_empty() { "everything".into() } else { parts.join(" ") }
}

pub(crate) fn replay_rows(picture: &Picture) -> Vec<WorkRow> {
    all_replays(picture).into_iter().filter(|it| it.replay.is_under_way()).collect()
}

fn all_replays(picture: &Picture) -> Vec<WorkRow> {
    let of = |relay: &crate::state::picture::Relay| {
        let source = relay.key.clone();
        let row = move |replay: &Replay| WorkRow { source: source.clone(), replay: replay.clone() };
        relay.books.replays.iter().map(row).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = picture.relays.iter().flat_map(of).collect();
    rows.sort_by_key(|it| !it.replay.is_under_way());
    rows
}

/// Work on many dead letters.
struct OperationRow {
    source: String,
    kind: Kind,
    it: Operation,
    /// How many such letters came since, of what was requeued and of new events.
    again: Option<u64>,
}

impl OperationRow {
    fn new(source: String, kind: Kind, it: Operation) -> Self {
        Self { source, kind, it, again: None }
    }

    fn what(&self) -> String {
        let OperationRequest { action, filter, consumer, first, rate, .. } = &self.it.request;
        let aggregate = filter.aggregate.as_ref().map(|it| format!("{}:{}", it.kind, it.id));
        let parts = [
            consumer.clone(),
            aggregate,
            filter.event_type.clone(),
            filter.reason.as_ref().map(|it| format!("reason contains “{}”", it.trim())),
            rate.map(|it| format!("{it}/s")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().map(|it| short(&it, 80)).collect();
        let first =
            first.map_or_else(|| "all".into(), |it| format!("the first {}", count(it.into())));
        format!("{action} {first}: {}", parts.join(", ")).trim_end_matches(": ").to_owned()
    }

    fn queue(&self) -> &'static str {
        queue_of(self.kind)
    }

    fn took(&self) -> Option<String> {
        let took = self.it.ended_at?.duration_since(self.it.began_at?);
        Some(latency(took.as_secs_f64()))
    }

    fn percent(&self) -> u64 {
        percent(self.it.progress.done + self.it.progress.skipped, self.it.progress.total)
    }

    /// Who requeues a letter has handed it over, and not published or handled it.
    fn state(&self) -> &'static str {
        match (&self.it.progress, &*self.it.request.action) {
            _ if self.it.is_lost => "not known any more",
            (it, _) if it.cancelled => "cancelled",
            (it, _) if !it.ended => "running",
            (_, "requeue") => "requeued",
            (_, "discard") => "discarded",
            (_, "reject") => "rejected",
            _ => "done",
        }
    }

    /// Letters of a requeue that are dead since it began.
    fn dead_since(&self) -> Option<Filter> {
        let OperationRequest { action, filter, consumer, .. } = &self.it.request;
        let aggregate = filter.aggregate.as_ref().map(|it| format!("{}:{}", it.kind, it.id));
        let began_at = self.it.began_at.filter(|_| action == "requeue")?;
        Some(Filter {
            source: self.source.clone(),
            consumer: consumer.clone().unwrap_or_default(),
            reason: filter.reason.clone().unwrap_or_default(),
            aggregate: aggregate.unwrap_or_default(),
            event_type: filter.event_type.clone().unwrap_or_default(),
            since: began_at.to_string(),
            ..Filter::default()
        })
    }

    fn again_path(&self) -> String {
        format!("/dead-letters?{}", self.dead_since().unwrap_or_default().address())
    }

    fn said(&self) -> String {
        let it = &self.it.progress;
        if it.total == 0 && self.it.is_lost {
            return ABSENT.into();
        }
        if it.total == 0 && !it.ended {
            return "counting".into();
        }
        let skipped = match it.skipped {
            0 => String::new(),
            skipped => format!(", {} skipped", count(skipped)),
        };
        format!("{} of {}{skipped}", count(it.done), count(it.total))
    }
}

#[derive(Template)]
#[template(path = "work.html")]
struct Work {
    frame: Frame,
    replays: Vec<WorkRow>,
    operations: Vec<OperationRow>,
    rewinds: Vec<RewindRow>,
    comparisons: Vec<(String, Comparisons)>,
    /// Relays without a stream to compare with.
    away: Vec<String>,
    problems: Vec<(String, Problem)>,
    relays: Vec<String>,
}

pub(crate) async fn work(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    app.watch.freshen().await;
    let path = |kind| format!("{}/dead-letter/operations", queue_of(kind));
    let (told, problems) = app.ask_each::<Operations>(&visitor, |_| true, path).await;
    let relays: Vec<_> = app.sources(Kind::Relay).map(|it| it.key().to_owned()).collect();
    let is_relay = |key: &str| relays.iter().any(|it| it == key);
    let (comparisons, _) = app.ask_each(&visitor, is_relay, |_| "verify".into()).await;
    let (rewinds, _) =
        app.ask_each(&visitor, |it| !is_relay(it) && !app.is_twin(it), |_| "rewinds".into()).await;
    let of_inbox = |(source, told): (String, Rewinds)| {
        told.rewinds.into_iter().map(move |it| RewindRow { source: source.clone(), it })
    };
    let rewinds = rewinds.into_iter().flat_map(of_inbox).collect();
    let row = |(source, told): (String, Operations)| {
        let kind = app.source(&source).map_or(Kind::Relay, |it| it.kind());
        told.operations.into_iter().map(move |it| OperationRow::new(source.clone(), kind, it))
    };
    let mut operations: Vec<_> = told.into_iter().flat_map(row).collect();
    app.watch.see(|picture| {
        let lost = picture.operations().filter(|(_, it)| it.is_lost);
        operations.extend(lost.map(|(source, it)| {
            let kind = app.source(source).map_or(Kind::Relay, |it| it.kind());
            OperationRow::new(source.to_owned(), kind, it.clone())
        }));
    });
    operations.sort_by_key(|row| std::cmp::Reverse(row.it.began_at));
    count_again(&app, &visitor, &mut operations).await;
    let frame = Frame::new(&app, &visitor, Place::Work, "Work");
    page(&app.watch.see(|picture| Work {
        replays: all_replays(picture),
        operations,
        rewinds,
        comparisons,
        away: away(picture),
        problems,
        relays,
        frame,
    }))
}

fn away(picture: &Picture) -> Vec<String> {
    let relays = picture.relays.iter().filter(|it| it.active().any(ShardStatus::is_broker_away));
    relays.map(|it| it.key.clone()).collect()
}

/// What was requeued last and could not be published or handled again.
async fn count_again(app: &App, visitor: &Visitor, rows: &mut [OperationRow]) {
    let newest = rows.iter_mut().take(COUNTED_MAX).map(async |row| {
        let (filter, source) = (row.dead_since()?, app.source(&row.source).ok()?);
        let path = format!("{}/dead-letter?{}", row.queue(), filter.query(0));
        row.again = source.get::<Letters>(visitor, &path).await.ok().map(|it| it.total);
        row.again
    });
    join_all(newest).await;
}

/// Ends work on many dead letters.
pub(crate) async fn cancel_operation(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, number)): Path<(String, u64)>,
    _: Fields,
) -> Result<Response, Problem> {
    let source = app.source(&source)?;
    let path = format!("{}/dead-letter/operations/{number}", queue_of(source.kind()));
    source.change::<Value>(&visitor, Method::DELETE, &path, json!({})).await?;
    Ok(done(&app, "/work", "Cancelled. What was done until now stays."))
}

/// Has a relay compare its table with the stream.
pub(crate) async fn compare(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(source): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let body = with(json!({}), "sample", &fields.number("sample")?);
    app.source(&source)?.change::<Value>(&visitor, Method::POST, "verify", body).await?;
    Ok(done(&app, "/work", "Begun: table and stream are compared."))
}

/// Ends the comparison under way.
pub(crate) async fn cancel_comparison(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(source): Path<String>,
    _: Fields,
) -> Result<Response, Problem> {
    app.source(&source)?.change::<Value>(&visitor, Method::DELETE, "verify", json!({})).await?;
    Ok(done(&app, "/work", "The comparison is cancelled."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_said_in_a_few_words() {
        let replay = |json: &str| serde_json::from_str::<Replay>(json).expect("readable");
        let of = |json| selection(&replay(json));
        assert_eq!(of("{}"), "everything");
        assert_eq!(
            of(r#"{"aggregate_type": "order", "aggregate_id": "o-1", "since": "09:00"}"#),
            "order:o-1 since 09:00"
        );
        assert_eq!(of(r#"{"event_ids": ["a", "b"]}"#), "2 events by id");
    }
}
