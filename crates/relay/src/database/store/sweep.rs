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
const OLDEST_TRANSACTION: &str = "3";

impl Store {
    /// Unmarked rows of the log that the watermark covers, at most [`SWEPT_AT_ONCE`], each with its
    /// age by `swept`, below which everything was marked. Parked events that were not visible when
    /// they were parked leave the outbox here.
    pub(crate) async fn unmarked(
        &self,
        start_snapshot: &str,
        watermark: &Watermark,
        swept: Option<&Watermark>,
    ) -> Result<Vec<Unmarked>, Error> {
        let doing = "look for unmarked rows";
        let snapshot = &watermark.snapshot;
        let deleted =
            self.client().execute(&self.sql.sweep_dead, &[&start_snapshot, snapshot]).await;
        deleted.map_err(Error::sql(doing))?;
        let swept = swept.map(|it| &*it.snapshot);
        let parameters: [&(dyn ToSql + Sync); 3] = [&start_snapshot, snapshot, &swept];
        let rows = self.client().query(&self.sql.unmarked, &parameters).await;
        let rows = rows.map_err(Error::sql(doing))?;
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
        Ok(unmarked.collect())
    }

    /// Marks rows of which nobody knows where in the stream they are.
    pub(crate) async fn mark_on_trust(&self, stream: &str, ids: &[Uuid]) -> Result<u64, Error> {
        let set = "published_at = clock_timestamp(), stream = $2::text";
        self.update_unmarked(set, ids, Some(stream), "sweep unmarked rows").await
    }

    /// Makes rows the scanner's, which will publish them: the log did not bring them.
    pub(crate) async fn leave_to_the_scanner(&self, ids: &[Uuid]) -> Result<u64, Error> {
        let set = format!("txid = coalesce($2::text, '{OLDEST_TRANSACTION}')::xid8");
        self.update_unmarked(&set, ids, None, "leave rows to the scanner").await
    }

    async fn update_unmarked(
        &self,
        set: &str,
        ids: &[Uuid],
        value: Option<&str>,
        doing: &'static str,
    ) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql =
            format!("UPDATE {outbox} SET {set} WHERE {id} = ANY($1) AND published_at IS NULL");
        self.client().execute(&sql, &[&ids, &value]).await.map_err(Error::sql(doing))
    }

    /// Which of the events have no marked row: it is gone, or was not visible when it was to be marked.
    /// That it may be visible by now does not matter: it has no mark.
    pub(crate) async fn without_row(&self, settled: &[Settled]) -> Result<Vec<Settled>, Error> {
        let ids: Vec<Uuid> = settled.iter().map(|it| it.id).collect();
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let sql =
            format!("SELECT {id} FROM {outbox} WHERE {id} = ANY($1) AND published_at IS NOT NULL");
        let rows = self.client().query(&sql, &[&ids]).await;
        let rows = rows.map_err(Error::sql("look for rows that were not marked"))?;
        let there: HashSet<Uuid> = rows.iter().map(|it| it.get(0)).collect();
        Ok(settled.iter().filter(|it| !there.contains(&it.id)).copied().collect())
    }
}
