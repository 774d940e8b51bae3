//! Every statement on an event's record. Each transition is one statement, whose `WHERE` is its
//! precondition, on the database's clock; a row it does not touch is an answer, not an error.
//!
//! ```text
//!             claim                    complete
//!   (none) ──────────▶ PROCESSING ───────────────▶ PROCESSED
//!                       │  ▲   │ park
//!                  fail │  │   └─────────────────▶ DEAD ◀── park (crashes, unreadable)
//!                       ▼  │ claim
//!                      FAILED
//! ```
//!
//! What is done under a claim carries its `lease_token`: who lost the lease changes nothing. A claim
//! takes what is new, what failed and is due, and what was left behind by a worker that gives no
//! sign of life, unless three starts have no end: then the handler kills the process.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Statement, Transaction};
use uuid::Uuid;

use crate::connection::Connection;
use crate::message::Message;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// Starts without an end after which an event is not started again.
pub(crate) const UNFINISHED_MAX: i32 = 3;

/// Reasons are for operators; more than this helps nobody.
const REASON_BYTES_MAX: usize = 8 * 1024;

/// Which record: with the consumer's name, the primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) id: Uuid,
    pub(crate) event_time: Timestamp,
}

/// What a claim found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Claim {
    /// It is ours; this attempt, and all that did not end, are counted.
    Claimed { attempts: u32, unfinished: u32 },
    /// It has had its effect, or is a dead letter, or was rejected: nothing is left to do.
    Settled,
    /// Somebody else has it, for so long at most.
    Leased { remaining: Duration },
    /// It failed, and is due again after this.
    Early { remaining: Duration },
    /// Three starts have no end.
    Crashed { attempts: u32 },
    /// It changed while we looked.
    Contended,
}

/// Why an event becomes a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Dead,
    MaxAttempts,
    Crashes,
    Unreadable,
    Forgotten,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::MaxAttempts => "max_attempts",
            Self::Crashes => "crashes",
            Self::Unreadable => "unreadable",
            Self::Forgotten => "forgotten",
        }
    }
}

/// A claimed record, and the token that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: Key,
    pub(crate) token: Uuid,
}

/// A connection, and its statements, ready to run.
pub(crate) struct Store {
    connection: Connection,
    sql: Statements,
}

/// What the statements are about.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) schema: String,
    pub(crate) consumer: String,
    pub(crate) stream: String,
    /// Names the worker in `lease_owner`.
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    /// Whether another worker's lease is taken without waiting for its end: right where the fence
    /// stops everything that the other could still do. Only the active worker claims.
    pub(crate) takes_over: bool,
}

/// The statements of one connection. Apart from it, so that they can run inside a transaction on it.
#[derive(Clone)]
pub(crate) struct Statements {
    scope: Scope,
    record: Statement,
    note: Statement,
    claim: Statement,
    renew: Statement,
    complete: Statement,
    fail: Statement,
    release: Statement,
    park_held: Statement,
    park_crashed: Statement,
    park_new: Statement,
    park_forgotten: Statement,
}

impl Store {
    pub(crate) async fn new(connection: Connection, scope: Scope) -> Result<Self> {
        let client = &connection.client;
        // A duplicate that another worker has at work is not waited for.
        client.batch_execute("SET lock_timeout = '5s'").await?;
        let sql = Statements::prepare(client, scope).await?;
        Ok(Self { connection, sql })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.connection.client
    }

    pub(crate) fn sql(&self) -> &Statements {
        &self.sql
    }

    /// The statements, and a transaction to run them in.
    pub(crate) async fn begin(&mut self) -> Result<(&Statements, Transaction<'_>)> {
        Ok((&self.sql, self.connection.client.transaction().await?))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.connection.client.is_closed()
    }
}

