//! What people decide about events that no attempt could process.
//!
//! ```text
//!   dead letter ── requeue ──▶ attempts anew, in whichever process runs the consumer
//!        │  │
//!        │  └───── reject ───▶ REJECTED: answered for good, with a reason
//!        └──────── discard ──▶ gone; the event counts as answered all the same
//!   any event ─ mark processed ▶ PROCESSED: its effect was made by other means
//! ```
//! Nothing is published. Each decision is one statement with its entry in `inbox_decisions`, and is
//! about what it finds: an event that a worker has at that moment is left alone.

mod page_by_page;

use inbox::access::{MAKE_DURABLE, Partitions, Room, answered};
use inbox::{Connection, Error};
use jiff::Timestamp;
use outbox::wire::{header, value_from_wire, value_to_wire};
use outbox::{Column, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use servers::describe;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::warn;
use uuid::Uuid;

use super::{Action, Actor, Aggregate, AuditEntry, FailedAttempt, Filter, GROUPED_MAX, etag};
use crate::sql::records::decide_letters::{self, HOPELESS};
use crate::sql::records::{list_letters, look_up_records, query, select};

/// The dead letters of all consumers whose inbox is in one schema.
pub struct DeadLetters {
    connection: Connection,
    outbox: Table,
    /// Quoted.
    schema: String,
    consumer: Option<String>,
}

/// Which dead letters are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those of these events; all if there is no list.
    pub events: Option<Vec<Uuid>>,
    /// Those that match this. A reason is looked for in [`DeadLetter::cause`] too.
    pub filter: Filter,
    /// A decision is about those that are dead since exactly then; about all if that is not said.
    pub dead_at: Option<Timestamp>,
}

impl From<Filter> for Selection {
    fn from(filter: Filter) -> Self {
        Self { filter, ..Self::default() }
    }
}

impl From<&[Uuid]> for Selection {
    fn from(events: &[Uuid]) -> Self {
        Self { events: Some(events.to_vec()), ..Self::default() }
    }
}

/// Where a dead letter is in a list: since when it is dead, its event, and whose it is.
pub type LetterPlace = (Timestamp, Uuid, String);

/// What a list shows, and what a plan is.
pub type Overview = super::Overview<DeadLetter>;

/// An event that could not be processed. Its payload is not shown unless asked for.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "InboxDeadLetter")]
pub struct DeadLetter {
    /// Whose it is.
    pub consumer: String,
    /// The event's id, or one made of stream and sequence if it had none.
    #[serde(rename = "id")]
    pub event_id: Uuid,
    /// The type of its aggregate, if it says so.
    pub aggregate_type: Option<String>,
    /// Its aggregate.
    pub aggregate_id: Option<String>,
    /// Its type.
    pub event_type: Option<String>,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// The subject it was published on.
    pub subject: String,
    /// The stream it came from.
    pub stream: String,
    /// Where in the stream.
    pub stream_seq: i64,
    /// How often it was tried.
    pub attempts: i32,
    /// `dead`, `max_attempts`, `expired`, `crashes`, `unreadable`, `forgotten`, `unrecordable` or `gone`.
    pub cause: String,
    /// What was said at the end.
    pub reason: String,
    /// Since when it is a dead letter.
    pub dead_at: Timestamp,
    /// How long that is.
    pub age_seconds: f64,
    /// Whether it waits for, or is at, another set of attempts.
    pub requeued: bool,
    /// Whether the inbox still has its record, which another set of attempts needs.
    pub recorded: bool,
    /// How long its payload is.
    pub payload_bytes: i32,
}

/// A dead letter, what was done to it, and what it carried: the headers are a JSON object of arrays
/// of strings.
pub type DeadLetterDetail = super::DeadLetterDetail<DeadLetter>;

/// What became of an event that was to count as processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Marked {
    /// It counts as processed from now on.
    Marked,
    /// It had been before.
    AlreadyProcessed,
    /// A worker has it at this moment.
    Leased,
    /// It is older than the inbox remembers, and will not be handled anyway.
    Forgotten,
    /// The inbox has no record of it: its time, which is part of the key, has to be named.
    Unknown,
}

