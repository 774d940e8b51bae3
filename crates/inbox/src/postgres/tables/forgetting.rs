//! Old records and decisions go, in small steps, and nobody waits for it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use outbox::quote;
use serde::{Deserialize, Serialize};
use servers::{describe, pause_after};
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{Json, ToSql};
use uuid::Uuid;

use super::{LOOKING, Partition, Partitions, Width};
use crate::Error;
use crate::connection::Connection;
use crate::postgres::attended::answered_within;
use crate::postgres::sql::as_json;
use crate::postgres::sql::attempts;

/// Held while old rows are deleted: one process does it.
const ADVISORY_LOCK: i64 = 0x696E_626F_785F_6F6C; // "inbox_ol"

/// What a statement on records takes at most: it waits for locks for up to 5 s.
const STATEMENT_MAX: Duration = Duration::from_secs(6);

/// What a statement of ours takes at most. On the server it ends a little before.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Rows that one statement deletes at most.
const AT_ONCE: u64 = 1_000;

/// Pages that one statement reads at most.
const PAGES_AT_ONCE: i64 = 512;

/// How long dropping a partition waits for others. Meanwhile the events' statements wait behind it.
const DROP_WAIT: &str = "500ms";

const DELETING: &str = "delete old records of the inbox";

/// For how long what is kept; `None` means for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Records of events: see [`Builder::retention`](crate::Builder::retention).
    pub records: Option<Duration>,
    /// What was decided about dead letters.
    pub decisions: Option<Duration>,
}

/// What [`look_after`] did, or would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Maintained {
    /// Partitions made.
    pub created: u64,
    /// Partitions dropped.
    pub dropped: u64,
    /// Records deleted one by one.
    pub deleted: u64,
    /// Decisions deleted.
    pub decisions: u64,
}

/// What is written down about passes, of whatever process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Upkept {
    /// When the last one came to its end.
    pub last_success_at: Option<Timestamp>,
    /// How long that is ago.
    pub last_success_seconds: Option<f64>,
    /// Records deleted so far, without those of dropped partitions.
    pub records_deleted: u64,
    /// Partitions dropped so far.
    pub partitions_dropped: u64,
    /// Decisions deleted so far.
    pub decisions_deleted: u64,
    /// Why the latest pass failed, if it did.
    pub failure: Option<String>,
    /// When it did.
    pub failed_at: Option<Timestamp>,
}

/// Makes partitions ahead, and forgets what is older than `keep`: records of events, and nothing that
/// is unfinished, nor what a dead letter needs; and old decisions. `None` if another process does at
/// the moment. With `dry_run` it counts what it would delete, and changes nothing. An active inbox
/// does this every hour, on a connection of its own.
///
/// What came of it is written down, also if it fails: see [`Upkept`].
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer.
///
/// # Cancel safety
///
/// Dropping the future ends it after the statement that runs.
pub async fn look_after(
    connection: &Connection,
    schema: &str,
    keep: Keep,
    dry_run: bool,
) -> Result<Option<Maintained>, Error> {
    let client = &connection.client;
    be_modest(client).await?;
    let sql = "SELECT pg_try_advisory_lock($1 # hashtextextended($2, 0))";
    let is_ours = async { client.query_one(sql, &[&ADVISORY_LOCK, &schema]).await };
    if !dry_run && !answered(LOOKING, is_ours).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let done = async {
        let (mut done, before) = Box::pin(forget(client, schema, keep.records, dry_run)).await?;
        if let Some(keep) = keep.decisions {
            for (table, old) in old_decisions(schema) {
                let keep = keep.as_secs_f64();
                done.decisions += forget_rows(client, (&table, &old, "id"), &keep, dry_run).await?;
            }
        }
        // The last: nothing waits for them.
        if let Some(before) = before {
            forget_attempts(client, &quote(schema), before).await?;
        }
        Ok(done)
    };
    let done: Result<Maintained, Error> = done.await;
    if !dry_run {
        note(client, schema, &done).await?;
    }
    let released = async { client.query("SELECT pg_advisory_unlock_all()", &[]).await };
    answered(LOOKING, released).await?;
    done.map(Some)
}

