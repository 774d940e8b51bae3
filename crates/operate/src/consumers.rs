//! The consumers of an inbox: what they have before them, who has them, and what operators want of them.

mod controls;
mod rewind_list;
mod rewind_words;
mod rewinder;
mod stream_look;

use std::time::Duration;

use async_nats::jetstream::consumer::Info;
use inbox::access::rewind_records::FOLLOWS;
use inbox::access::{MAKE_DURABLE, as_json, unread_in_words, upkept};
use inbox::{Connection, Error, Upkept};
use jiff::Timestamp;
use outbox::Table;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

pub use self::controls::ControlAction;
pub use self::rewind_list::Rewind;
pub use self::rewinder::{RewindCounts, RewindPlan, RewindTarget, Rewinder};
pub use self::stream_look::{StreamLook, look_at_stream};
use crate::dead_letters::Actor;
use crate::sql::records::{decide_letters, list_letters, look_up_records, query, select};

/// The consumers whose inbox is in one schema.
pub struct Consumers {
    connection: Connection,
    outbox: Table,
    /// Quoted.
    schema: String,
}

/// What one consumer has before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backlog {
    /// The consumer.
    #[serde(skip_serializing)]
    pub consumer: String,
    /// Events that a worker has, or had when it died.
    pub processing: i64,
    /// Events whose last attempt failed and that are to be tried again.
    pub failed: i64,
    /// Those of both that were begun more than three times.
    #[serde(skip_serializing)]
    pub stubborn: i64,
    /// Dead letters without a decision.
    pub dead: i64,
    /// The age of the oldest event that was begun and is not processed.
    pub oldest_seconds: Option<f64>,
    /// The age of the oldest dead letter without a decision.
    #[serde(skip_serializing)]
    pub oldest_dead_letter_seconds: Option<f64>,
    /// Why the latest attempt failed, of those that are to be tried again.
    pub last_error: Option<String>,
}

/// An event whose last attempt failed and that is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failing {
    /// The consumer.
    #[serde(skip_serializing)]
    pub consumer: String,
    /// The event.
    pub event_id: Uuid,
    /// Attempts that were started.
    pub attempts: i32,
    /// Why the last of them failed that has ended.
    pub last_error: String,
    /// When it is tried next; `None` while it is.
    pub next_attempt_at: Option<Timestamp>,
}

/// Attempts of the last 15 minutes that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedAnswers {
    /// The status of their HTTP answers; `None` if there were none.
    pub code: Option<i16>,
    /// How many.
    pub count: i64,
    /// When the last was.
    pub last_at: Timestamp,
    /// How long the median took.
    pub took_ms: i32,
}

/// Of one consumer so many are listed.
const FAILING_MAX: i64 = 20;

/// The worker that had the role of a consumer last, and what it said of itself at its last
/// heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// The consumer.
    #[serde(skip_serializing)]
    pub consumer: String,
    /// The worker: its process id, and an id of its run.
    pub owner: String,
    /// Whether its lease is valid, by the database's clock. Otherwise no worker has the role.
    pub is_valid: bool,
    /// Since when it has, or had, the role.
    pub acquired_at: Timestamp,
    /// Until when, unless it renews the lease; `None` after it gave the role up.
    pub expires_at: Option<Timestamp>,
    /// As [`State`](inbox::State) in JSON: `active`, `paused`, ...
    pub state: Option<String>,
    /// As [`BreakerState`](inbox::BreakerState) in JSON: `closed`, `open` or `half_open`.
    pub breaker: Option<String>,
    /// Why it is paused, if it is.
    pub reason: Option<String>,
    /// When one event is tried next, while the breaker is open.
    pub next_probe_at: Option<Timestamp>,
    /// Why and when the consumer went back by itself the last time, if it ever did.
    pub went_back: Option<String>,
    /// How many messages left the stream unread, and what is to be done, until somebody has settled it.
    pub unread: Option<String>,
}

/// The role of a consumer, or that of one of its partitions, as any worker had it last.
#[derive(Debug, Clone, Deserialize)]
pub struct HeldPart {
    /// The consumer.
    pub consumer: String,
    /// The partition; 0 where it is not divided.
    pub partition: u32,
    /// Whether a worker has it.
    pub is_held: bool,
    /// For how long none has had it; unknown if its worker gave it up at its end.
    pub free_seconds: Option<f64>,
    /// Why its worker waits, if it does.
    pub reason: Option<String>,
    /// How many messages left the stream unread, at most, of which somebody has to settle what becomes.
    pub unread: u64,
}

impl HeldPart {
    /// Whether a worker has it, or will in a moment: after twice the lease others have taken over.
    #[must_use]
    pub fn is_attended(&self, lease: Duration) -> bool {
        self.is_held || self.free_seconds.is_some_and(|it| it < 2.0 * lease.as_secs_f64())
    }
}

/// When a durable consumer last delivered an event, or took an acknowledgement.
#[must_use]
pub fn active_at(info: &Info) -> Timestamp {
    // Before it has ever delivered anything: when it was made.
    let made = Some(info.created);
    let active = made.max(info.delivered.last_active).max(info.ack_floor.last_active);
    moment(active.map(|it| it.unix_timestamp_nanos()))
}

fn moment(nanoseconds: Option<i128>) -> Timestamp {
    let at = nanoseconds.and_then(|it| Timestamp::from_nanosecond(it).ok());
    at.unwrap_or_else(Timestamp::now)
}

fn ago(at: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(at)).unwrap_or_default()
}

/// For how long a durable consumer has taken no acknowledgement.
#[must_use]
pub fn acknowledged_ago(info: &Info) -> Duration {
    let last = Some(info.created).max(info.ack_floor.last_active);
    ago(moment(last.map(|it| it.unix_timestamp_nanos())))
}