impl DeadLetters {
    /// Looks at the inbox in the schema of `outbox`, whether that exists or not.
    #[must_use]
    pub fn new(connection: Connection, outbox: &Table) -> Self {
        let (outbox, schema) = (outbox.clone(), outbox.quoted_schema());
        Self { connection, outbox, schema, consumer: None }
    }

    /// Only those of this consumer; of all if there is none.
    #[must_use]
    pub fn of_consumer(self, consumer: Option<String>) -> Self {
        Self { consumer, ..self }
    }

    /// The dead letters, the latest first; only those behind `after`, if that is given.
    ///
    /// # Errors
    ///
    /// If the database refuses; [`Error::Tables`] if the inbox is not set up.
    pub async fn list(
        &self,
        of: &Selection,
        after: Option<&LetterPlace>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        let time = after.map(|it| it.0);
        let (id, consumer) = after.map_or((Uuid::nil(), ""), |it| (it.1, it.2.as_str()));
        let (parameters, limit) = (self.parameters(of), i64::from(limit));
        let parameters = parameters.with(&[&limit, &time, &id, &consumer]);
        let sql = list_letters::list_letters(&self.schema);
        let rows = query(&self.connection, "read the dead letters", &sql, &parameters).await?;
        Ok(rows.iter().map(DeadLetter::of).collect())
    }

