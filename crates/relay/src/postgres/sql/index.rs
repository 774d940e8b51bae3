//! The indexes of the outbox: which ones `relay.mark` needs, and how they are made while others write.

use outbox::{Column, Table};

use super::Store;
use crate::config::{Config, MarkBy};
use crate::error::Error;

/// How long the table's writers may wait behind us.
const LOCK_TIMEOUT: &str = "10s";

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
    /// Those that a relay of this configuration needs.
    pub fn wanted(config: &Config) -> Vec<Self> {
        match config.mark.by {
            MarkBy::Lean => vec![Self::Transactions, Self::Times],
            MarkBy::Row | MarkBy::Delete if config.each_shard().len() > 1 => {
                vec![Self::Unmarked, Self::Transactions]
            }
            MarkBy::Row | MarkBy::Delete => vec![Self::Unmarked],
        }
    }

    /// As PostgreSQL calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmarked => "idx_outbox_unpublished",
            Self::Transactions => "idx_outbox_txid",
            Self::Times => "idx_outbox_occurred_at",
        }
    }

    /// What it is of, as PostgreSQL prints it where the column's name needs no quotes.
    fn definition(self, column: &str) -> String {
        match self {
            Self::Unmarked => format!("USING btree ({column}) WHERE (published_at IS NULL)"),
            Self::Transactions => format!("USING btree ({column})"),
            Self::Times => format!("USING brin ({column})"),
        }
    }

    fn column(self, table: &Table) -> &str {
        match self {
            Self::Unmarked | Self::Times => table.columns().name(Column::OccurredAt),
            Self::Transactions => "txid",
        }
    }

    /// The statement that makes it where nobody writes.
    pub fn create(self, table: &Table) -> String {
        let column = match self {
            Self::Unmarked | Self::Times => table.column(Column::OccurredAt),
            Self::Transactions => "txid".to_owned(),
        };
        let definition = self.definition(&column);
        format!("CREATE INDEX IF NOT EXISTS {} ON {} {definition}", self.name(), table.quoted())
    }

    /// The statement that drops it.
    pub(crate) fn drop(self, table: &Table, is_partitioned: bool) -> String {
        let how = if is_partitioned { "" } else { "CONCURRENTLY " };
        format!("DROP INDEX {how}{}", table.companion(self.name()))
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

    /// Makes an index while others write. Says whether it was missing.
    ///
    /// PostgreSQL makes none of a partitioned table beside writers, but of each partition; the table's
    /// own then takes these in, and reads nothing. What an interrupted run has made is used by the next.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if there is something of that name that cannot be used.
    pub async fn ensure_index(&self, index: OutboxIndex) -> Result<bool, Error> {
        if self.has_index(index).await? {
            return Ok(false);
        }
        let doing = "create the index";
        let name = self.table.companion(index.name());
        let sql = "SELECT to_regclass($1) IS NOT NULL,
                          (SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($2)),
                          format('%I', $3::text)";
        let (table, column) = (self.table.quoted(), index.column(&self.table));
        let found = self.query_one("look for the index", sql, &[&name, &table, &column]).await?;
        if found.get(0) {
            return Err(Error::Conflict(format!(
                "index {name} cannot be used: it was left half made, or is another table's. Run \
                 `DROP INDEX {name}`, then this again"
            )));
        }
        let is_partitioned = found.get::<_, Option<bool>>(1) == Some(true);
        let definition = index.definition(found.get(2));
        // It takes as long as reading the table takes, and as every transaction that is open by now.
        let patiently = "SET statement_timeout = 0; SET lock_timeout = 0";
        self.batch_execute(doing, patiently).await?;
        let sql = if is_partitioned {
            self.index_partitions(&definition).await?;
            format!(
                "BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
                 CREATE INDEX {} ON {table} {definition}; COMMIT",
                index.name()
            )
        } else {
            format!("CREATE INDEX CONCURRENTLY {} ON {table} {definition}", index.name())
        };
        self.batch_execute(doing, &sql).await?;
        Ok(true)
    }

    /// Makes such an index of each partition that has none.
    async fn index_partitions(&self, definition: &str) -> Result<(), Error> {
        let doing = "create the indexes of partitions";
        let sql =
            "SELECT relid::regclass::text, indexrelid::regclass::text, coalesce(indisvalid, false)
                   FROM pg_partition_tree(to_regclass($1)) LEFT JOIN pg_index ON indrelid = relid
                       AND right(pg_get_indexdef(indexrelid), length($2)) = $2
                   WHERE isleaf ORDER BY relid::regclass::text, indisvalid DESC";
        let found = self.query(doing, sql, &[&self.table.quoted(), &definition]).await?;
        for row in &found {
            let (partition, index): (&str, Option<&str>) = (row.get(0), row.get(1));
            if row.get(2) {
                continue;
            }
            if let Some(half_made) = index {
                let drop = format!("DROP INDEX CONCURRENTLY {half_made}");
                self.batch_execute(doing, &drop).await?;
            }
            let has_one = |it: &tokio_postgres::Row| it.get::<_, &str>(0) == partition && it.get(2);
            if !found.iter().any(has_one) {
                let create = format!("CREATE INDEX CONCURRENTLY ON {partition} {definition}");
                self.batch_execute(doing, &create).await?;
            }
        }
        Ok(())
    }

    /// Room for marks in pages to come, where nobody has said how much: as on a table that was made for
    /// marks. A partitioned table takes no such setting.
    pub async fn make_room_for_marks(&self) -> Result<(), Error> {
        let sql = "SELECT relkind = 'r' AND coalesce(array_to_string(reloptions, ' '), '')
                       !~ 'fillfactor=([0-9]|[0-9][0-9])( |$)'
                   FROM pg_class WHERE oid = to_regclass($1)";
        let doing = "make room for marks";
        let table = self.table.quoted();
        let found = self.query_one(doing, sql, &[&table]).await?;
        if !found.get::<_, bool>(0) {
            return Ok(());
        }
        let sql = format!("ALTER TABLE {table} SET (fillfactor = 50)");
        self.batch_execute(doing, &sql).await
    }

    /// Indexes that are there, and that a relay of this configuration has no use for, each as the
    /// statement that drops it.
    pub async fn needless_indexes(&self, config: &Config) -> Result<Vec<String>, Error> {
        let wanted = OutboxIndex::wanted(config);
        let sql = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)";
        let kind = self.query_opt("look for indexes", sql, &[&self.table.quoted()]).await?;
        let is_partitioned = kind.is_some_and(|row| row.get(0));
        let mut statements = Vec::new();
        for index in [OutboxIndex::Unmarked, OutboxIndex::Transactions] {
            if wanted.contains(&index) || !self.has_index(index).await? {
                continue;
            }
            // It leads past rows that are published and have no mark, as long as there are some.
            if index == OutboxIndex::Transactions && self.has_rows_without_marks().await? {
                continue;
            }
            statements.push(index.drop(&self.table, is_partitioned));
        }
        Ok(statements)
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
    async fn has_index(&self, index: OutboxIndex) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1)
                       AND indrelid = to_regclass($2) AND indisvalid)";
        let (index, table) = (self.table.companion(index.name()), self.table.quoted());
        Ok(self.query_one("look for the index", sql, &[&index, &table]).await?.get(0))
    }

    /// Whether only a watermark says of some rows that they are published.
    async fn has_rows_without_marks(&self) -> Result<bool, Error> {
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
