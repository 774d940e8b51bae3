//! Rows taken for publishing without a log, beside others who do the same.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use outbox::Column;
use tokio_postgres::binary_copy::BinaryCopyOutStream;

use super::statements::NOT_MARKED;
use super::{ScannedRow, Store};
use crate::database::rows::scanned_columns;
use crate::database::shape;
use crate::error::Error;

/// How far a claim looks past the rows of aggregates that somebody else has.
const LOOKED_AT: usize = 1_024;

const DOING: &str = "claim rows";

/// A claim is a transaction: it holds the rows' locks and an advisory lock for each of their
/// aggregates, so that nobody publishes them meanwhile, nor anything that comes after them. It ends
/// with [`finish`](Store::finish_claim), with the connection, or when the server has heard nothing
/// of it for the time of the lease.
impl Store {
    /// Lets the server end claims that nobody renews.
    pub(crate) async fn lease(&self, lease: Duration) -> Result<(), Error> {
        let milliseconds = lease.as_millis();
        let sql = format!("SET idle_in_transaction_session_timeout = {milliseconds}");
        self.client().batch_execute(&sql).await.map_err(Error::sql("configure the session"))
    }

    /// Claims the oldest rows that are free, at most `limit`, in order of insertion. None: then
    /// there is no claim.
    ///
    /// The aggregate's lock comes before the rows': whoever had it before has committed marks that
    /// this statement may not see yet, and locking the rows is what looks at them anew. Each
    /// aggregate is tried once: one that becomes free meanwhile would be entered in its middle.
    pub(crate) async fn claim(&self, limit: usize) -> Result<Vec<ScannedRow>, Error> {
        let outbox = self.table.quoted();
        let begin = format!("BEGIN; LOCK TABLE {outbox} IN ROW EXCLUSIVE MODE");
        self.client().batch_execute(&begin).await.map_err(Error::sql(DOING))?;
        let types = shape::types(self.client(), &outbox).await?;
        let (columns, column_types) = scanned_columns(&self.table, &types)?;
        let name = |column| self.table.column(column);
        let (id, aggregate_id) = (name(Column::Id), name(Column::AggregateId));
        let sql = format!(
            "COPY (WITH oldest AS MATERIALIZED (
                SELECT {id} AS id, seq, hashtextextended('tailpost aggregate '
                    || {kind}::text || E'\\x1f' || {aggregate_id}::text, 0) AS key
                FROM {outbox} WHERE published_at IS NULL ORDER BY seq LIMIT {LOOKED_AT}
             ), keys AS MATERIALIZED (
                SELECT key FROM oldest GROUP BY key ORDER BY min(seq)
             ), locked AS MATERIALIZED (
                SELECT key FROM keys WHERE pg_try_advisory_xact_lock(key) LIMIT {limit}
             ), claimed AS (
                SELECT id FROM oldest JOIN locked USING (key) ORDER BY seq LIMIT {limit}
             )
             SELECT {columns} FROM {outbox}
             WHERE {id} = ANY (ARRAY(SELECT id FROM claimed)) AND {NOT_MARKED}
             ORDER BY seq FOR UPDATE SKIP LOCKED) TO STDOUT (FORMAT binary)",
            kind = name(Column::AggregateType),
        );
        let copied = self.client().copy_out(&sql).await.map_err(Error::sql(DOING))?;
        let rows = pin!(BinaryCopyOutStream::new(copied, &column_types));
        let rows: Vec<_> = rows.try_collect().await.map_err(Error::sql(DOING))?;
        if rows.is_empty() {
            self.finish_claim().await?;
        }
        Ok(rows)
    }

    /// Says that the claim's owner lives.
    pub(crate) async fn renew_claim(&self) -> Result<(), Error> {
        self.client().batch_execute("SELECT").await.map_err(Error::sql("renew a claim"))
    }

    /// Makes durable what was marked and parked in the claim, and lets go of it.
    pub(crate) async fn finish_claim(&self) -> Result<(), Error> {
        self.client().batch_execute("COMMIT").await.map_err(Error::sql("end a claim"))
    }

    /// What keeps claims cheap while many rows wait. Says whether it was missing.
    pub(crate) async fn ensure_poll_index(&self) -> Result<bool, Error> {
        let index = self.table.companion("idx_outbox_unpublished_seq");
        let found = self.client().query_one("SELECT to_regclass($1) IS NULL", &[&index]).await;
        let is_missing = found.map_err(Error::sql("look for the index"))?.get(0);
        let sql = format!(
            "CREATE INDEX IF NOT EXISTS idx_outbox_unpublished_seq ON {} (seq)
             WHERE published_at IS NULL",
            self.table.quoted()
        );
        self.client().batch_execute(&sql).await.map_err(Error::sql("create the index"))?;
        Ok(is_missing)
    }
}
