//! Rows read from the table, as many as there are, in bounded memory.

use std::error::Error as StdError;
use std::pin::Pin;

use futures_util::TryStreamExt;
use tokio_postgres::binary_copy::BinaryCopyOutStream;
use tokio_postgres::types::{FromSql, Type};

use super::{Books, Scan, Store, mark, sweep};
use crate::engine::ScanRange;
use crate::error::Error;
use crate::postgres::rows::{ScannedRow, scanned_columns};

const DOING: &str = "scan for unpublished rows";

/// One pass over the unmarked rows that the log does not bring, in order of insertion.
///
/// A binary `COPY`: what is not taken waits on the connection and in the server. Its transaction
/// lasts until [`close`](Self::close), and until then the table keeps its columns.
pub(crate) struct Scanner {
    store: Store,
    rows: Pin<Box<BinaryCopyOutStream>>,
    is_at_end: bool,
    process: i32,
}

impl Store {
    /// Whether a transaction that `snapshot` shows is not visible yet. A slot's snapshot goes by the log,
    /// which has a commit before it is visible: a synchronous standby may have to confirm it first.
    pub(crate) async fn has_hidden(&self, snapshot: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()) AS running
                       WHERE pg_visible_in_snapshot(running, $1::text::pg_snapshot))";
        Ok(self.query_one("look for commits that are not visible", sql, &[&snapshot]).await?.get(0))
    }
}

impl Scan {
    /// Begins the transaction of a pass. All of it is of one snapshot,
    /// [`blocked`](Self::blocked) included.
    pub(crate) async fn open_scan(&self) -> Result<(), Error> {
        let outbox = self.0.table.quoted();
        // As long as the statement takes is as long as the broker takes. A bitmap scan would visit
        // all rows that were marked since the last vacuum, each time.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0;
             SET LOCAL enable_bitmapscan = off;
             LOCK TABLE {outbox} IN ACCESS SHARE MODE"
        );
        self.0.batch_execute(DOING, &begin).await
    }

    /// Ends the transaction of a pass that reads nothing.
    pub(crate) async fn abandon_scan(&self) -> Result<(), Error> {
        self.0.batch_execute("end a scan", "ROLLBACK").await
    }

    /// The transaction's snapshot, if the slot that the server's process `maker` makes will show all
    /// that it shows. `None` if that is not certain now.
    ///
    /// A slot is made in steps. Each waits for the transactions of one record of running ones, and
    /// the next record that counts is written after they have left the list of those that run. A row
    /// that is visible here has its commit in the log before this snapshot was taken. If `maker`
    /// waits for a transaction that this snapshot shows as running, then the record at which the slot
    /// becomes consistent is written later than this snapshot is taken: the commit precedes it, the
    /// slot's start snapshot shows the row, and its log does not bring it. A transaction that is still
    /// open here stays the slot's or the next session's scanner's.
    pub(crate) async fn before_slot_of(&self, maker: i32) -> Result<Option<String>, Error> {
        let sql = "SELECT pg_current_snapshot()::text WHERE EXISTS (
                SELECT FROM pg_locks, pg_snapshot_xip(pg_current_snapshot()) AS running
                WHERE pid = $1 AND locktype = 'transactionid' AND NOT granted
                    AND transactionid = running::xid)";
        let row = self.0.query_opt("look what the slot waits for", sql, &[&maker]).await?;
        Ok(row.map(|row| row.get(0)))
    }

    /// Begins to read the rows that are visible in `start_snapshot`, in the transaction that
    /// [`open_scan`](Self::open_scan) began.
    pub(crate) async fn scan(
        self,
        start_snapshot: &str,
        range: ScanRange,
    ) -> Result<Scanner, Error> {
        let outbox = self.0.table.quoted();
        let types = self.0.types(&outbox).await?;
        let (columns, column_types) = scanned_columns(&self.0.table, &types)?;
        // COPY takes no parameters; the snapshot came from the server's own output function.
        let sql = format!(
            "COPY (SELECT {columns} FROM {outbox} o
                   WHERE published_at IS NULL
                     AND pg_visible_in_snapshot({transaction}, '{snapshot}'::pg_snapshot)
                     AND {in_range}
                     AND {owned} AND {not_owed}
                   ORDER BY seq) TO STDOUT (FORMAT binary)",
            transaction = mark::transaction("o"),
            owned = self.0.owned_rows("o"),
            not_owed = mark::not_owed(&self.0.table),
            snapshot = start_snapshot.replace('\'', "''"),
            in_range = match range {
                ScanRange::Whole => mark::not_published(&self.0.table, "o"),
                // Older than every slot: none of them ever brought it.
                ScanRange::CameBack => sweep::CAME_BACK.to_owned(),
            },
        );
        let process = self.0.query_one(DOING, "SELECT pg_backend_pid()", &[]).await?.get(0);
        let copied = self.0.copy_as_stored(DOING, &sql).await?;
        let rows = Box::pin(BinaryCopyOutStream::new(copied, &column_types));
        Ok(Scanner { store: self.0, rows, is_at_end: false, process })
    }
}

impl Books {
    /// What is visible is on the disk afterwards.
    pub(crate) async fn flush_log(&self) -> Result<(), Error> {
        self.0.flush_log().await
    }

    /// Whether others wait for a table that the server's process `process` reads.
    pub(crate) async fn is_waited_for(&self, process: i32) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (
                SELECT FROM pg_locks held JOIN pg_locks wanted USING (locktype, database, relation)
                WHERE held.pid = $1 AND held.granted AND locktype = 'relation'
                    AND NOT wanted.granted AND wanted.pid <> $1)";
        Ok(self.0.query_one("look who waits for a scan", sql, &[&process]).await?.get(0))
    }
}

impl Scanner {
    /// The server's process that reads for it.
    pub(crate) fn process(&self) -> i32 {
        self.process
    }

    /// The next rows, until they are `rows_max` or hold `bytes_max`; none at the end.
    pub(crate) async fn batch(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<ScannedRow>, Error> {
        if self.is_at_end {
            return Ok(Vec::new());
        }
        let (batch, is_at_end) = take_rows(DOING, &mut self.rows, rows_max, bytes_max).await?;
        self.is_at_end = is_at_end;
        Ok(batch)
    }

    /// Ends the pass. What is left of it is not waited for.
    pub(crate) async fn close(self) -> Result<(), Error> {
        if self.is_at_end {
            self.store.batch_execute("end a scan", "COMMIT").await?;
        }
        Ok(())
    }
}

/// The length of a value, whatever its type.
struct Length(usize);

impl<'a> FromSql<'a> for Length {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw.len()))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(0))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// The next rows of a copy, until they are `rows_max` or hold `bytes_max`; and whether it has ended.
pub(super) async fn take_rows(
    doing: &'static str,
    rows: &mut Pin<Box<BinaryCopyOutStream>>,
    rows_max: usize,
    bytes_max: usize,
) -> Result<(Vec<ScannedRow>, bool), Error> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while taken.len() < rows_max && bytes < bytes_max {
        let Some(row) = rows.try_next().await.map_err(Error::sql(doing))? else {
            return Ok((taken, true));
        };
        bytes += size(&row)?;
        taken.push(row);
    }
    Ok((taken, false))
}

fn size(row: &ScannedRow) -> Result<usize, Error> {
    let mut size = 0;
    for column in outbox::Column::ALL {
        let length: Length = row.try_get(column as usize).map_err(Error::sql(DOING))?;
        size += length.0;
    }
    Ok(size)
}
