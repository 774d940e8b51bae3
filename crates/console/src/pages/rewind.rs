//! A consumer that goes back in its stream.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::replay::moment;
use crate::app::{App, change, with};
use crate::fields::Fields;
use crate::frame::{Frame, Place, done, page};
use crate::problem::Problem;
use crate::state::operator_answers::RewindPlan;
use crate::state::plan::escape;
use crate::visitor::Visitor;

/// Where to, as the query says it, of the plan and of the form that carries it out.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    since: String,
    to_sequence: String,
    again: String,
    aggregate: String,
    event_type: String,
}

impl Wanted {
    /// As the API takes it. Nothing if it says nowhere to go back to.
    fn body(&self) -> Result<Option<Value>, Problem> {
        let mut body = json!({ "again": !self.again.is_empty() });
        let texts = [
            ("since", &self.since),
            ("aggregate", &self.aggregate),
            ("event_type", &self.event_type),
        ];
        for (name, text) in texts.map(|(name, text)| (name, text.trim())) {
            if !text.is_empty() {
                body = with(body, name, &moment(name, text));
            }
        }
        let sequence = self.to_sequence.trim();
        if !sequence.is_empty() {
            let bad = |_| Problem::bad("a sequence is a whole number");
            body = with(body, "to_sequence", &sequence.parse::<u64>().map_err(bad)?);
        }
        let is_aimed = !(sequence.is_empty() && self.since.trim().is_empty());
        Ok(is_aimed.then_some(body))
    }
}

#[derive(Template)]
#[template(path = "rewind.html")]
struct RewindPage {
    frame: Frame,
    name: String,
    path: String,
    wanted: Wanted,
    plan: Option<Result<RewindPlan, Problem>>,
}

/// The form, and what it would do.
pub(crate) async fn plan_rewind(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Problem> {
    let of = app.source(&source)?;
    let planned = async |body: Value| {
        let body = with(body, "dry_run", &true);
        of.change::<RewindPlan>(&visitor, Method::POST, &rewinds_of(&name), body).await
    };
    let plan = match wanted.body() {
        Ok(Some(body)) => Some(planned(body).await),
        Ok(None) => None,
        Err(problem) => Some(Err(problem)),
    };
    let path = format!("/consumers/{}/{}", escape(&source), escape(&name));
    let frame = Frame::new(&app, &visitor, Place::Consumers, "Rewind");
    page(&RewindPage { frame, name, path, wanted, plan })
}

pub(crate) async fn begin_rewind(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
    fields: Fields,
) -> Result<Response, Problem> {
    let mut body = wanted.body()?.ok_or_else(|| Problem::bad("say where to"))?;
    if let Some(why) = fields.get("why") {
        body = with(body, "why", &why);
    }
    let path = rewinds_of(&name);
    app.source(&source)?.change::<Value>(&visitor, Method::POST, &path, body).await?;
    Ok(back(&app, (&source, &name), "The rewind is asked for: its worker goes back."))
}

/// Withdraws what has not begun.
pub(crate) async fn cancel_rewind(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path((source, name)): Path<(String, String)>,
    fields: Fields,
) -> Result<Response, Problem> {
    let body = change(fields.get("why"));
    let path = rewinds_of(&name);
    app.source(&source)?.change::<Value>(&visitor, Method::DELETE, &path, body).await?;
    Ok(back(&app, (&source, &name), "The rewind is withdrawn."))
}

fn rewinds_of(name: &str) -> String {
    format!("consumers/{}/rewinds", escape(name))
}

/// To the consumer's page.
pub(super) fn back(app: &App, (source, name): (&str, &str), said: &str) -> Response {
    done(app, &format!("/consumers/{}/{}", escape(source), escape(name)), said)
}
