//! Rows that the log owns and no mark has reached.

use uuid::Uuid;

use super::{Store, Watermark};
use crate::core::{Age, Settled, Unmarked};
use crate::error::Error;

/// Rows swept at a time.
pub(crate) const SWEPT_AT_ONCE: usize = 5_000;

/// Below every snapshot: a row of this transaction is the scanner's, whenever the slot was created.
const OLDEST_TRANSACTION: &str = "3";

/// What the log owns, `$1` being the slot's start, and a watermark `$2` covers.
const COVERED: &str = "o.published_at IS NULL
    AND NOT pg_visible_in_snapshot(o.txid, $1::text::pg_snapshot)
    AND pg_visible_in_snapshot(o.txid, $2::text::pg_snapshot)";

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
        let (outbox, dead) = (self.table.quoted(), self.table.companion("outbox_dead_letter"));
        let snapshot = &watermark.snapshot;
        let sql = format!("DELETE FROM {outbox} o USING {dead} d WHERE d.id = o.id AND {COVERED}");
        let deleted = self.client().execute(&sql, &[&start_snapshot, snapshot]).await;
        deleted.map_err(Error::sql(doing))?;
        let sql = format!(
            "SELECT o.id,
                    pg_visible_in_snapshot(o.txid, $3::text::pg_snapshot),
                    o.txid >= pg_snapshot_xmax($3::text::pg_snapshot)
             FROM {outbox} o WHERE {COVERED} LIMIT {SWEPT_AT_ONCE}"
        );
        let swept = swept.map(|it| &*it.snapshot);
        let rows = self.client().query(&sql, &[&start_snapshot, snapshot, &swept]).await;
        let age = |is_visible: Option<bool>, is_later: Option<bool>| match (is_visible, is_later) {
            (Some(true), _) => Age::Swept,
            (_, Some(true)) => Age::Later,
            _ => Age::Unknown,
        };
        let rows = rows.map_err(Error::sql(doing))?;
        Ok(rows
            .iter()
            .map(|it| Unmarked { id: it.get(0), age: age(it.get(1), it.get(2)) })
            .collect())
    }

    /// Marks rows of which nobody knows where in the stream they are.
    pub(crate) async fn mark_on_trust(&self, stream: &str, ids: &[Uuid]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let sql = format!(
            "UPDATE {} SET published_at = clock_timestamp(), stream = $2::text
             WHERE id = ANY($1) AND published_at IS NULL",
            self.table.quoted()
        );
        self.client()
            .execute(&sql, &[&ids, &stream])
            .await
            .map_err(Error::sql("sweep unmarked rows"))
    }

    /// Makes rows the scanner's, which will publish them: the log did not bring them.
    pub(crate) async fn leave_to_the_scanner(&self, ids: &[Uuid]) -> Result<u64, Error> {
        if ids.is_empty() {
            return Ok(0);
        }
        let sql = format!(
            "UPDATE {} SET txid = '{OLDEST_TRANSACTION}' WHERE id = ANY($1) AND published_at IS NULL",
            self.table.quoted()
        );
        self.client().execute(&sql, &[&ids]).await.map_err(Error::sql("leave rows to the scanner"))
    }

    /// Which of the events have no row: it is gone, or not visible yet.
    pub(crate) async fn without_row(&self, settled: &[Settled]) -> Result<Vec<Settled>, Error> {
        let ids: Vec<Uuid> = settled.iter().map(|it| it.id).collect();
        let sql = format!("SELECT id FROM {} WHERE id = ANY($1)", self.table.quoted());
        let rows = self.client().query(&sql, &[&ids]).await;
        let rows = rows.map_err(Error::sql("look for rows that were not marked"))?;
        let there: std::collections::HashSet<Uuid> = rows.iter().map(|it| it.get(0)).collect();
        Ok(settled.iter().filter(|it| !there.contains(&it.id)).copied().collect())
    }
}
