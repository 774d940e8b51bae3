//! Rows taken for publishing without a log, beside others who do the same.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use outbox::{Column, Table};
use tokio_postgres::binary_copy::BinaryCopyOutStream;
use uuid::Uuid;

use super::mark::{NOT_MARKED, not_owed};
use super::{Rows, ScannedRow, Store};
use crate::engine::backoff;
use crate::error::Error;
use crate::postgres::rows::scanned_columns;

/// How far a claim looks past the rows of aggregates that other nodes have claimed.
const LOOKED_AT: usize = 1_024;

const DOING: &str = "claim rows";

/// The key of the advisory lock that a claim has of a row's aggregate.
pub fn aggregate_key(table: &Table) -> String {
    format!(
        "hashtextextended('tailpost aggregate ' || coalesce({}::text, '')
             || E'\\x1f' || coalesce({}::text, ''), 0)",
        table.column(Column::AggregateType),
        table.column(Column::AggregateId),
    )
}

/// A claim is an advisory lock of the session's for each of the aggregates that it has rows of, so that
/// nobody publishes these meanwhile, nor anything that comes after them. It ends with
/// [`finish`](Self::finish_claim), with the connection, or when the server has heard nothing of it for
/// the time of the lease. No transaction is open meanwhile: it would keep others from changing the
/// table, and vacuum from cleaning up, for as long as the broker takes.
impl Rows {
    /// Claims the oldest rows that are free, at most `limit`, in order of insertion. None: then
    /// there is no claim. The server ends it unless it is [renewed](Self::renew_claim) within `lease`.
    ///
    /// The aggregate's lock comes before its rows are read: whoever had it before has committed its
    /// marks, and a statement that begins later sees them. Each aggregate is tried once: one that becomes
    /// free meanwhile would be entered in its middle. One of which an event is not due waits.
    pub(crate) async fn claim(
        &self,
        limit: usize,
        lease: Duration,
    ) -> Result<Vec<ScannedRow>, Error> {
        let outbox = self.0.table.quoted();
        let lease = format!("SET idle_session_timeout = {}", lease.as_millis());
        self.0.batch_execute(DOING, &lease).await?;
        let id = self.0.table.column(Column::Id);
        let sql = format!(
            "WITH oldest AS MATERIALIZED (
                SELECT {id} AS id, seq, coalesce(next_attempt_at > clock_timestamp(), false)
                        AND next_attempt_at < clock_timestamp() + make_interval(secs => {pause_max}) AS waits,
                    {key} AS key
                FROM {outbox} o WHERE published_at IS NULL AND {not_owed}
                ORDER BY seq LIMIT {LOOKED_AT}
             ), keys AS MATERIALIZED (
                SELECT key FROM oldest GROUP BY key HAVING NOT bool_or(waits) ORDER BY min(seq)
             ), locked AS MATERIALIZED (
                SELECT key FROM keys WHERE pg_try_advisory_lock(key) LIMIT {limit}
             )
             SELECT id FROM oldest JOIN locked USING (key) ORDER BY seq LIMIT {limit}",
            key = aggregate_key(&self.0.table),
            pause_max = backoff::EVENT.max.as_secs_f64(),
            not_owed = not_owed(&self.0.table),
        );
        let rows = self.0.query(DOING, &sql, &[]).await?;
        let ids: Vec<Uuid> = rows.iter().map(|it| it.get(0)).collect();
        let unmarked = format!("{NOT_MARKED} AND {}", not_owed(&self.0.table));
        let rows =
            if ids.is_empty() { Vec::new() } else { self.0.rows_of(&ids, &unmarked).await? };
        match rows.is_empty() {
            true => self.finish_claim().await?,
            false => self.0.flush_log().await?,
        }
        Ok(rows)
    }

    /// Says that the claim's owner lives.
    pub(crate) async fn renew_claim(&self) -> Result<(), Error> {
        self.0.batch_execute("renew a claim", "SELECT").await
    }

    /// Lets go of a claim.
    pub(crate) async fn finish_claim(&self) -> Result<(), Error> {
        let sql = "SELECT pg_advisory_unlock_all(); SET idle_session_timeout = 0";
        self.0.batch_execute("end a claim", sql).await
    }
}

impl Store {
    /// With `synchronous_commit = off` rows are visible before their commits are on the disk, and a crash
    /// of the server undoes them. A commit that waits for the disk takes theirs along.
    pub(super) async fn flush_log(&self) -> Result<(), Error> {
        let sql = "SELECT pg_logical_emit_message(true, 'tailpost', '')
                   FROM set_config('synchronous_commit', 'local', true)
                   WHERE pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()";
        self.perform("write what was committed to the disk", sql, &[]).await
    }

    /// Reads the rows of these events that meet a condition.
    pub(crate) async fn rows_of(
        &self,
        ids: &[Uuid],
        condition: &str,
    ) -> Result<Vec<ScannedRow>, Error> {
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let begin = format!("BEGIN; LOCK TABLE {outbox} IN ACCESS SHARE MODE");
        if let Err(error) = self.batch_execute(DOING, &begin).await {
            self.batch_execute(DOING, "ROLLBACK").await?;
            return Err(error);
        }
        let types = self.types(&outbox).await?;
        let (columns, column_types) = scanned_columns(&self.table, &types)?;
        // COPY takes no parameters.
        let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
        let sql = format!(
            "COPY (SELECT {columns} FROM {outbox} o
                   WHERE {id} = ANY ('{{{ids}}}'::uuid[]) AND {condition}
                   ORDER BY seq) TO STDOUT (FORMAT binary)",
            ids = ids.join(","),
        );
        let copied = self.copy_as_stored(DOING, &sql).await?;
        let rows = pin!(BinaryCopyOutStream::new(copied, &column_types));
        let rows: Vec<_> = rows.try_collect().await.map_err(Error::sql(DOING))?;
        self.batch_execute(DOING, "COMMIT").await?;
        Ok(rows)
    }

    /// What keeps claims cheap while many rows wait. Says whether it was missing.
    pub async fn ensure_poll_index(&self) -> Result<bool, Error> {
        let index = self.table.companion("idx_outbox_unpublished_seq");
        let sql = "SELECT to_regclass($1) IS NULL";
        let found = self.query_one("look for the index", sql, &[&index]).await?;
        let is_missing = found.get(0);
        let sql = format!(
            "CREATE INDEX IF NOT EXISTS idx_outbox_unpublished_seq ON {} (seq)
             WHERE published_at IS NULL",
            self.table.quoted()
        );
        self.batch_execute("create the index", &sql).await?;
        Ok(is_missing)
    }
}
