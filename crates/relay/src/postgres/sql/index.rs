//! The index of transactions: the way to rows that are not done with, where no other index knows them.

use outbox::Table;

use super::Store;
use crate::error::Error;

const NAME: &str = "idx_outbox_txid";

/// The statement that makes it.
pub(crate) fn create_index_of_transactions(table: &Table) -> String {
    format!("CREATE INDEX IF NOT EXISTS {NAME} ON {} (txid)", table.quoted())
}

impl Store {
    /// Whether rows can be found by their transactions without reading the whole table.
    pub(crate) async fn has_index_of_transactions(&self) -> Result<bool, Error> {
        self.has_index(NAME).await
    }

    /// Whether there is the index of rows that are not marked, which the documented layout has.
    pub(crate) async fn has_index_of_unmarked(&self) -> Result<bool, Error> {
        self.has_index("idx_outbox_unpublished").await
    }

    /// Makes the index of transactions. Says whether it was missing.
    pub(crate) async fn ensure_index_of_transactions(&self) -> Result<bool, Error> {
        if self.has_index_of_transactions().await? {
            return Ok(false);
        }
        let sql = create_index_of_transactions(&self.table);
        self.client().batch_execute(&sql).await.map_err(Error::sql("create the index"))?;
        if self.has_index_of_transactions().await? {
            return Ok(true);
        }
        let index = self.table.companion(NAME);
        Err(Error::Conflict(format!(
            "index {index} cannot be used: it was left half made, or is another table's. Run `DROP \
             INDEX {index}`, then this again"
        )))
    }

    /// # Errors
    ///
    /// [`Error::NotSetUp`] if there is no such index.
    pub(crate) async fn check_index_of_transactions(&self) -> Result<(), Error> {
        if self.has_index_of_transactions().await? {
            return Ok(());
        }
        let table = self.table.quoted();
        Err(Error::NotSetUp { missing: format!("index {NAME} on {table}") })
    }

    /// One that was left behind half made, `CONCURRENTLY`, is none.
    async fn has_index(&self, name: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1)
                       AND indrelid = to_regclass($2) AND indisvalid)";
        let (index, table) = (self.table.companion(name), self.table.quoted());
        let row = self.client().query_one(sql, &[&index, &table]).await;
        Ok(row.map_err(Error::sql("look for the index"))?.get(0))
    }

    /// Refuses to take rows for unpublished that only a watermark says are published.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`].
    pub(crate) async fn check_marks_are_on_rows(&self) -> Result<(), Error> {
        let published = self.table.companion("tailpost_published");
        let sql = format!("SELECT EXISTS (SELECT FROM {published})");
        let row = self.client().query_one(&sql, &[]).await;
        if !row.map_err(Error::sql("look for a watermark"))?.get::<_, bool>(0) {
            return Ok(());
        }
        Err(Error::Conflict(format!(
            "rows that were published with relay.mark = \"watermark\" have no marks, and \
             relay.mode = \"poll\" would publish them again: docs/marking.md has the statements \
             that mark them and empty {published}"
        )))
    }
}
