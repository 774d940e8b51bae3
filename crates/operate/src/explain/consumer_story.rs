//! What each consumer did with an event.

use std::collections::BTreeMap;

use inbox::{Connection, Error};
use jiff::Timestamp;
use outbox::Table;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use servers::describe;
use uuid::Uuid;

use crate::dead_letters::{AuditEntry, FailedAttempt};
use crate::sql::records::{list_letters, look_up_records, query, select};

/// What a consumer knows about an event.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct ConsumerStory {
    /// Its record, unless that was dropped with its partition, or there never was one.
    pub record: Option<EventRecord>,
    /// The newest attempts that failed, in order.
    pub failed_attempts: Vec<FailedAttempt>,
    /// The dead letter, if there is one.
    pub dead_letter: Option<Letter>,
    /// What people decided about it, in order.
    pub decisions: Vec<AuditEntry>,
}

/// A record of `inbox_messages`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// The stream.
    pub stream: Option<String>,
    /// The sequence.
    pub seq: Option<i64>,
}

/// What the consumers whose tables are beside the outbox `table` did with the event, by consumer; of
/// those that have, or had, a worker. Without the attempts that failed, if they cannot be read: a note
/// says so.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer; [`Error::Tables`] if there is no inbox.
pub async fn explain(
    connection: &Connection,
    table: &Table,
    event: Uuid,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, ConsumerStory>, Error> {
    let schema = table.quoted_schema();
    let mut stories: BTreeMap<String, ConsumerStory> = BTreeMap::new();
    for Of { consumer, what } in
        select(connection, DOING, &look_up_records::records(&schema), &[&event]).await?
    {
        stories.entry(consumer).or_default().record = Some(what);
    }
    for Of { consumer, what } in
        select(connection, DOING, &look_up_records::letters(&schema), &[&event]).await?
    {
        stories.entry(consumer).or_default().dead_letter = Some(what);
    }
    let attempts = look_up_records::attempts(&schema);
    match select(connection, DOING, &attempts, &[&vec![event]]).await {
        Ok(attempts) => attempts.into_iter().for_each(|Of { consumer, what }| {
            stories.entry(consumer).or_default().failed_attempts.push(what);
        }),
        Err(error) => notes.push(format!("failed attempts cannot be read: {}", describe(&error))),
    }
    let decisions = list_letters::list_decisions(&schema);
    for Of { consumer, what } in select(connection, DOING, &decisions, &[&vec![event]]).await? {
        stories.entry(consumer).or_default().decisions.push(what);
    }
    Ok(stories)
}

/// The consumers of which the events are dead letters, by event; of those whose tables are beside the
/// outbox `table`.
///
/// # Errors
///
/// As [`explain`].
pub async fn dead_at(
    connection: &Connection,
    table: &Table,
    events: &[Uuid],
) -> Result<BTreeMap<Uuid, Vec<String>>, Error> {
    let sql = look_up_records::dead_at(&table.quoted_schema());
    let rows = query(connection, DOING, &sql, &[&events]).await?;
    Ok(rows.iter().map(|it| (it.get(0), it.get(1))).collect())
}

/// The consumers whose tables are beside the outbox `table`, of those that have, or had, a worker.
///
/// # Errors
///
/// As [`explain`].
pub async fn consumers(connection: &Connection, table: &Table) -> Result<Vec<String>, Error> {
    let sql = look_up_records::consumers(&table.quoted_schema());
    let rows = query(connection, DOING, &sql, &[]).await?;
    Ok(rows.iter().map(|it| it.get(0)).collect())
}

const DOING: &str = "look for the event in the inbox";

/// What a consumer has.
#[derive(Deserialize)]
struct Of<T> {
    consumer: String,
    #[serde(flatten)]
    what: T,
}