impl Statements {
    async fn prepare(client: &Client, scope: Scope) -> Result<Self> {
        let texts = Texts::new(&scope.schema, if scope.takes_over { UNSETTLED } else { FREE });
        let types = [Type::TEXT, Type::UUID_ARRAY, Type::TIMESTAMPTZ_ARRAY];
        let prepare = async |text: &str| client.prepare_typed(text, &types).await;
        Ok(Self {
            record: prepare(&texts.record).await?,
            note: prepare(&texts.note).await?,
            claim: prepare(&texts.claim).await?,
            renew: prepare(&texts.renew).await?,
            complete: prepare(&texts.complete).await?,
            fail: prepare(&texts.fail).await?,
            release: prepare(&texts.release).await?,
            park_held: prepare(&texts.park_held).await?,
            park_crashed: prepare(&texts.park_crashed).await?,
            park_new: prepare(&texts.park_new).await?,
            park_forgotten: prepare(&texts.park_forgotten).await?,
            scope,
        })
    }

    /// Claims and completes new events at once, for a transaction that their effects are in too.
    /// Returns those that were new; of the others there is a record already.
    pub(crate) async fn record(
        &self,
        on: &impl GenericClient,
        messages: &[&Message],
    ) -> Result<Vec<Uuid>> {
        let Columns { ids, times, subjects, seqs } = Columns::of(messages);
        let Scope { consumer, stream, owner, .. } = &self.scope;
        let rows = on
            .query(&self.record, &[consumer, &ids, &times, &subjects, &seqs, stream, owner])
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Adds what handlers had to say to what [`Statements::record`] wrote in this transaction.
    pub(crate) async fn note(
        &self,
        on: &impl GenericClient,
        outcomes: &[(Key, String)],
    ) -> Result<u64> {
        let ids: Vec<Uuid> = outcomes.iter().map(|(key, _)| key.id).collect();
        let times: Vec<Timestamp> = outcomes.iter().map(|(key, _)| key.event_time).collect();
        let texts: Vec<String> = outcomes.iter().map(|(_, outcome)| storable(outcome)).collect();
        on.execute(&self.note, &[&self.scope.consumer, &ids, &times, &texts]).await
    }

    /// Claims each of these events (no two with the same key), and says what it found, in their
    /// order.
    pub(crate) async fn claim(
        &self,
        on: &impl GenericClient,
        token: Uuid,
        messages: &[&Message],
    ) -> Result<Vec<Claim>> {
        let Columns { ids, times, subjects, seqs } = Columns::of(messages);
        let Scope { consumer, stream, owner, lease, .. } = &self.scope;
        let lease = lease.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 9] =
            [consumer, &ids, &times, &subjects, &seqs, stream, owner, &token, &lease];
        let rows = on.query(&self.claim, &parameters).await?;
        Ok(rows.iter().map(claim_of).collect())
    }

