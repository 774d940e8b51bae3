//! How often events were tried, as their rows say.

use std::collections::HashMap;

use outbox::Column;
use uuid::Uuid;

use super::Store;
use crate::engine::Tried;
use crate::error::Error;
use crate::postgres::rows::{ATTEMPTS, DUE};

/// Rows that are looked at. Only what was in an earlier session's window was tried, and that is what the
/// log brings first.
const LOOKED_AT: u32 = 32_768;

impl Store {
    /// Events that were tried in vain and are not published, among those that the log brings first.
    /// Nothing if no index leads to them: they get their attempts again.
    ///
    /// Those that the log does not bring bring it along.
    pub(crate) async fn tried(&self, slot: &str) -> Result<HashMap<Uuid, Tried>, Error> {
        let (outbox, id) = (self.table.quoted(), self.table.column(Column::Id));
        let columns = format!("{id} AS id, {ATTEMPTS} AS attempts, {DUE} AS due");
        let (swept, first) = if self.has_index_of_transactions().await? {
            let swept = self.load_state(slot).await?.and_then(|it| it.swept);
            let Some(swept) = swept else { return Ok(HashMap::new()) };
            let first = "txid >= pg_snapshot_xmin($1::text::pg_snapshot) ORDER BY txid".to_owned();
            (Some(swept.snapshot), first)
        } else if self.has_index_of_unmarked().await? {
            let at = self.table.column(Column::OccurredAt);
            (None, format!("$1::text IS NULL ORDER BY {at}"))
        } else {
            return Ok(HashMap::new());
        };
        let sql = format!(
            "SELECT id, attempts, due FROM (
                 SELECT {columns} FROM {outbox} WHERE published_at IS NULL AND {first}
                 LIMIT {LOOKED_AT}) AS first
             WHERE attempts > 0 AND id IS NOT NULL"
        );
        let rows = self.query("look for events that were tried", &sql, &[&swept]).await?;
        Ok(rows.iter().map(|it| (it.get(0), Tried::from_row(it.get(1), it.get(2)))).collect())
    }
}