/// How many events wait of which none was delivered or acknowledged, and for how long, if that is
/// longer than workers need to take over from each other.
#[must_use]
pub fn stalled(info: &Info, lease: Duration) -> Option<(u64, Duration)> {
    let idle = ago(active_at(info));
    let waits = info.num_pending + info.num_ack_pending as u64;
    (waits > 0 && idle >= 2 * lease).then_some((waits, idle))
}

impl Consumers {
    /// Looks at the inbox in the schema of `outbox`, whether that exists or not.
    pub fn new(connection: Connection, outbox: &Table) -> Self {
        Self { connection, outbox: outbox.clone(), schema: outbox.quoted_schema() }
    }

    /// Names the database and the schema: the same for whoever looks at this inbox, until its server
    /// is started again.
    ///
    /// # Errors
    ///
    /// If the database refuses.
    pub async fn database(&self) -> Result<String, Error> {
        let sql = look_up_records::NAME_DATABASE;
        let rows = query(&self.connection, "name the database", sql, &[&self.schema]).await?;
        Ok(rows[0].get(0))
    }

    /// What each consumer has before it, by name; of those that ever met an event.
    ///
    /// # Errors
    ///
    /// If the database refuses; [`Error::Tables`] if the inbox is not set up.
    pub async fn backlogs(&self) -> Result<Vec<Backlog>, Error> {
        let sql = list_letters::list_backlogs(&self.schema);
        select(&self.connection, "look at the inbox", &sql, &[]).await
    }

    /// The events of each consumer that fail and are tried again; of many, those that happened first.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn failing(&self) -> Result<Vec<Failing>, Error> {
        let sql = list_letters::list_failing(&self.schema);
        select(&self.connection, "look at the inbox", &sql, &[&FAILING_MAX]).await
    }

    /// How attempts of a consumer failed lately, the most frequent first.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn failed_answers(&self, consumer: &str) -> Result<Vec<FailedAnswers>, Error> {
        let sql = look_up_records::failed_answers(&self.schema);
        select(&self.connection, "look at the attempts", &sql, &[&consumer]).await
    }

    /// Makes an event due at once that waits for another attempt, which counts as always. False if it
    /// does not wait.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn try_now(&self, consumer: &str, event: Uuid, actor: &Actor) -> Result<bool, Error> {
        let doing = "try the event now";
        query(&self.connection, doing, MAKE_DURABLE, &[]).await?;
        let (sql, why) = (decide_letters::try_now(&self.schema), actor.why());
        let parameters: [&(dyn ToSql + Sync); 4] = [&consumer, &event, &actor.name, &why];
        Ok(!query(&self.connection, doing, &sql, &parameters).await?.is_empty())
    }

    /// When the tables were last looked after, and what that deleted; `None` if they never were.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn upkept(&self) -> Result<Option<Upkept>, Error> {
        upkept(&self.connection, self.outbox.schema()).await
    }

    /// Who has the consumers, by consumer. Where workers share one, all of them, and what one says
    /// that has a reason to be paused.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        // The lease that was given up ended before all times, which no time here stands for.
        let sql = as_json(&format!(
            "SELECT DISTINCT ON (consumer) consumer, coalesce((
                     SELECT string_agg(DISTINCT o.owner, ', ') FROM {schema}.inbox_roles AS o
                     WHERE o.consumer = it.consumer AND o.expires_at > clock_timestamp()),
                     owner) AS owner,
                 expires_at > clock_timestamp() AS is_valid, acquired_at,
                 nullif(expires_at, '-infinity') AS expires_at, state, breaker, reason,
                 next_probe_at,
                 (SELECT reason || ', ' || to_json(requested_at) FROM {schema}.inbox_rewinds AS r
                  WHERE r.consumer = it.consumer AND requested_by LIKE '% ({FOLLOWS})'
                  ORDER BY id DESC LIMIT 1) AS went_back,
                 (SELECT {unread} FROM (SELECT consumer, count(*) AS parts, max(unread) AS unread,
                         CASE WHEN bool_and(unread_since IS NOT NULL) THEN min(unread_since) END
                             AS unread_since
                     FROM {schema}.inbox_roles WHERE unread > 0 GROUP BY consumer) AS r
                  WHERE r.consumer = it.consumer) AS unread
             FROM {schema}.inbox_roles AS it
             ORDER BY consumer, expires_at > clock_timestamp() DESC, reason IS NULL, partition",
            schema = self.schema,
            unread = unread_in_words(&self.schema, "r.parts"),
        ));
        select(&self.connection, "look at the roles", &sql, &[]).await
    }

    /// The role of each consumer, and of each partition of those that workers share.
    ///
    /// # Errors
    ///
    /// As [`backlogs`](Self::backlogs).
    pub async fn held_parts(&self) -> Result<Vec<HeldPart>, Error> {
        let sql = as_json(&format!(
            "SELECT consumer, partition, expires_at > clock_timestamp() AS is_held, reason, unread,
                 extract(epoch FROM clock_timestamp() - nullif(expires_at, '-infinity')) AS free_seconds
             FROM {schema}.inbox_roles ORDER BY consumer, partition",
            schema = self.schema
        ));
        select(&self.connection, "look at the roles", &sql, &[]).await
    }
}

/// Whether there are tables of an inbox beside the outbox `table`.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer.
pub async fn exist(connection: &Connection, table: &Table) -> Result<bool, Error> {
    let tables = format!("{}.inbox_retention", table.quoted_schema());
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    Ok(query(connection, "look at the tables of the inbox", sql, &[&tables]).await?[0].get(0))
}
