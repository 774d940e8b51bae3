//! Rows that the log owns and no mark has reached.

use std::collections::HashSet;

use outbox::Column;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Store, Watermark};
use crate::core::{Age, Settled, Unmarked};
use crate::error::Error;

/// Rows swept at a time.
pub(crate) const SWEPT_AT_ONCE: usize = 5_000;

/// Below every snapshot: a row of this transaction is the scanner's, whenever the slot was created.
const OLDEST_TRANSACTION: u8 = 3;

/// Rows of these came back to the outbox, for the scanner: dead letters that were requeued, and what
/// the log did not bring. PostgreSQL gives no transaction a smaller number.
pub(super) const CAME_BACK: &str = "txid < '4'";

/// Where unmarked rows are looked for.
#[derive(Debug, Clone)]
pub(crate) enum Swath {
    /// In the whole table.
    Whole,
    /// Only among what was not swept before, which an index leads to if there is
    /// [one](Store::has_index_of_transactions).
    SinceSwept {
        /// The transaction that the last look ended with; it left nothing before.
        from: Option<String>,
    },
}

/// What a look found.
#[derive(Debug)]
pub(crate) struct Swept {
    pub(crate) rows: Vec<Unmarked>,
    /// The transaction of the last of them.
    pub(crate) reached: Option<String>,
}

impl Swath {
    /// Where the next look goes on.
    pub(crate) fn after(&self, reached: Option<String>) -> Self {
        match self {
            Self::Whole => Self::Whole,
            Self::SinceSwept { .. } => Self::SinceSwept { from: reached },
        }
    }
}

impl Store {
    /// Parked events that were not visible when they were parked leave the outbox.
    pub(crate) async fn sweep_dead(
        &self,
        start_snapshot: &str,
        watermark: &Watermark,
    ) -> Result<(), Error> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&start_snapshot, &watermark.snapshot];
        let deleted = self.client().execute(&self.sql.sweep_dead, &parameters).await;
        deleted.map_err(Error::sql("remove parked rows")).map(|_| ())
    }

    /// Unmarked rows of the log that the watermark covers, at most [`SWEPT_AT_ONCE`], each with its
    /// age by `swept`, below which everything was marked.
    pub(crate) async fn unmarked(
        &self,
        start_snapshot: &str,
        watermark: &Watermark,
        swept: Option<&Watermark>,
        swath: &Swath,
    ) -> Result<Swept, Error> {
        let snapshot = &watermark.snapshot;
        let swept = swept.map(|it| &*it.snapshot);
        let common: [&(dyn ToSql + Sync); 3] = [&start_snapshot, snapshot, &swept];
        let rows = match swath {
            Swath::SinceSwept { from } if swept.is_some() => {
                let [start, snapshot, swept] = common;
                let parameters = [start, snapshot, swept, from];
                self.client().query(&self.sql.unmarked_since, &parameters).await
            }
            _ => self.client().query(&self.sql.unmarked, &common).await,
        };
        let rows = rows.map_err(Error::sql("look for unmarked rows"))?;
        let age = |is_visible: Option<bool>, is_later: Option<bool>| match (is_visible, is_later) {
            (Some(true), _) => Age::Swept,
            (_, Some(true)) => Age::Later,
            _ => Age::Unknown,
        };
        let unmarked = rows.iter().map(|row| Unmarked {
            id: row.get(0),
            is_dropped: row.get(1),
            age: age(row.get(2), row.get(3)),
        });
        let reached = rows.last().and_then(|row| row.get(4));
        Ok(Swept { rows: unmarked.collect(), reached })
    }

    /// Marks rows of which nobody knows where in the stream they are.
    pub(crate) async fn mark_on_trust(&self, stream: &str, ids: &[Uuid]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let marked = self.client().execute(&self.sql.mark_on_trust, &[&ids, &stream]).await;
        marked.map_err(Error::sql("sweep unmarked rows"))
    }

    /// Makes rows the scanner's, which will publish them: the log did not bring them.
    pub(crate) async fn leave_to_the_scanner(&self, ids: &[Uuid]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let sql = format!(
            "UPDATE {} SET txid = '{OLDEST_TRANSACTION}' WHERE {} = ANY($1)
                 AND published_at IS NULL",
            self.table.quoted(),
            self.table.column(Column::Id)
        );
        let left = self.client().execute(&sql, &[&ids]).await;
        left.map_err(Error::sql("leave rows to the scanner"))
    }

    /// Which of the events have a marked row.
    pub(super) async fn marked(&self, settled: &[Settled]) -> Result<HashSet<Uuid>, Error> {
        let ids: Vec<Uuid> = settled.iter().map(|it| it.id).collect();
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql =
            format!("SELECT {id} FROM {outbox} WHERE {id} = ANY($1) AND published_at IS NOT NULL");
        let rows = self.client().query(&sql, &[&ids]).await;
        let rows = rows.map_err(Error::sql("look for rows that were not marked"))?;
        Ok(rows.iter().map(|it| it.get(0)).collect())
    }
}
