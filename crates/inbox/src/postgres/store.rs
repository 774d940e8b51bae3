//! Every statement on an event's record. Each transition is one statement, whose `WHERE` is its
//! precondition, on the database's clock; a row it does not touch is an answer, not an error.
//!
//! ```text
//!             claim                  end: processed
//!   (none) ──────────▶ PROCESSING ───────────────▶ PROCESSED
//!                 end:  │  ▲   │ park
//!               failed │  │   └─────────────────▶ DEAD ◀── park (crashes, unreadable)
//!                       ▼  │ claim
//!                      FAILED
//! ```
//!
//! What is done under a claim carries its `lease_token`: who lost the lease changes nothing. A claim
//! takes what is new, what failed and is due, and what was left behind by a worker that gives no
//! sign of life, unless three starts have no end: then the handler kills the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row, Statement, Transaction};
use tracing::warn;
use uuid::Uuid;

use crate::Error;
use crate::connection::Connection;
use crate::message::Message;
use crate::postgres::scope::Scope;
use crate::postgres::sql::{FREE, UNRESOLVED, claim, complete, hold_role, park, renew};
use crate::postgres::sqlstate::{asks_again, is_refused, takes_too_long};
use crate::record::{Cause, Claim, ClaimReply, End, Failed, Key};

#[cfg(test)]
mod tests;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// Reasons are for operators; more than this helps nobody.
const REASON_BYTES_MAX: usize = 8 * 1024;

/// How long a connection notes no failed attempts after a note was refused.
const NOTE_AGAIN: Duration = Duration::from_secs(10);

/// A connection, and its statements, ready to run.
pub(crate) struct Store {
    connection: Connection,
    /// The server's process behind it.
    pid: i32,
    sql: Statements,
}

/// The statements of one connection. Apart from it, so that they can run inside a transaction on it.
#[derive(Clone)]
pub(crate) struct Statements {
    scope: Scope,
    /// Whether the database takes every character.
    takes_any_text: bool,
    record: Statement,
    note: Statement,
    claim: Statement,
    renew: Statement,
    end: Statement,
    end_failed: Statement,
    park_claimed: Statement,
    park_failed: Statement,
    park_crashed: Statement,
    park_forgotten: Statement,
    park_anyhow: Statement,
    /// When a note of failed attempts was refused last, unless one was written since.
    note_refused: Arc<Mutex<Option<Instant>>>,
}

impl Store {
    pub(crate) async fn new(connection: Connection, scope: Scope) -> Result<Self> {
        let client = &connection.client;
        client.batch_execute(MAKE_DURABLE).await?;
        // Sessions are kept for long.
        client.batch_execute("SET idle_session_timeout = 0").await?;
        if !scope.transactional {
            client.batch_execute(LOOK_UP_KEYS).await?;
            client.batch_execute(servers::postgres::WITHOUT_PRUNING).await?;
        }
        client.batch_execute(wait_for_locks(scope.transactional)).await?;
        client.execute(hold_role::MARK_CONNECTION, &[&scope.owner]).await?;
        let about =
            "SELECT pg_backend_pid(), current_setting('server_encoding') IN ('UTF8', 'SQL_ASCII')";
        let about = client.query_one(about, &[]).await?;
        let pid = about.get(0);
        let sql = Statements::prepare(client, scope, about.get(1)).await?;
        Ok(Self { connection, pid, sql })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.connection.client
    }

    /// Of a group in which some records are locked, each is waited for briefly: all have been already.
    pub(crate) async fn wait_briefly(&self, is_group: bool) -> std::result::Result<(), Error> {
        let usual = wait_for_locks(self.sql.scope.transactional);
        let sql = if is_group { "SET lock_timeout = '50ms'" } else { usual };
        let set = self.client().batch_execute(sql).await;
        set.map_err(Error::sql("set how long locks are waited for"))
    }