/// What is written down about passes; `None` if there was none.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer.
pub async fn upkept(connection: &Connection, schema: &str) -> Result<Option<Upkept>, Error> {
    let sql = as_json(&format!(
        "SELECT succeeded_at AS last_success_at, failure, failed_at, records_deleted,
             partitions_dropped, decisions_deleted,
             extract(epoch FROM clock_timestamp() - succeeded_at)::float8 AS last_success_seconds
         FROM {}.inbox_retention WHERE succeeded_at IS NOT NULL OR failure IS NOT NULL",
        quote(schema)
    ));
    let row = answered(LOOKING, connection.client.query_opt(&sql, &[])).await?;
    row.map(|row| row.try_get::<_, Json<Upkept>>(0))
        .transpose()
        .map(|it| it.map(|it| it.0))
        .map_err(Error::sql(LOOKING))
}

/// Writes down what came of a pass.
async fn note(
    client: &Client,
    schema: &str,
    done: &Result<Maintained, Error>,
) -> Result<(), Error> {
    let table = format!("{}.inbox_retention", quote(schema));
    let noted = match done {
        Ok(done) => {
            let sql = format!(
                "UPDATE {table} SET succeeded_at = clock_timestamp(), failure = NULL,
                     failed_at = NULL, records_deleted = records_deleted + $1,
                     partitions_dropped = partitions_dropped + $2,
                     decisions_deleted = decisions_deleted + $3"
            );
            let count = u64::cast_signed;
            let counts = [count(done.deleted), count(done.dropped), count(done.decisions)];
            let counts: Vec<&(dyn ToSql + Sync)> = counts.iter().map(|it| it as _).collect();
            answered("write down what was forgotten", client.execute(&sql, &counts)).await
        }
        Err(error) => {
            let sql = format!("UPDATE {table} SET failed_at = clock_timestamp(), failure = $1");
            let why = describe(error);
            // Where even that fails, the error says more.
            let _ = answered("write down a failure", client.execute(&sql, &[&why])).await;
            return Ok(());
        }
    };
    noted.map(drop)
}

/// Nobody waits for us, and we wait for nobody.
async fn be_modest(client: &Client) -> Result<(), Error> {
    let sql = "SET lock_timeout = '1s'; SET statement_timeout = '8s'; SET jit = off";
    answered(LOOKING, client.batch_execute(sql)).await
}

async fn answered<T>(
    doing: &'static str,
    asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    answered_within(ANSWER_MAX, doing, asked).await
}

/// How many rows there are of `these`: a table, and which of its rows.
async fn count(
    client: &Client,
    these: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<u64, Error> {
    let sql = format!("SELECT count(*) FROM {these}");
    let row = answered(LOOKING, client.query_one(&sql, parameters)).await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

/// Also says since when records are kept, if others went.
async fn forget(
    client: &Client,
    schema: &str,
    keep: Option<Duration>,
    dry_run: bool,
) -> Result<(Maintained, Option<Timestamp>), Error> {
    let mut partitions = Partitions::load(client, schema).await?;
    let mut done = Maintained::default();
    if !dry_run {
        done.created = partitions.ahead(client, Width::of(keep)).await?;
    }
    let Some(keep) = keep else { return Ok((done, None)) };
    let horizon = partitions.horizon(client, keep).await?;
    if dry_run {
        let old = partitions.ranges.as_ref().map_or(0, |it| it.before(horizon).len());
        done.dropped = old as u64;
        done.deleted = partitions.delete_before(client, horizon, true).await?;
        return Ok((done, None));
    }
    if partitions.forgotten_before.is_none_or(|before| before < horizon) {
        partitions.forget_before(client, horizon).await?;
        if partitions.ranges.is_none() {
            // Statements that began before know nothing of it.
            sleep(STATEMENT_MAX).await;
        }
    }
    // What an earlier pass had to leave, because somebody had it locked, is older than that.
    let horizon = partitions.forgotten_before.unwrap_or(horizon).min(horizon);
    done.dropped = partitions.drop_before(client, horizon).await?;
    // One partition has records from both sides of the horizon.
    done.deleted = partitions.delete_before(client, horizon, false).await?;
    Ok((done, Some(horizon)))
}

/// What people decided, and the requests to rewind that were carried out, or could not be.
fn old_decisions(schema: &str) -> [(String, String); 2] {
    let schema = quote(schema);
    // What was decided about a dead letter stays while there is one.
    let decided = format!(
        "i.decided_at < clock_timestamp() - make_interval(secs => $1) AND NOT EXISTS (
             SELECT FROM {schema}.inbox_dead_letter d
             WHERE d.consumer = i.consumer AND d.message_id = i.message_id)"
    );
    let ended = "i.ended_at < clock_timestamp() - make_interval(secs => $1)".to_owned();
    [(format!("{schema}.inbox_decisions"), decided), (format!("{schema}.inbox_rewinds"), ended)]
}

/// Rows of a table `i` that are old by the condition, where $1 is how long they are kept, or since when.
/// An index has them in this order.
async fn forget_rows(
    client: &Client,
    (table, old, order): (&str, &str, &str),
    keep: &(dyn ToSql + Sync),
    dry_run: bool,
) -> Result<u64, Error> {
    if dry_run {
        return count(client, &format!("{table} AS i WHERE {old}"), &[keep]).await;
    }
    let sql = format!(
        "DELETE FROM {table} WHERE id = ANY (ARRAY(
             SELECT i.id FROM {table} AS i WHERE {old} ORDER BY i.{order}
             LIMIT {AT_ONCE} FOR UPDATE OF i SKIP LOCKED))"
    );
    let mut deleted = 0;
    loop {
        let began = Instant::now();
        let some = answered("delete old decisions", client.execute(&sql, &[keep])).await?;
        deleted += some;
        if some < AT_ONCE {
            return Ok(deleted);
        }
        pause_after(began.elapsed()).await;
    }
}

