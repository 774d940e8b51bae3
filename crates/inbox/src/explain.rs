//! What each consumer did with an event.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use outbox::Table;
use outbox::dead_letters::AuditEntry;
use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connection::Connection;
use crate::error::Error;
use crate::postgres::attended::answered_within;
use crate::postgres::sql::{list, look_up};

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(30);

/// What a consumer knows about an event.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConsumerStory {
    /// Its record, unless that was dropped with its partition, or there never was one.
    pub record: Option<EventRecord>,
    /// The dead letter, if there is one.
    pub dead_letter: Option<Letter>,
    /// What people decided about it, in order.
    pub decisions: Vec<AuditEntry>,
}

/// A record of `inbox_messages`.
#[derive(Debug, Clone, Serialize)]
pub struct EventRecord {
    /// `PROCESSING`, `PROCESSED`, `FAILED`, `DEAD` or `REJECTED`.
    pub status: String,
    /// Attempts that were started.
    pub attempts: i32,
    /// Those of them that ended.
    pub finished_attempts: i32,
    /// When the event was first met.
    pub received_at: Timestamp,
    /// When it was last claimed; never, if its first attempt succeeded in a batch.
    pub claimed_at: Option<Timestamp>,
    /// When it had its effect.
    pub processed_at: Option<Timestamp>,
    /// When it is tried next.
    pub next_attempt_at: Option<Timestamp>,
    /// Who claimed it last.
    pub worker: Option<String>,
    /// How it ended.
    pub outcome: Option<String>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Where it was met.
    pub place: Place,
}

/// A dead letter.
#[derive(Debug, Clone, Serialize)]
pub struct Letter {
    /// What kind of failure it was.
    pub cause: String,
    /// What failed.
    pub reason: String,
    /// Since when.
    pub dead_at: Timestamp,
    /// Where its message was.
    pub place: Place,
}

/// A place in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The stream.
    pub stream: Option<String>,
    /// The sequence.
    pub seq: Option<i64>,
}

/// What the consumers whose tables are beside the outbox `table` did with the event, by consumer; of
/// those that have, or had, a worker.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer; [`Error::Tables`] if there is no inbox.
pub async fn explain(
    connection: &Connection,
    table: &Table,
    event: Uuid,
) -> Result<BTreeMap<String, ConsumerStory>, Error> {
    let [messages, letters, decisions, roles] =
        ["inbox_messages", "inbox_dead_letter", "inbox_decisions", "inbox_roles"]
            .map(|it| table.companion(it));
    let mut stories: BTreeMap<String, ConsumerStory> = BTreeMap::new();
    for row in query(connection, &look_up::records(&messages, &roles), &[&event]).await? {
        stories.entry(row.get("consumer")).or_default().record = Some(record(&row));
    }
    for row in query(connection, &look_up::letters(&letters, &roles), &[&event]).await? {
        stories.entry(row.get("consumer")).or_default().dead_letter = Some(letter(&row));
    }
    for row in query(connection, &list::list_decisions(&decisions), &[&vec![event]]).await? {
        let story = stories.entry(row.get("consumer")).or_default();
        story.decisions.push(crate::dead_letters::audit_entry(&row));
    }
    Ok(stories)
}

/// The consumers whose tables are beside the outbox `table`, of those that have, or had, a worker.
///
/// # Errors
///
/// As [`explain`].
pub async fn consumers(connection: &Connection, table: &Table) -> Result<Vec<String>, Error> {
    let sql = look_up::consumers(&table.companion("inbox_roles"));
    let rows = query(connection, &sql, &[]).await?;
    Ok(rows.iter().map(|it| it.get(0)).collect())
}

async fn query(
    connection: &Connection,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let rows = connection.client.query(sql, parameters);
    answered_within(STATEMENT_MAX, "look for the event in the inbox", rows).await
}

fn record(row: &Row) -> EventRecord {
    EventRecord {
        status: row.get("status"),
        attempts: row.get("attempts"),
        finished_attempts: row.get("finished_attempts"),
        received_at: row.get("received_at"),
        claimed_at: row.get("claimed_at"),
        processed_at: row.get("processed_at"),
        next_attempt_at: row.get("next_attempt_at"),
        worker: row.get("lease_owner"),
        outcome: row.get("outcome"),
        last_error: row.get("last_error"),
        place: place(row),
    }
}

fn letter(row: &Row) -> Letter {
    Letter {
        cause: row.get("cause"),
        reason: row.get("reason"),
        dead_at: row.get("dead_at"),
        place: place(row),
    }
}

fn place(row: &Row) -> Place {
    Place { stream: row.get("stream"), seq: row.get("stream_seq") }
}
