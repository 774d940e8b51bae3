//! One replay, and the plan of a new one.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::work::selection;
use crate::app::{App, change, with};
use crate::fields::Fields;
use crate::frame::{Frame, Place, done, page};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::answers::{Begun, Replay};
use crate::state::figures::short;
use crate::state::plan;
use crate::visitor::Visitor;

#[derive(Template)]
#[template(path = "replay.html")]
struct ReplayPage {
    frame: Frame,
    source: String,
    replay: Replay,
    what: String,
    percent: u64,
}

impl ReplayPage {
    fn figure(&self) -> String {
        format!("replay.{}", self.replay.id)
    }
}

pub(crate) async fn replay(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let of = app.source(&source)?;
    let path = format!("replays/{}", plan::escape(&id));
    let replay: Replay = of.get(&visitor, &path).await?;
    let (what, percent) =
        (selection(&replay), plan::percent(replay.published, replay.events.unwrap_or(0)));
    let frame = Frame::new(&app, &visitor, Place::Work, "Replay");
    page(&ReplayPage { frame, source, replay, what, percent })
}

/// Pause, resume, cancel.
pub(crate) async fn change_replay(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, id, action)): Path<(String, String, String)>,
    fields: Fields,
) -> Result<Response, Problem> {
    if !matches!(&*action, "pause" | "resume" | "cancel") {
        return Err(Problem::not_found("this is nothing that is done with a replay"));
    }
    let path = format!("replays/{}/{action}", plan::escape(&id));
    let body = change(fields.get("why"));
    app.source(&source)?.change::<Value>(&visitor, Method::POST, &path, body).await?;
    let path = format!("/work/replays/{source}/{}", plan::escape(&id));
    Ok(done(&app, &path, &format!("Asked of the relay: {action}.")))
}

/// What is to be published again, as a form says it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    source: String,
    aggregate: String,
    event_type: String,
    since: String,
    until: String,
    event: String,
    per_second: String,
}

impl Wanted {
    fn of(fields: &Fields) -> Self {
        let get = |name| fields.get(name).unwrap_or_default().to_owned();
        Self {
            source: get("source"),
            aggregate: get("aggregate"),
            event_type: get("event_type"),
            since: get("since"),
            until: get("until"),
            event: get("event"),
            per_second: get("per_second"),
        }
    }

    fn is_empty(&self) -> bool {
        let Self { aggregate, event_type, since, until, event, .. } = self;
        [aggregate, event_type, since, until, event].iter().all(|it| it.trim().is_empty())
    }

    /// Which of the events that a source has from a time on.
    fn among(&self) -> Option<String> {
        let event_type = self.event_type.trim();
        let event_type = (!event_type.is_empty()).then(|| format!("the type {event_type}"));
        let aggregate = Some(self.aggregate.trim().to_owned()).filter(|it| !it.is_empty());
        let ids = (!self.event.trim().is_empty()).then(|| "these ids".to_owned());
        let parts: Vec<_> = [aggregate, event_type, ids].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| short(&parts.join(" and "), 120))
    }

    fn rate(&self) -> Result<Option<u32>, Problem> {
        let text = self.per_second.trim();
        let bad = |_| Problem::bad("the rate is a whole number of events a second");
        if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(bad) }
    }

    /// As the API takes it.
    fn body(&self) -> Result<Value, Problem> {
        let mut body = json!({});
        let texts = [
            ("aggregate", &self.aggregate),
            ("event_type", &self.event_type),
            ("since", &self.since),
            ("until", &self.until),
        ];
        for (name, text) in texts {
            let text = text.trim();
            if name == "aggregate" && !text.is_empty() && !plan::is_aggregate(text) {
                return Err(Problem::no_aggregate(text));
            }
            if !text.is_empty() {
                body = with(body, name, &moment(name, text));
            }
        }
        let events: Vec<_> = self.event.split_whitespace().collect();
        if let Some(other) = events.iter().find(|it| !plan::is_id(it)) {
            return Err(Problem::no_id(other));
        }
        if !events.is_empty() {
            body = with(body, "events", &events);
        }
        if let Some(rate) = self.rate()? {
            body = with(body, "per_second", &rate);
        }
        Ok(body)
    }
}

/// A browser's field of a time has no zone and no seconds.
pub(super) fn moment(name: &str, text: &str) -> String {
    let is_time = matches!(name, "since" | "until");
    match (is_time, text.len()) {
        (true, 16) => format!("{text}:00Z"),
        (true, 19) => format!("{text}Z"),
        _ => text.to_owned(),
    }
}

#[derive(Template)]
#[template(path = "replay_plan.html")]
struct PlanPage {
    frame: Frame,
    relays: Vec<String>,
    wanted: Wanted,
    plans: Vec<Planned>,
    problem: Option<Problem>,
}

/// The plan of one stream.
struct Planned {
    stream: String,
    lines: Vec<String>,
    sources: Vec<crate::state::answers::PlanSource>,
    chosen: String,
}

/// The form, and what it would do.
pub(crate) async fn plan_replay(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(mut wanted): Query<Wanted>,
) -> Result<Response, Problem> {
    let relays: Vec<_> = app.sources(Kind::Relay).map(|it| it.key().to_owned()).collect();
    if wanted.source.is_empty() {
        wanted.source = relays.first().cloned().unwrap_or_default();
    }
    let (mut plans, mut problem) = (Vec::new(), None);
    if !wanted.is_empty() {
        match planned(&app, &visitor, &wanted).await {
            Ok(found) => plans = found,
            Err(error) => problem = Some(error),
        }
    }
    let frame = Frame::new(&app, &visitor, Place::Work, "Replay");
    page(&PlanPage { frame, relays, wanted, plans, problem })
}

async fn planned(app: &App, visitor: &Visitor, wanted: &Wanted) -> Result<Vec<Planned>, Problem> {
    let body = with(wanted.body()?, "dry_run", &true);
    let source = app.source(&wanted.source)?;
    let begun: Begun = source.change(visitor, Method::POST, "replays", body).await?;
    let rate = wanted.rate()?;
    let of = |it: crate::state::answers::ReplayPlan| Planned {
        lines: plan::replay(&it, wanted.among().as_deref(), rate),
        stream: it.stream,
        sources: it.sources,
        chosen: it.chosen.unwrap_or_default(),
    };
    Ok(begun.plans.into_iter().map(of).collect())
}

pub(crate) async fn begin_replay(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let wanted = Wanted::of(&fields);
    if wanted.is_empty() {
        return Err(Problem::bad("say which events are to be published again"));
    }
    let why = fields.need("why", "events are published again for a reason: say why")?;
    let body = with(wanted.body()?, "why", &why);
    let begun: Begun =
        app.source(&wanted.source)?.change(&visitor, Method::POST, "replays", body).await?;
    let path = match &*begun.replays {
        [one] => format!("/work/replays/{}/{one}", wanted.source),
        _ => "/work".into(),
    };
    Ok(done(&app, &path, "The replay has begun."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_what_the_api_takes() {
        let wanted = Wanted {
            aggregate: "order:o-1".into(),
            since: "2026-11-26T09:00".into(),
            per_second: "50".into(),
            ..Wanted::default()
        };
        let body = wanted.body().expect("well formed");
        let expected = json!({
            "aggregate": "order:o-1", "since": "2026-11-26T09:00:00Z", "per_second": 50
        });
        assert_eq!(body, expected);
        assert!(Wanted { per_second: "x".into(), ..Wanted::default() }.body().is_err());
    }
}
