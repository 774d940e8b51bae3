//! The indexes of the outbox. `tailpost setup` makes those that `relay.mark` needs.

use super::Store;
use crate::error::Error;

/// An index of the outbox, besides its primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxIndex {
    /// Of rows without a mark. Every mark touches it.
    Unmarked,
    /// Of transactions: the way to rows that wait, or came back, where no row has a mark, and to one
    /// shard's rows past those that another one has not published.
    Transactions,
    /// Of time, by ranges of pages: for queries, where the first is missing.
    Times,
}

impl OutboxIndex {
    /// As PostgreSQL calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmarked => "idx_outbox_unpublished",
            Self::Transactions => "idx_outbox_txid",
            Self::Times => "idx_outbox_occurred_at",
        }
    }
}

impl Store {
    /// Whether rows can be found by their transactions without reading the whole table.
    pub(crate) async fn has_index_of_transactions(&self) -> Result<bool, Error> {
        self.has_index(OutboxIndex::Transactions).await
    }

    /// Whether there is the index of rows that are not marked.
    pub(crate) async fn has_index_of_unmarked(&self) -> Result<bool, Error> {
        self.has_index(OutboxIndex::Unmarked).await
    }

    /// # Errors
    ///
    /// [`Error::NotSetUp`] if there is no such index.
    pub(crate) async fn check_index_of_transactions(&self) -> Result<(), Error> {
        if self.has_index_of_transactions().await? {
            return Ok(());
        }
        let (name, table) = (OutboxIndex::Transactions.name(), self.table.quoted());
        Err(Error::NotSetUp { missing: format!("index {name} on {table}") })
    }

    /// One that was left behind half made, `CONCURRENTLY`, is none.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses or cannot be reached.
    pub async fn has_index(&self, index: OutboxIndex) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1)
                       AND indrelid = to_regclass($2) AND indisvalid)";
        let (index, table) = (self.table.companion(index.name()), self.table.quoted());
        Ok(self.query_one("look for the index", sql, &[&index, &table]).await?.get(0))
    }

    /// Whether only a watermark says of some rows that they are published.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses or cannot be reached.
    pub async fn has_rows_without_marks(&self) -> Result<bool, Error> {
        let sql =
            format!("SELECT EXISTS (SELECT FROM {})", self.table.companion("tailpost_published"));
        Ok(self.query_one("look for a watermark", &sql, &[]).await?.get(0))
    }

    /// Refuses to take rows for unpublished that only a watermark says are published.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`].
    pub(crate) async fn check_marks_are_on_rows(&self) -> Result<(), Error> {
        if !self.has_rows_without_marks().await? {
            return Ok(());
        }
        Err(Error::Conflict(format!(
            "rows that were published with relay.mark = \"lean\" have no marks, and relay.mode = \
             \"poll\" would publish them again: docs/marking.md has the statements that mark them \
             and empty {}",
            self.table.companion("tailpost_published")
        )))
    }
}
