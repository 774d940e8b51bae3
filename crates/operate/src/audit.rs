//! The audit as a list: what people decided, and what was done by itself in their place.

use inbox::Connection;
use jiff::Timestamp;
use outbox::Table;
use relay::{Config, Error};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::sql::Store;
use crate::sql::records::select;

/// A question about the list: the entries are meant of which everything that is said is true.
#[derive(Debug, Clone, Default)]
pub struct AuditQuestion {
    /// `requeue`, `discard`, `pause`, …
    pub action: Option<String>,
    /// Part of who did it, in any case.
    pub actor: Option<String>,
    /// Those about this event.
    pub event_id: Option<Uuid>,
    /// Those about this aggregate, as `TYPE:ID`.
    pub aggregate: Option<String>,
    /// Those of then or later.
    pub since: Option<Timestamp>,
    /// Those of before.
    pub until: Option<Timestamp>,
    /// Only those behind it.
    pub after: Option<AuditPlace>,
    /// At most so many.
    pub limit: i64,
}

/// Where an entry is in the list: its time, and its key.
pub type AuditPlace = (Timestamp, String);

/// Something that was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Audited {
    /// When.
    pub at: Timestamp,
    /// What: `requeue`, `discard`, `reject`, `read`, `replay`, `pause`, …
    pub action: String,
    /// By whom.
    pub actor: String,
    /// Through what, if that is known: `http`, `cli`, or `relay`.
    pub via: Option<String>,
    /// What for.
    pub why: Option<String>,
    /// With which event, if it was one.
    pub event_id: Option<Uuid>,
    /// Its aggregate, as `TYPE:ID`, if that is known.
    pub aggregate: Option<String>,
    /// Of which consumer, or with which.
    pub consumer: Option<String>,
    /// Why the event was a dead letter, if it was one.
    pub reason: Option<String>,
    #[serde(skip_serializing)]
    key: String,
}

impl Audited {
    /// Where it is in the list.
    pub fn place(&self) -> AuditPlace {
        (self.at, self.key.clone())
    }
}

/// Some entries, the newest first, of as many of each kind, which the index of its time gives. The
/// parameters are those of [`parameters`].
fn list(kinds: &[&str]) -> String {
    const NEWEST: &str = "ORDER BY at DESC, key COLLATE \"C\" DESC LIMIT $7";
    let some = |entries: &&str| {
        format!(
            "(SELECT * FROM ({entries}) AS entries
              WHERE ($1::text IS NULL OR action = $1)
                  AND ($2::text IS NULL OR position(lower($2) IN lower(actor)) > 0)
                  AND ($3::timestamptz IS NULL OR at >= $3)
                  AND ($4::timestamptz IS NULL OR at < $4)
                  AND ($5::timestamptz IS NULL
                      OR (at, key COLLATE \"C\") < ($5, $6::text COLLATE \"C\"))
                  AND ($8::uuid IS NULL OR event_id = $8)
                  AND ($9::text IS NULL OR aggregate = $9)
              {NEWEST})"
        )
    };
    let kinds = kinds.iter().map(some).collect::<Vec<_>>().join(" UNION ALL ");
    format!("SELECT * FROM ({kinds}) AS entries {NEWEST}")
}

/// Decisions about dead letters, and replays that were asked for.
fn of_outbox(audit: &str, replays: &str) -> String {
    let decisions = format!(
        "SELECT at, action, actor, via, why, event_id,
             aggregate_type || ':' || aggregate_id AS aggregate, NULL::text AS consumer, reason,
             'letter ' || to_char(id, 'FM0000000000000000000') AS key
         FROM {audit}"
    );
    let replays = format!(
        "SELECT asked_at AS at, 'replay' AS action, asked_by AS actor, NULL AS via, reason AS why,
             NULL::uuid AS event_id, aggregate_type || ':' || aggregate_id AS aggregate,
             NULL AS consumer, NULL AS reason, 'replay ' || id AS key
         FROM {replays}"
    );
    list(&[&decisions, &replays])
}

/// Decisions about dead letters, what was wanted of consumers, and how far they were to go back.
fn of_inbox(schema: &str) -> String {
    let decisions = format!(
        "SELECT decided_at AS at, decision AS action, decided_by AS actor, NULL::text AS via,
             reason AS why, message_id AS event_id, NULL::text AS aggregate, consumer,
             failure AS reason, 'letter ' || to_char(id, 'FM0000000000000000000') AS key
         FROM {schema}.inbox_decisions WHERE decision <> 'rewind'"
    );
    let controls = format!(
        "SELECT at, action, actor, via, why, NULL::uuid AS event_id, NULL AS aggregate, consumer,
             NULL AS reason, 'control ' || to_char(id, 'FM0000000000000000000') AS key
         FROM {schema}.inbox_control_audit"
    );
    let rewinds = format!(
        "SELECT requested_at AS at, 'rewind' AS action, requested_by AS actor, NULL AS via,
             reason AS why, NULL::uuid AS event_id,
             aggregate_type || ':' || aggregate_id AS aggregate, consumer, NULL AS reason,
             'rewind ' || to_char(id, 'FM0000000000000000000') AS key
         FROM {schema}.inbox_rewinds"
    );
    list(&[&decisions, &controls, &rewinds])
}

impl AuditQuestion {
    fn parameters(&self) -> [Box<dyn ToSql + Sync + Send + '_>; 9] {
        let Self { action, actor, event_id, aggregate, since, until, after, limit } = self;
        let (at, key) = after.as_ref().map(|it| (it.0, it.1.as_str())).unzip();
        [
            Box::new(action),
            Box::new(actor),
            Box::new(since),
            Box::new(until),
            Box::new(at),
            Box::new(key),
            Box::new(limit),
            Box::new(event_id),
            Box::new(aggregate),
        ]
    }
}

/// What was done with dead letters and replays of the outbox, the newest first.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached, or the outbox is not set up.
pub async fn outbox_audit(
    config: &Config,
    question: &AuditQuestion,
) -> Result<Vec<Audited>, Error> {
    let store = Store::brief(config, "tailpost audit").await?;
    store.check_tables().await?;
    let companion = |name| config.table.companion(name);
    let sql = of_outbox(&companion("outbox_dead_letter_audit"), &companion("tailpost_replays"));
    let parameters = question.parameters();
    let parameters = parameters.each_ref().map(|it| &**it as &(dyn ToSql + Sync));
    store.read("read the audit", &sql, &parameters).await
}

/// What was done with dead letters and consumers of the inbox in the schema of `outbox`.
///
/// # Errors
///
/// If the database refuses, or the inbox is not set up.
pub async fn inbox_audit(
    connection: &Connection,
    outbox: &Table,
    question: &AuditQuestion,
) -> Result<Vec<Audited>, inbox::Error> {
    let sql = inbox::access::as_json(&of_inbox(&outbox.quoted_schema()));
    let parameters = question.parameters();
    let parameters = parameters.each_ref().map(|it| &**it as &(dyn ToSql + Sync));
    select(connection, "read the audit", &sql, &parameters).await
}