/// Attempts at events before `before` of which no record is left, from the oldest to the newest. Each
/// statement goes on behind what the one before has read, whether that had to stay or not.
async fn forget_attempts(client: &Client, schema: &str, before: Timestamp) -> Result<(), Error> {
    let sql = attempts::forget_page(schema);
    let mut behind = (None::<Timestamp>, Uuid::nil(), String::new());
    loop {
        let began = Instant::now();
        let (time, id, consumer) = &behind;
        let page: [&(dyn ToSql + Sync); 4] = [&before, time, id, consumer];
        let last = answered("delete old attempts", client.query_opt(&sql, &page)).await?;
        let Some(last) = last else { return Ok(()) };
        behind = (Some(last.get(0)), last.get(1), last.get(2));
        pause_after(began.elapsed()).await;
    }
}

impl Partitions {
    /// The beginning of the first day that is kept. Never so late that something unfinished is
    /// older.
    async fn horizon(&self, client: &Client, keep: Duration) -> Result<Timestamp, Error> {
        let sql = format!(
            "SELECT least(date_trunc('day', clock_timestamp() - make_interval(secs => $1), 'UTC'),
                 date_trunc('day', (SELECT min(event_time) FROM {}.inbox_messages
                     WHERE status IN ('PROCESSING', 'FAILED')), 'UTC'))",
            self.schema
        );
        let row = answered(LOOKING, client.query_one(&sql, &[&keep.as_secs_f64()])).await?;
        Ok(row.get(0))
    }

    async fn forget_before(&mut self, client: &Client, horizon: Timestamp) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {}.inbox_retention SET forgotten_before = greatest(forgotten_before, $1)",
            self.schema
        );
        answered("write down what is forgotten", client.execute(&sql, &[&horizon])).await?;
        self.forgotten_before = Some(horizon);
        Ok(())
    }

    /// Drops partitions that have nothing from the horizon on, and nothing that anybody needs. One
    /// that somebody reads for longer than [`DROP_WAIT`] is left to the next pass.
    async fn drop_before(&mut self, client: &Client, horizon: Timestamp) -> Result<u64, Error> {
        let schema = self.schema.clone();
        let Some(ranges) = &self.ranges else { return Ok(0) };
        let mut dropped = 0;
        for Partition { name: partition, .. } in ranges.before(horizon) {
            let needed = needed(&schema, &partition);
            let sql = format!("SELECT {needed}");
            if answered(LOOKING, client.query_one(&sql, &[])).await?.get(0) {
                continue;
            }
            // Once more when nobody can change it: a dead letter may have been requeued.
            let script = format!(
                "BEGIN; SET LOCAL lock_timeout = '{DROP_WAIT}'; SET LOCAL statement_timeout = '2s';
                 LOCK TABLE ONLY {schema}.inbox_messages IN ACCESS EXCLUSIVE MODE;
                 LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE;
                 DO $forget$ BEGIN
                     IF NOT ({needed}) THEN DROP TABLE {partition}; END IF;
                 END $forget$;
                 COMMIT"
            );
            if let Err(error) = answered(DROPPING, client.batch_execute(&script)).await {
                let _ = answered(DROPPING, client.batch_execute("ROLLBACK")).await;
                if !is_busy(&error) {
                    return Err(error);
                }
            }
            let sql = "SELECT to_regclass($1) IS NULL";
            if answered(LOOKING, client.query_one(sql, &[&partition])).await?.get(0) {
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Deletes records one by one that are older and that nobody needs. What somebody has locked
    /// stays. Says how many.
    async fn delete_before(
        &self,
        client: &Client,
        horizon: Timestamp,
        dry_run: bool,
    ) -> Result<u64, Error> {
        let tables = match &self.ranges {
            Some(ranges) => {
                let begun = |it: &&Partition| it.since.is_none_or(|since| since < horizon);
                ranges.all().iter().filter(begun).map(|it| it.name.clone()).collect()
            }
            None => vec![format!("{}.inbox_messages", self.schema)],
        };
        let old = format!(
            "m.event_time < $1 AND m.status NOT IN ('PROCESSING', 'FAILED') AND NOT ({})",
            undecided(&self.schema)
        );
        let mut deleted = 0;
        for table in tables {
            let size = "SELECT coalesce(pg_relation_size(to_regclass($1))
                            / current_setting('block_size')::bigint, 0)";
            let pages: i64 = answered(LOOKING, client.query_one(size, &[&table])).await?.get(0);
            let mut page = 0;
            while page < pages {
                let began = Instant::now();
                let range = format!(
                    "m.ctid >= '({page},0)'::tid AND m.ctid < '({},0)'::tid",
                    page + PAGES_AT_ONCE
                );
                let some = if dry_run {
                    let these = format!("ONLY {table} m WHERE {range} AND {old}");
                    count(client, &these, &[&horizon]).await?
                } else {
                    let sql = format!(
                        "DELETE FROM ONLY {table} m WHERE m.ctid = ANY (ARRAY(
                             SELECT m.ctid FROM ONLY {table} m WHERE {range} AND {old}
                             LIMIT {AT_ONCE} FOR UPDATE OF m SKIP LOCKED)) AND {old}"
                    );
                    answered(DELETING, client.execute(&sql, &[&horizon])).await?
                };
                deleted += some;
                if dry_run || some < AT_ONCE {
                    page += PAGES_AT_ONCE;
                }
                pause_after(began.elapsed()).await;
            }
        }
        Ok(deleted)
    }
}