    /// Extends leases. Returns those that are still ours.
    pub(crate) async fn renew(&self, on: &impl GenericClient, held: &[Held]) -> Result<Vec<Uuid>> {
        let (ids, times, tokens) = columns_of(held);
        let lease = self.scope.lease.as_secs_f64();
        let consumer = &self.scope.consumer;
        let rows = on.query(&self.renew, &[consumer, &ids, &times, &tokens, &lease]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The events have had their effect. Returns those that were still ours.
    pub(crate) async fn complete(
        &self,
        on: &impl GenericClient,
        held: &[Held],
        outcomes: &[Option<&str>],
    ) -> Result<Vec<Uuid>> {
        let (ids, times, tokens) = columns_of(held);
        let consumer = &self.scope.consumer;
        let rows = on.query(&self.complete, &[consumer, &ids, &times, &tokens, &outcomes]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The attempts failed, and are due again after the delays. Returns those still ours.
    pub(crate) async fn fail(
        &self,
        on: &impl GenericClient,
        held: &[Held],
        reasons: &[&str],
        delays: &[Duration],
    ) -> Result<Vec<Uuid>> {
        let (ids, times, tokens) = columns_of(held);
        let delays: Vec<f64> = delays.iter().map(Duration::as_secs_f64).collect();
        let reasons: Vec<String> = reasons.iter().map(|it| storable(it)).collect();
        let consumer = &self.scope.consumer;
        let parameters: [&(dyn ToSql + Sync); 6] =
            [consumer, &ids, &times, &tokens, &reasons, &delays];
        let rows = on.query(&self.fail, &parameters).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Gives claims back as if they had never been made: the attempt does not count.
    pub(crate) async fn release(&self, on: &impl GenericClient, held: &[Held]) -> Result<u64> {
        let (ids, times, tokens) = columns_of(held);
        on.execute(&self.release, &[&self.scope.consumer, &ids, &times, &tokens]).await
    }

    /// Makes an event a dead letter. `held` is what was claimed, if it was. Says whether it is
    /// one now by our doing.
    pub(crate) async fn park(
        &self,
        on: &impl GenericClient,
        message: &Message,
        held: Option<Held>,
        cause: Cause,
        reason: &str,
    ) -> Result<bool> {
        let Scope { consumer, stream, .. } = &self.scope;
        let statement = match (cause, held) {
            (_, Some(_)) => &self.park_held,
            (Cause::Crashes, None) => &self.park_crashed,
            (Cause::Forgotten, None) => &self.park_forgotten,
            (Cause::Dead | Cause::MaxAttempts | Cause::Unreadable, None) => &self.park_new,
        };
        let Key { id, event_time } = message.key;
        let seq = message.stream_seq.cast_signed();
        let token = held.map(|held| held.token);
        let payload = &message.payload[..];
        let parameters: [&(dyn ToSql + Sync); 11] = [
            consumer,
            &vec![id],
            &vec![event_time],
            &message.subject,
            stream,
            &seq,
            &message.headers_json(),
            &payload,
            &cause.name(),
            &storable(reason),
            &token,
        ];
        let rows = on.query(statement, &parameters).await?;
        Ok(!rows.is_empty())
    }
}

struct Columns<'a> {
    ids: Vec<Uuid>,
    times: Vec<Timestamp>,
    subjects: Vec<&'a str>,
    seqs: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn of(messages: &[&'a Message]) -> Self {
        Self {
            ids: messages.iter().map(|it| it.key.id).collect(),
            times: messages.iter().map(|it| it.key.event_time).collect(),
            subjects: messages.iter().map(|it| it.subject.as_str()).collect(),
            seqs: messages.iter().map(|it| it.stream_seq.cast_signed()).collect(),
        }
    }
}

fn columns_of(held: &[Held]) -> (Vec<Uuid>, Vec<Timestamp>, Vec<Uuid>) {
    let ids = held.iter().map(|it| it.key.id).collect();
    let times = held.iter().map(|it| it.key.event_time).collect();
    (ids, times, held.iter().map(|it| it.token).collect())
}

fn claim_of(row: &tokio_postgres::Row) -> Claim {
    let count = |index: usize| u32::try_from(row.get::<_, i32>(index)).unwrap_or(0);
    let remaining = || Duration::try_from_secs_f64(row.get(3)).unwrap_or_default();
    match row.get(0) {
        "claimed" => Claim::Claimed { attempts: count(1), unfinished: count(2) },
        "settled" => Claim::Settled,
        "leased" => Claim::Leased { remaining: remaining() },
        "early" => Claim::Early { remaining: remaining() },
        "crashed" => Claim::Crashed { attempts: count(1) },
        _ => Claim::Contended,
    }
}

/// PostgreSQL's texts have no NUL; cut at a character.
fn storable(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason[..end].replace('\0', "\u{fffd}")
}

struct Texts {
    record: String,
    note: String,
    claim: String,
    renew: String,
    complete: String,
    fail: String,
    release: String,
    park_held: String,
    park_crashed: String,
    park_new: String,
    park_forgotten: String,
}

/// The record is held by whoever has this token. The status is asked for in a way that hides it from
/// the planner: `idx_inbox_unprocessed` has an entry for each claim since the last vacuum, and the
/// planner would read them all instead of the primary key's few.
const OURS: &str = "m.consumer = $1 AND m.message_id = i.message_id AND m.event_time = i.event_time
    AND m.lease_token = i.token AND m.status || '' = 'PROCESSING'";

/// Nobody is at work on the record.
const FREE: &str =
    "(m.status = 'FAILED' OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())";

/// Somebody may be at work on the record, and can be fenced off.
const UNSETTLED: &str = "m.status IN ('PROCESSING', 'FAILED')";

/// A lease has ended, by whatever end.
const ENDED: &str =
    "finished_attempts = m.finished_attempts + 1, lease_token = NULL, expires_at = NULL";

impl Texts {
    /// `free` is what may be claimed.
    fn new(schema: &str, free: &str) -> Self {
        let table = format!("{schema}.inbox_messages");
        let input = "unnest($2, $3, $4::uuid[]) AS i (message_id, event_time, token)";
        Self {
            record: format!(
                "INSERT INTO {table} (consumer, message_id, event_time, subject, stream,
                     stream_seq, status, attempts, finished_attempts, processed_at, lease_owner)
                 SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSED', 1, 1,
                     clock_timestamp(), $7
                 FROM unnest($2, $3, $4::text[], $5::bigint[])
                     AS i (message_id, event_time, subject, stream_seq)
                 ORDER BY message_id -- so that two workers cannot wait for each other
                 ON CONFLICT (consumer, message_id, event_time) DO NOTHING
                 RETURNING message_id"
            ),
            note: format!(
                "UPDATE {table} AS m SET outcome = i.outcome
                 FROM unnest($2, $3, $4::text[]) AS i (message_id, event_time, outcome)
                 WHERE m.consumer = $1 AND m.message_id = i.message_id
                     AND m.event_time = i.event_time AND m.status = 'PROCESSED'"
            ),
            claim: claim_text(&table, free),
            renew: format!(
                "UPDATE {table} AS m SET expires_at = clock_timestamp() + make_interval(secs => $5)
                 FROM {input} WHERE {OURS} RETURNING m.message_id"
            ),
            complete: format!(
                "UPDATE {table} AS m SET status = 'PROCESSED', processed_at = clock_timestamp(),
                     outcome = i.outcome, {ENDED}
                 FROM unnest($2, $3, $4::uuid[], $5::text[])
                     AS i (message_id, event_time, token, outcome)
                 WHERE {OURS} RETURNING m.message_id"
            ),
            fail: format!(
                "UPDATE {table} AS m SET status = 'FAILED', last_error = i.reason,
                     next_attempt_at = clock_timestamp() + make_interval(secs => i.delay), {ENDED}
                 FROM unnest($2, $3, $4::uuid[], $5::text[], $6::float8[])
                     AS i (message_id, event_time, token, reason, delay)
                 WHERE {OURS} RETURNING m.message_id"
            ),
            release: format!(
                "UPDATE {table} AS m SET attempts = m.attempts - 1, lease_token = NULL,
                     expires_at = clock_timestamp()
                 FROM {input} WHERE {OURS}"
            ),
            park_held: park_text(
                schema,
                &format!(
                    "UPDATE {table} AS m SET status = 'DEAD', last_error = $10, {ENDED}
                     FROM unnest($2, $3, ARRAY[$11]::uuid[]) AS i (message_id, event_time, token)
                     WHERE {OURS} RETURNING m.attempts"
                ),
            ),
            park_crashed: park_text(
                schema,
                &format!(
                    "UPDATE {table} AS m SET status = 'DEAD', last_error = $10, lease_token = NULL,
                         expires_at = NULL
                     FROM unnest($2, $3) AS i (message_id, event_time)
                     WHERE m.consumer = $1 AND m.message_id = i.message_id
                         AND m.event_time = i.event_time AND {free}
                         AND m.attempts - m.finished_attempts >= {UNFINISHED_MAX}
                         AND $11::uuid IS NULL
                     RETURNING m.attempts"
                ),
            ),
            park_new: park_text(
                schema,
                &format!(
                    "INSERT INTO {table} AS m (consumer, message_id, event_time, subject, stream,
                         stream_seq, status, last_error)
                     SELECT $1, message_id, event_time, $4, $5, $6, 'DEAD', $10
                     FROM unnest($2, $3) AS i (message_id, event_time)
                     WHERE $11::uuid IS NULL
                     ON CONFLICT (consumer, message_id, event_time) DO NOTHING
                     RETURNING m.attempts"
                ),
            ),
            park_forgotten: park_text(schema, "SELECT 0 AS attempts WHERE $11::uuid IS NULL"),
        }
    }
}

fn claim_text(table: &str, free: &str) -> String {
    format!(
        "WITH input AS (
             SELECT * FROM unnest($2, $3, $4::text[], $5::bigint[])
                 WITH ORDINALITY AS i (message_id, event_time, subject, stream_seq, place)
         ), claimed AS (
             INSERT INTO {table} AS m (consumer, message_id, event_time, subject, stream,
                 stream_seq, status, attempts, lease_owner, lease_token, claimed_at, expires_at)
             SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSING', 1,
                 $7, $8::uuid, clock_timestamp(), clock_timestamp() + make_interval(secs => $9)
             FROM input
             ORDER BY message_id
             ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
                 status = 'PROCESSING', attempts = m.attempts + 1,
                 lease_owner = EXCLUDED.lease_owner, lease_token = EXCLUDED.lease_token,
                 claimed_at = EXCLUDED.claimed_at, expires_at = EXCLUDED.expires_at,
                 next_attempt_at = NULL
             WHERE {free}
                 AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
                 AND m.attempts - m.finished_attempts < {UNFINISHED_MAX}
             RETURNING m.message_id, m.attempts, m.finished_attempts
         )
         SELECT
             CASE
                 WHEN claimed.message_id IS NOT NULL THEN 'claimed'
                 WHEN m.status IN ('PROCESSED', 'DEAD', 'REJECTED') THEN 'settled'
                 WHEN NOT {free} THEN 'leased'
                 WHEN m.attempts - m.finished_attempts >= {UNFINISHED_MAX} THEN 'crashed'
                 WHEN m.next_attempt_at > clock_timestamp() THEN 'early'
                 ELSE 'contended'
             END,
             coalesce(claimed.attempts, m.attempts, 0),
             coalesce(claimed.attempts - claimed.finished_attempts,
                 m.attempts - m.finished_attempts, 0),
             coalesce(extract(epoch FROM CASE m.status WHEN 'PROCESSING' THEN m.expires_at
                 ELSE m.next_attempt_at END - clock_timestamp()), 0)::float8
         FROM input
         LEFT JOIN claimed USING (message_id)
         LEFT JOIN {table} AS m ON m.consumer = $1 AND m.message_id = input.message_id
             AND m.event_time = input.event_time
         ORDER BY place"
    )
}

/// `dead` changes the record, and returns `attempts` if it did.
fn park_text(schema: &str, dead: &str) -> String {
    format!(
        "WITH dead AS ({dead})
         INSERT INTO {schema}.inbox_dead_letter AS letter (consumer, message_id, event_time,
             subject, stream, stream_seq, headers, payload, attempts, cause, reason)
         SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
             dead.attempts, $9::text, $10::text
         FROM dead
         ON CONFLICT (consumer, message_id) DO UPDATE SET
             event_time = EXCLUDED.event_time, stream = EXCLUDED.stream,
             stream_seq = EXCLUDED.stream_seq, attempts = EXCLUDED.attempts,
             cause = EXCLUDED.cause, reason = EXCLUDED.reason, dead_at = EXCLUDED.dead_at
         RETURNING letter.message_id"
    )
}
