//! `/api/v1/audit`: who did what.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use operate::audit::{AuditQuestion, Audited};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::api::{Asked, LIMIT, LIMIT_MAX, json, limit};
use super::cursor;
use super::openapi::{Api, Operation};
use super::problem::ApiError;
use crate::output::Versioned;

/// Reads the list.
pub(super) type Audit =
    Arc<dyn Fn(AuditQuestion) -> BoxFuture<'static, anyhow::Result<Vec<Audited>>> + Send + Sync>;

/// Which entries are asked for, in the query.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    /// What was done, such as `discard`
    action: Option<String>,
    /// In who did it, in any case
    actor: Option<String>,
    /// About this event
    event: Option<Uuid>,
    /// About this aggregate, as TYPE:ID: an inbox knows that of rewinds alone
    aggregate: Option<String>,
    /// Done then or later
    since: Option<Timestamp>,
    /// Done before
    until: Option<Timestamp>,
    /// Entries of a page
    #[schemars(range(max = LIMIT_MAX), extend("default" = LIMIT))]
    limit: Option<u32>,
    /// `next` of the page before
    cursor: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Entries {
    entries: Vec<Audited>,
    next: Option<String>,
}

pub(super) fn routes<S: Clone + Send + Sync + 'static>(audit: Audit) -> Api<S> {
    let list = Operation::get("/api/v1/audit", "Says who did what, the newest first")
        .query::<AuditQuery>()
        .answers::<Versioned<Entries>>(200, "A page");
    Api::new().on(list, show).with_state(audit)
}

async fn show(
    State(audit): State<Audit>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Response, ApiError> {
    let AuditQuery { action, actor, event: event_id, aggregate, .. } = query;
    let AuditQuery { since, until, limit: most, cursor, .. } = query;
    let (after, most) = (cursor::decode(cursor.as_deref())?, limit(most)?);
    let limit = i64::from(most) + 1;
    let question = AuditQuestion { action, actor, event_id, aggregate, since, until, after, limit };
    let mut entries = audit(question).await?;
    let next = cursor::end_page(&mut entries, most, Audited::place)?;
    json(&Entries { entries, next })
}
