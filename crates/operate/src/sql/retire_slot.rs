//! The statements on a slot that is gone, and that is not to be used again.

use outbox::Column;
use relay::Error;
use relay::access::mark;

use super::Store;

impl Store {
    /// How many rows of the shard are not marked, counted up to a limit.
    pub(crate) async fn count_unmarked(&self, limit: u32) -> Result<i64, Error> {
        let sql = format!(
            "SELECT count(*) FROM (
                 SELECT FROM {} o WHERE published_at IS NULL AND {} AND {} AND {} IS NOT NULL
                 LIMIT {limit}) unmarked",
            self.table.quoted(),
            mark::not_published(&self.table, "o"),
            self.owned_rows("o"),
            self.table.column(Column::Id)
        );
        Ok(self.query_one("count unmarked rows", &sql, &[]).await?.get(0))
    }

    /// The newest transaction that may be running, and the oldest that is.
    pub(crate) async fn running(&self) -> Result<(i64, i64), Error> {
        let sql = "SELECT pg_snapshot_xmax(s)::text::bigint, pg_snapshot_xmin(s)::text::bigint
                   FROM pg_current_snapshot() s";
        let row = self.query_one("look for transactions", sql, &[]).await?;
        Ok((row.get(0), row.get(1)))
    }

    /// Removes the record of a slot that is not to be used again.
    pub(crate) async fn forget_slot(&self, slot: &str) -> Result<(), Error> {
        let sql = format!("DELETE FROM {} WHERE slot = $1", self.table.companion("tailpost_state"));
        self.perform("remove the record of a slot", &sql, &[&slot]).await
    }
}