    /// The server's process behind the connection.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
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
    async fn prepare(client: &Client, scope: Scope, takes_any_text: bool) -> Result<Self> {
        let schema = &*scope.schema;
        let free = if scope.transactional { UNRESOLVED } else { FREE };
        let types = [Type::TEXT, Type::UUID_ARRAY, Type::TIMESTAMPTZ_ARRAY];
        let prepare = async |text: String| client.prepare_typed(&text, &types).await;
        Ok(Self {
            record: prepare(claim::record_new_events(schema)).await?,
            note: prepare(complete::note_outcomes(schema)).await?,
            claim: prepare(claim::claim_events(schema, free)).await?,
            renew: prepare(renew::extend_leases(schema)).await?,
            end: prepare(complete::end_claims(schema)).await?,
            end_failed: prepare(complete::end_failed_claims(schema)).await?,
            park_claimed: prepare(park::park_claimed(schema)).await?,
            park_failed: prepare(park::park_failed(schema)).await?,
            park_crashed: prepare(park::park_crashed(schema, free)).await?,
            park_forgotten: prepare(park::park_forgotten(schema)).await?,
            park_anyhow: prepare(park::park_anyhow(schema, free)).await?,
            note_refused: Arc::default(),
            scope,
            takes_any_text,
        })
    }

    /// Claims and completes new events at once, under the token `role`, for a transaction that their
    /// effects are in too. Returns those that were new; of the others there is a record already.
    pub(crate) async fn record(
        &self,
        on: &impl GenericClient,
        role: Uuid,
        messages: &[&Message],
    ) -> Result<Vec<Uuid>> {
        let (ids, times, subjects, seqs) = columns_of(messages);
        let Scope { consumer, stream, owner, .. } = &self.scope;
        let rows = on
            .query(&self.record, &[consumer, &ids, &times, &subjects, &seqs, stream, owner, &role])
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Adds what handlers had to say to what [`Statements::record`] wrote in this transaction.
    pub(crate) async fn note(
        &self,
        on: &impl GenericClient,
        outcomes: &[(Key, String)],
    ) -> Result<u64> {
        let rows = outcomes.iter().map(|(key, text)| (key.id, key.event_time, self.harmless(text)));
        let (ids, times, texts): (Vec<_>, Vec<_>, Vec<_>) = rows.collect();
        on.execute(&self.note, &[&self.scope.consumer, &ids, &times, &texts]).await
    }

    /// Claims each of these events (no two with the same key) by `token`, under the token `role`, and
    /// says what it found, in their order.
    pub(crate) async fn claim(
        &self,
        on: &impl GenericClient,
        (role, token): (Uuid, Uuid),
        messages: &[&Message],
    ) -> Result<Vec<ClaimReply>> {
        let (ids, times, subjects, seqs) = columns_of(messages);
        let Scope { consumer, stream, owner, lease, .. } = &self.scope;
        let lease = lease.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 10] =
            [consumer, &ids, &times, &subjects, &seqs, stream, owner, &token, &lease, &role];
        let rows = on.query(&self.claim, &parameters).await?;
        let replies: HashMap<Uuid, ClaimReply> =
            rows.iter().map(|row| (row.get(0), claim_of(row))).collect();
        Ok(ids.iter().map(|id| replies[id]).collect())
    }

