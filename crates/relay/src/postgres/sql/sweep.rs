//! Rows that the log owns and no mark has reached.

use std::collections::HashSet;
use std::pin::Pin;

use futures_util::TryStreamExt;
use outbox::Column;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, RowStream};
use uuid::Uuid;

use super::mark::NOT_MARKED;
use super::{Marks, Store};
use crate::engine::{
    Age, MARKS_AT_ONCE, Resolved, SWEPT_AT_ONCE, Stored, SweepRange, Unmarked, Watermark,
};
use crate::error::Error;

const LOOKING: &str = "look for unmarked rows";

/// Below every snapshot: a row of this transaction is the scanner's, whenever the slot was created.
pub const OLDEST_TRANSACTION: u8 = 3;

/// Rows of these came back to the outbox, for the scanner: dead letters that were requeued, and what
/// the log did not bring. PostgreSQL gives no transaction a smaller number.
pub const CAME_BACK: &str = "txid < '4'";

/// One look at all unmarked rows of the log that a watermark covers, however many they are: what is
/// not taken waits on the connection and in the server.
pub(crate) struct SweepCursor {
    store: Store,
    rows: Pin<Box<RowStream>>,
}

impl SweepCursor {
    /// The next [`SWEPT_AT_ONCE`]; fewer at the end.
    pub(crate) async fn batch(&mut self) -> Result<Vec<Unmarked>, Error> {
        let mut batch = Vec::new();
        while batch.len() < SWEPT_AT_ONCE
            && let Some(row) = self.store.statement(LOOKING, self.rows.try_next()).await?
        {
            batch.push(unmarked(&row));
        }
        Ok(batch)
    }
}

fn unmarked(row: &Row) -> Unmarked {
    let age = match (row.get(2), row.get(3)) {
        (Some(true), _) => Age::Swept,
        (_, Some(true)) => Age::Later,
        _ => Age::Unknown,
    };
    Unmarked { id: row.get(0), is_dropped: row.get(1), age }
}

impl Store {
    /// Parked events that were not visible when they were parked leave the outbox. Where a trigger or a
    /// constraint is against it, each of them is owed that.
    pub(crate) async fn sweep_dead(
        &self,
        start_snapshot: &str,
        watermark: &Watermark,
    ) -> Result<(), Error> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&start_snapshot, &watermark.snapshot];
        let doing = "remove parked rows";
        match self.perform(doing, &self.sql.sweep_dead, &parameters).await {
            Err(error) if error.may_be_about_a_row() => {
                self.perform(doing, &self.sql.owe_dead, &parameters).await
            }
            swept => swept,
        }
    }

    /// As [`unmarked`](Marks::unmarked), but all of them, read as they are taken. The connection is
    /// this look's from then on.
    pub(crate) async fn look(
        self,
        start_snapshot: &str,
        watermark: &Watermark,
        swept: Option<&Watermark>,
        range: SweepRange,
    ) -> Result<SweepCursor, Error> {
        // As long as the statement takes is as long as marking takes. What an index leads to is not
        // to be sorted.
        let set = "SET statement_timeout = 0; SET lock_timeout = '2s'; SET enable_sort = off";
        self.batch_execute(LOOKING, set).await?;
        let swept = swept.map(|it| &*it.snapshot);
        let parameters: [&(dyn ToSql + Sync); 3] = [&start_snapshot, &watermark.snapshot, &swept];
        let sql = self.sql.unmarked(range, swept.is_some());
        let rows = self.query_raw(LOOKING, sql, parameters).await?;
        Ok(SweepCursor { store: self, rows: Box::pin(rows) })
    }

    /// Marks rows whose messages were read in the stream.
    pub async fn mark_stored(&self, stream: &str, stored: &[Stored]) -> Result<u64, Error> {
        let resolved = |it: &Stored| Resolved { seq: Some(it.seq), ..Resolved::somewhere(it.id) };
        let mut marked = 0;
        for batch in stored.chunks(MARKS_AT_ONCE) {
            let batch: Vec<Resolved> = batch.iter().map(resolved).collect();
            marked += self.mark(stream, &batch).await?.rows;
        }
        Ok(marked)
    }

    /// Makes rows the scanner's, which will publish them: the log did not bring them. Locked ones stay
    /// as they are. Returns how many were made so.
    pub(crate) async fn leave_to_the_scanner(&self, ids: &[Uuid]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql = format!(
            "UPDATE {outbox} SET txid = '{OLDEST_TRANSACTION}' WHERE {id} = ANY (ARRAY(
                 SELECT {id} FROM {outbox} WHERE {id} = ANY($1) AND {NOT_MARKED}
                 FOR NO KEY UPDATE SKIP LOCKED))"
        );
        self.execute("leave rows to the scanner", &sql, &[&ids]).await
    }

    /// Whether a row of one of the events has no mark.
    pub(super) async fn is_any_unmarked(&self, resolved: &[Resolved]) -> Result<bool, Error> {
        let ids: Vec<Uuid> = resolved.iter().map(|it| it.id).collect();
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql =
            format!("SELECT EXISTS (SELECT FROM {outbox} WHERE {id} = ANY($1) AND {NOT_MARKED})");
        let row = self.query_one("look for rows that were not marked", &sql, &[&ids]).await?;
        Ok(row.get(0))
    }

    /// Which of the events have a marked row.
    pub(super) async fn marked(&self, resolved: &[Resolved]) -> Result<HashSet<Uuid>, Error> {
        let ids: Vec<Uuid> = resolved.iter().map(|it| it.id).collect();
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql =
            format!("SELECT {id} FROM {outbox} WHERE {id} = ANY($1) AND published_at IS NOT NULL");
        let rows = self.query("look for rows that were not marked", &sql, &[&ids]).await?;
        Ok(rows.iter().map(|it| it.get(0)).collect())
    }
}

impl Marks {
    /// Unmarked rows of the log that the watermark covers, at most [`SWEPT_AT_ONCE`], each with its
    /// age by `swept`, below which everything was marked.
    pub(crate) async fn unmarked(
        &self,
        start_snapshot: &str,
        watermark: &Watermark,
        swept: Option<&Watermark>,
        range: SweepRange,
    ) -> Result<Vec<Unmarked>, Error> {
        let swept = swept.map(|it| &*it.snapshot);
        let parameters: [&(dyn ToSql + Sync); 3] = [&start_snapshot, &watermark.snapshot, &swept];
        let sql = format!("{} LIMIT {SWEPT_AT_ONCE}", self.0.sql.unmarked(range, swept.is_some()));
        let rows = self.0.query(LOOKING, &sql, &parameters).await?;
        Ok(rows.iter().map(unmarked).collect())
    }
}