    /// What is meant: how many, why they are dead, and the latest, at most `limit`, of those behind
    /// `after`.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn overview(
        &self,
        of: &Selection,
        after: Option<&LetterPlace>,
        limit: u32,
    ) -> Result<Overview, Error> {
        let doing = "count the dead letters";
        let parameters = self.parameters(of);
        let parameters = parameters.with(&[]);
        let count = async |many| {
            let sql = list_letters::count_letters(&self.schema, many);
            let count = query(&self.connection, doing, &sql, &parameters).await?;
            Ok::<_, Error>((count[0].get::<_, i64>(0).cast_unsigned(), count[0].get(1)))
        };
        let (mut total, mut oldest_seconds) = count(true).await?;
        let many = total > GROUPED_MAX;
        if !many {
            (total, oldest_seconds) = count(false).await?;
        }
        let sql = list_letters::group_letters_of(&self.schema, many);
        Ok(Overview {
            total,
            oldest_seconds,
            groups: select(&self.connection, doing, &sql, &parameters).await?,
            dead_letters: self.list(of, after, limit).await?,
            next: None,
        })
    }

    /// The dead letters and what was done to them, the oldest first.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn details(
        &self,
        of: &Selection,
        with_payload: bool,
        limit: u32,
    ) -> Result<Vec<DeadLetterDetail>, Error> {
        let (parameters, limit) = (self.parameters(of), i64::from(limit));
        let parameters = parameters.with(&[&limit]);
        let sql = list_letters::list_originals(&self.schema);
        let rows = query(&self.connection, "read the dead letters", &sql, &parameters).await?;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.get("message_id")).collect();
        let sql = list_letters::list_decisions(&self.schema);
        let entries: Vec<Of<AuditEntry>> =
            select(&self.connection, "read the decisions", &sql, &[&ids]).await?;
        let sql = look_up_records::attempts(&self.schema);
        let attempts = select(&self.connection, "read the attempts", &sql, &[&ids]).await;
        let attempts: Vec<Of<FailedAttempt>> = attempts.unwrap_or_else(|error| {
            warn!(error = describe(&error), "failed attempts cannot be read");
            Vec::new()
        });
        let detail = |row: &Row| {
            let letter = DeadLetter::of(row);
            let state = if letter.requeued { "requeued" } else { "dead" };
            let (history, failed) = (Of::all(&entries, &letter), Of::all(&attempts, &letter));
            let dead_at = (!letter.requeued).then_some(letter.dead_at);
            let (id, stream, seq) = (letter.event_id, letter.stream.clone(), letter.stream_seq);
            let mut detail = DeadLetterDetail::new(id, Some(letter), state, history);
            (detail.stream, detail.stream_seq) = (Some(stream), Some(seq));
            detail.etag = dead_at.map(etag);
            detail.failed_attempts = failed;
            if with_payload {
                detail.carrying(row.get("headers"), row.get("payload"))
            } else {
                detail
            }
        };
        Ok(rows.iter().map(detail).collect())
    }

    /// Decides about dead letters that are dead at this moment. Returns those that it was done to.
    ///
    /// [`Action::Requeue`] passes over those that cannot be handled, whatever changes: what is
    /// no event, and what is older than the inbox remembers, since it may have had its effect. Nor is
    /// there anything to requeue without a record.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn decide(
        &self,
        action: Action,
        of: &Selection,
        actor: &Actor,
    ) -> Result<Vec<(String, Uuid)>, Error> {
        self.decide_about(action, &self.parameters(of), actor).await
    }

    async fn decide_about(
        &self,
        action: Action,
        these: &Parameters<'_>,
        actor: &Actor,
    ) -> Result<Vec<(String, Uuid)>, Error> {
        let doing = "decide about dead letters";
        query(&self.connection, doing, MAKE_DURABLE, &[]).await?;
        let sql = match action {
            Action::Requeue => decide_letters::requeue_letters(&self.schema),
            Action::Reject => decide_letters::close_letters(&self.schema, ["reject", "REJECTED"]),
            Action::Discard => decide_letters::close_letters(&self.schema, ["discard", "DEAD"]),
        };
        let why = actor.why();
        let parameters = these.with(&[&actor.name, &why, &these.of.dead_at]);
        let rows = query(&self.connection, doing, &sql, &parameters).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// What was decided about an event, by its consumer or by all, in order.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn decisions(&self, event: Uuid) -> Result<Vec<AuditEntry>, Error> {
        let sql = list_letters::list_decisions(&self.schema);
        let found: Vec<Of<AuditEntry>> =
            select(&self.connection, "read the decisions", &sql, &[&vec![event]]).await?;
        let is_meant = |it: &Of<_>| self.consumer.as_ref().is_none_or(|name| *name == it.consumer);
        Ok(found.into_iter().filter(is_meant).map(|it| it.what).collect())
    }

    /// Records that their payloads are read.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn note_reading(&self, of: &Selection, actor: &Actor) -> Result<(), Error> {
        let (these, why) = (self.parameters(of), actor.why());
        let sql = decide_letters::note_reading(&self.schema);
        let parameters = these.with(&[&actor.name, &why]);
        query(&self.connection, "note a reading", &sql, &parameters).await.map(|_| ())
    }

    /// Makes an event count as processed by `consumer`, whether it has met it or not.
    ///
    /// `occurred_at` is only looked at for an event that neither the inbox nor an outbox beside it
    /// knows.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn mark_processed(
        &self,
        consumer: &str,
        event: Uuid,
        occurred_at: Option<Timestamp>,
        actor: &Actor,
    ) -> Result<Marked, Error> {
        let doing = "mark the event as processed";
        query(&self.connection, doing, MAKE_DURABLE, &[]).await?;
        let sql = "SELECT to_regclass($1) IS NOT NULL";
        let has_outbox =
            query(&self.connection, doing, sql, &[&self.outbox.quoted()]).await?[0].get(0);
        let sql = self.time_of(has_outbox);
        let rows = query(&self.connection, doing, &sql, &[&consumer, &event, &occurred_at]).await?;
        let Some(time) = rows[0].get::<_, Option<Timestamp>>(0) else {
            return Ok(Marked::Unknown);
        };
        if answered(doing, self.make_room(time)).await? == Room::Forgotten {
            return Ok(Marked::Forgotten);
        }
        let why = actor.why();
        let parameters: [&(dyn ToSql + Sync); 5] = [&consumer, &event, &time, &actor.name, &why];
        let sql = decide_letters::mark_processed(&self.schema);
        Ok(match query(&self.connection, doing, &sql, &parameters).await?[0].get(0) {
            "marked" => Marked::Marked,
            "processed" => Marked::AlreadyProcessed,
            _ => Marked::Leased,
        })
    }

    /// When an event happened: from the record, the letter or, if `has_outbox`, the outbox.
    fn time_of(&self, has_outbox: bool) -> String {
        let Self { schema, outbox, .. } = self;
        let (time, id) = (outbox.column(Column::OccurredAt), outbox.column(Column::Id));
        let asked = format!("(SELECT {time} FROM {} WHERE {id} = $2),", outbox.quoted());
        let asked = if has_outbox { asked } else { String::new() };
        format!(
            "SELECT coalesce(
                 (SELECT event_time FROM {schema}.inbox_messages
                  WHERE consumer = $1 AND message_id = $2 ORDER BY event_time LIMIT 1),
                 (SELECT event_time FROM {schema}.inbox_dead_letter
                  WHERE consumer = $1 AND message_id = $2),
                 {asked} $3::timestamptz)"
        )
    }

    /// The record may be the first one of its day.
    async fn make_room(&self, time: Timestamp) -> Result<Room, Error> {
        let client = self.connection.client();
        let mut partitions = Partitions::load(client, self.outbox.schema()).await?;
        let room = partitions.room(time);
        if let Room::Missing(time) = room {
            partitions.create(client, time).await?;
        }
        Ok(room)
    }

    fn parameters<'a>(&'a self, of: &'a Selection) -> Parameters<'a> {
        Parameters::new(self.consumer.as_ref(), of)
    }
}