    /// Extends leases. Returns those that are still ours, and whether they were extended: not those of
    /// records that somebody has locked.
    pub(crate) async fn renew(
        &self,
        on: &impl GenericClient,
        claims: &[Claim],
    ) -> Result<Vec<(Uuid, bool)>> {
        let (ids, times, tokens) = tokens_of(claims.iter());
        let lease = self.scope.lease.as_secs_f64();
        let consumer = &self.scope.consumer;
        let rows = on.query(&self.renew, &[consumer, &ids, &times, &tokens, &lease]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Ends claims, each in its way, and notes the attempts that failed, which needs no transaction to be
    /// open. Returns those that were still ours.
    pub(crate) async fn end(
        &self,
        on: &impl GenericClient,
        ends: &[(Claim, End<'_>)],
    ) -> Result<Vec<Uuid>> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, times, tokens) = tokens_of(ends.iter().map(|(claim, _)| claim));
        let columns = ends.iter().map(|(_, end)| match end {
            End::Processed { outcome } => ("PROCESSED", outcome.map(|it| self.harmless(it)), 0.0),
            End::Failed { reason, delay, .. } => {
                ("FAILED", Some(self.harmless(reason)), delay.as_secs_f64())
            }
            End::GivenBack { failed } => {
                ("PROCESSING", failed.map(|it| self.harmless(it.reason)), 0.0)
            }
        });
        let (statuses, words, delays): (Vec<_>, Vec<_>, Vec<_>) = columns.collect();
        let parameters: [&(dyn ToSql + Sync); 7] =
            [&self.scope.consumer, &ids, &times, &tokens, &statuses, &words, &delays];
        let failed = ends.iter().map(|(_, end)| match end {
            End::Processed { .. } => None,
            End::Failed { reason, took, .. } => took.map(|took| Failed { reason, took }),
            End::GivenBack { failed } => *failed,
        });
        let noting = failed.clone().any(|it| it.is_some()).then_some(&self.end_failed);
        let (codes, took): (Vec<_>, Vec<_>) = failed.map(noted).unzip();
        let more: [&(dyn ToSql + Sync); 2] = [&codes, &took];
        let rows = self.run(on, (noting, &self.end), &parameters, &more).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Whether the claim is still ours, and has no end.
    pub(crate) async fn is_ours(&self, on: &impl GenericClient, claim: Claim) -> Result<bool> {
        let (ids, times, tokens) = tokens_of(std::iter::once(&claim));
        let sql = complete::find_unended(&self.scope.schema);
        let found = on.query_opt(&sql, &[&self.scope.consumer, &ids, &times, &tokens]).await;
        Ok(found?.is_some())
    }

    /// Runs the statement that ends claims and notes failed attempts, if there are any. What cannot be
    /// noted keeps no event from its end: then, and for a while, the other statement does the same
    /// without the notes.
    async fn run(
        &self,
        on: &impl GenericClient,
        (noting, plain): (Option<&Statement>, &Statement),
        parameters: &[&(dyn ToSql + Sync)],
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        // What has its effect costs nothing more.
        let note_refused = || self.note_refused.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused_now = note_refused().is_some_and(|it| it.elapsed() < NOTE_AGAIN);
        let Some(noting) = noting.filter(|_| !is_refused_now) else {
            return on.query(plain, parameters).await;
        };
        let refusal = match on.query(noting, &[parameters, more].concat()).await {
            Err(error) if is_refused(&error) || asks_again(&error) || takes_too_long(&error) => {
                error
            }
            noted => {
                if noted.is_ok() {
                    *note_refused() = None;
                }
                return noted;
            }
        };
        let rows = on.query(plain, parameters).await?;
        if note_refused().replace(Instant::now()).is_none() {
            warn!(
                consumer = self.scope.consumer,
                error = Error::sql("note failed attempts")(refusal).without_data(),
                hint = "see the rights on `inbox_attempts` in docs/security.md",
                "failed attempts are not noted"
            );
        }
        Ok(rows)
    }

    /// What a handler or a service says, which may be in any language. The database must not refuse it:
    /// its event would become a dead letter.
    fn harmless(&self, reason: &str) -> String {
        let reason = storable(reason);
        if self.takes_any_text { reason } else { ascii(&reason) }
    }

    /// Makes an event a dead letter. `claim` is what was claimed, if it was, and how long the attempt took
    /// that failed, if one did; otherwise it is done under the token `role`. Says whether it is one now
    /// by our doing.
    pub(crate) async fn park(
        &self,
        on: &impl GenericClient,
        message: &Message,
        (role, claim): (Uuid, Option<(Claim, Option<Duration>)>),
        cause: Cause,
        reason: &str,
    ) -> Result<bool> {
        let Scope { consumer, stream, .. } = &self.scope;
        let statement = match (cause, claim) {
            (_, Some(_)) => &self.park_claimed,
            (Cause::Crashes, None) => &self.park_crashed,
            (Cause::Forgotten, None) => &self.park_forgotten,
            (
                Cause::Dead
                | Cause::MaxAttempts
                | Cause::Expired
                | Cause::Unreadable
                | Cause::Unrecordable
                | Cause::Gone,
                None,
            ) => &self.park_anyhow,
        };
        // What cannot be refused: plain ASCII, and the rest as bytes.
        let (subject, headers, raw, reason) = if cause == Cause::Unrecordable {
            let (subject, reason) = (ascii(&message.subject), ascii(&storable(reason)));
            (subject, "{}".to_owned(), Some(message.header_block()), reason)
        } else {
            let raw = message.raw_headers.clone();
            (message.subject.clone(), message.headers_json(), raw, self.harmless(reason))
        };
        let Key { id, event_time } = message.key;
        let seq = message.stream_seq.cast_signed();
        let token = claim.map_or(role, |(claim, _)| claim.token);
        let failed = claim.and_then(|(_, took)| Some(Failed { reason: &reason, took: took? }));
        let (code, took) = noted(failed);
        let payload = &message.payload[..];
        let parameters: [&(dyn ToSql + Sync); 13] = [
            consumer,
            &vec![id],
            &vec![event_time],
            &subject,
            stream,
            &seq,
            &headers,
            &payload,
            &cause.name(),
            &reason,
            &token,
            &raw.as_deref(),
            &message.stream_created,
        ];
        let more: [&(dyn ToSql + Sync); 2] = [&code, &took];
        let noting = took.is_some().then_some(&self.park_failed);
        let rows = self.run(on, (noting, statement), &parameters, &more).await?;
        Ok(!rows.is_empty())
    }
}

/// What is committed here survives a crash of the server, whatever the role's or the database's
/// default: the message is acknowledged, or a decision reported, once it is.
pub const MAKE_DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// Every statement of ours looks for a few records by their keys. Planning anew, or compiling, would
/// take longer.
const LOOK_UP_KEYS: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off;
    SET enable_seqscan = off";

/// A duplicate that another worker has at work is not waited for. On a connection of ours nothing keeps a
/// record locked for longer than it takes to commit.
fn wait_for_locks(is_transactional: bool) -> &'static str {
    if is_transactional { "SET lock_timeout = '5s'" } else { "SET lock_timeout = '1s'" }
}

type Columns<'a> = (Vec<Uuid>, Vec<Timestamp>, Vec<&'a str>, Vec<i64>);

fn columns_of<'a>(messages: &[&'a Message]) -> Columns<'a> {
    let row = |it: &&'a Message| {
        (it.key.id, it.key.event_time, it.subject.as_str(), it.stream_seq.cast_signed())
    };
    messages.iter().map(row).collect()
}