const DROPPING: &str = "drop a partition of the inbox";

/// Whether somebody else has it, or it took too long.
fn is_busy(error: &Error) -> bool {
    let Error::Sql { source, .. } = error else { return false };
    let busy =
        [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED, SqlState::T_R_DEADLOCK_DETECTED];
    source.code().is_some_and(|it| busy.contains(it))
}

/// Whether the record `m` has a letter that nobody has decided about: requeueing it takes both.
fn undecided(schema: &str) -> String {
    format!(
        "m.status = 'DEAD' AND EXISTS (SELECT FROM {schema}.inbox_dead_letter AS d
             WHERE d.consumer = m.consumer AND d.message_id = m.message_id
                 AND d.event_time = m.event_time)"
    )
}

/// Whether a partition has records that are not done with. Looked up by the dead letters, which
/// are few, and by the index of what is unfinished.
fn needed(schema: &str, partition: &str) -> String {
    format!(
        "EXISTS (SELECT FROM {partition} m WHERE m.status IN ('PROCESSING', 'FAILED'))
         OR EXISTS (SELECT FROM {schema}.inbox_dead_letter d JOIN {partition} m
             ON m.consumer = d.consumer AND m.message_id = d.message_id
                 AND m.event_time = d.event_time)"
    )
}

#[cfg(test)]
mod tests {
    use lab::{Postgres, PostgresOptions};

    use super::*;

    /// More than one statement looks at, and most of it stays.
    #[tokio::test]
    async fn attempts_go_with_their_records_page_by_page() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let events = "INSERT INTO inbox_attempts (consumer, message_id, event_time, attempt, took_ms,
                reason)
            SELECT 'c', gen_random_uuid(), date_trunc('day', now()) + n % 1000 * interval '1 s', 1, 1,
                'no'
            FROM generate_series(1, 5000) AS n;
            INSERT INTO inbox_messages (consumer, message_id, event_time, subject, status)
            SELECT consumer, message_id, event_time, 's', 'DEAD' FROM inbox_attempts WHERE id % 5 > 0";
        client.batch_execute(events).await.expect("write attempts");
        let horizon = Timestamp::now() + Duration::from_hours(48);
        forget_attempts(&client, "public", horizon).await.expect("forget them");
        let left = "SELECT count(*) FROM inbox_attempts";
        let left: i64 = client.query_one(left, &[]).await.expect("count").get(0);
        assert_eq!(left, 4_000);
    }
}