/// A selection as the parameters of `sql/records/list_letters.rs`.
struct Parameters<'a> {
    consumer: Option<&'a String>,
    of: &'a Selection,
    /// The types and ids that the aggregate may mean, as they travel.
    aggregates: [Option<Vec<String>>; 2],
    /// As it travels.
    event_type: Option<String>,
}

impl<'a> Parameters<'a> {
    fn new(consumer: Option<&'a String>, of: &'a Selection) -> Self {
        let Filter { aggregate, event_type, .. } = &of.filter;
        let travels = |it: &String| value_to_wire(it).into_owned();
        let travel = |it: Vec<String>| it.iter().map(travels).collect();
        let (kinds, ids) = aggregate.as_ref().map(Aggregate::readings).unzip();
        let aggregates = [kinds, ids].map(|it| it.map(travel));
        Self { consumer, of, aggregates, event_type: event_type.as_ref().map(travels) }
    }

    fn with<'b>(&'b self, more: &[&'b (dyn ToSql + Sync)]) -> Vec<&'b (dyn ToSql + Sync)> {
        let Selection { events, filter, .. } = self.of;
        let ([kinds, ids], event_type) = (&self.aggregates, &self.event_type);
        let mut all: Vec<&'b (dyn ToSql + Sync)> =
            vec![&self.consumer, events, kinds, ids, event_type, &filter.reason, &filter.since];
        all.extend_from_slice(more);
        all
    }
}

impl DeadLetter {
    fn of(row: &Row) -> Self {
        let escaped: String = row.get("escaped");
        let text = |column: &str, name: &str| {
            let value: String = row.get::<_, Option<String>>(column)?;
            Some(value_from_wire(name, &value, &escaped)?.into_owned())
        };
        Self {
            consumer: row.get("consumer"),
            event_id: row.get("message_id"),
            aggregate_type: text("aggregate_type", header::AGGREGATE_TYPE),
            aggregate_id: text("aggregate_id", header::AGGREGATE_ID),
            event_type: text("event_type", header::EVENT_TYPE),
            occurred_at: row.get("event_time"),
            subject: row.get("subject"),
            stream: row.get("stream"),
            stream_seq: row.get("stream_seq"),
            attempts: row.get("attempts"),
            cause: row.get("cause"),
            reason: row.get("reason"),
            dead_at: row.get("dead_at"),
            age_seconds: row.get("age_seconds"),
            requeued: row.get("requeued"),
            recorded: row.get("recorded"),
            payload_bytes: row.get("payload_bytes"),
        }
    }

    /// Where it is in a list.
    #[must_use]
    pub fn place(&self) -> LetterPlace {
        (self.dead_at, self.event_id, self.consumer.clone())
    }

    /// Whether another set of attempts makes sense.
    #[must_use]
    pub fn can_be_requeued(&self) -> bool {
        self.recorded && !self.requeued && !HOPELESS.contains(&self.cause.as_str())
    }
}

/// Something about an event at a consumer.
#[derive(Deserialize)]
struct Of<T> {
    message_id: Uuid,
    consumer: String,
    #[serde(flatten)]
    what: T,
}

impl<T: Clone> Of<T> {
    /// What is about this letter.
    fn all(found: &[Self], letter: &DeadLetter) -> Vec<T> {
        let is_its =
            |it: &&Self| it.message_id == letter.event_id && it.consumer == letter.consumer;
        found.iter().filter(is_its).map(|it| it.what.clone()).collect()
    }
}