type Tokens = (Vec<Uuid>, Vec<Timestamp>, Vec<Uuid>);

fn tokens_of<'a>(claims: impl Iterator<Item = &'a Claim>) -> Tokens {
    claims.map(|it| (it.key.id, it.key.event_time, it.token)).collect()
}

/// What is noted of an attempt: its code, and how many milliseconds it took.
fn noted(failed: Option<Failed<'_>>) -> (Option<i16>, Option<i32>) {
    let took = failed.map(|it| i32::try_from(it.took.as_millis()).unwrap_or(i32::MAX));
    (failed.and_then(|it| it.code()), took)
}

fn claim_of(row: &Row) -> ClaimReply {
    let count = |index: usize| u32::try_from(row.get::<_, i32>(index)).unwrap_or(0);
    let duration = |secs: f64| Duration::try_from_secs_f64(secs).unwrap_or_default();
    let remaining = || duration(row.get(4));
    let age = || row.get::<_, Option<f64>>(5).map(duration);
    match row.get(1) {
        "claimed" => ClaimReply::Claimed { attempts: count(2), unfinished: count(3), age: age() },
        "resolved" => ClaimReply::Resolved,
        "leased" => ClaimReply::Leased { remaining: remaining() },
        "early" => ClaimReply::Early { remaining: remaining() },
        "crashed" => ClaimReply::Crashed { attempts: count(2) },
        "forgotten" => ClaimReply::Forgotten,
        _ => ClaimReply::Contended,
    }
}

/// For a text that a database of any encoding takes.
fn ascii(text: &str) -> String {
    text.replace(|c: char| !(' '..='~').contains(&c), "?")
}

/// PostgreSQL's texts have no NUL; cut at a character.
fn storable(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason[..end].replace('\0', "\u{fffd}")
}
