//! The indexes of the outbox: which ones `relay.mark` needs, and how they are made while others write.

use outbox::{Column, Table};
use relay::access::OutboxIndex;
use relay::{Config, Error, MarkBy};

use super::Store;

/// How long the table's writers may wait behind us.
const LOCK_TIMEOUT: &str = "10s";

/// Those that a relay of this configuration needs.
pub(crate) fn wanted(config: &Config) -> Vec<OutboxIndex> {
    match config.mark.by {
        MarkBy::Lean => vec![OutboxIndex::Transactions, OutboxIndex::Times],
        MarkBy::Row | MarkBy::Delete if config.each_shard().len() > 1 => {
            vec![OutboxIndex::Unmarked, OutboxIndex::Transactions]
        }
        MarkBy::Row | MarkBy::Delete => vec![OutboxIndex::Unmarked],
    }
}

/// What it is of, as PostgreSQL prints it where the column's name needs no quotes.
fn definition(index: OutboxIndex, column: &str) -> String {
    match index {
        OutboxIndex::Unmarked => format!("USING btree ({column}) WHERE (published_at IS NULL)"),
        OutboxIndex::Transactions => format!("USING btree ({column})"),
        OutboxIndex::Times => format!("USING brin ({column})"),
    }
}

fn column(index: OutboxIndex, table: &Table) -> &str {
    match index {
        OutboxIndex::Unmarked | OutboxIndex::Times => table.columns().name(Column::OccurredAt),
        OutboxIndex::Transactions => "txid",
    }
}

/// The statement that makes it where there are no writers.
pub(crate) fn create(index: OutboxIndex, table: &Table) -> String {
    let column = match index {
        OutboxIndex::Unmarked | OutboxIndex::Times => table.column(Column::OccurredAt),
        OutboxIndex::Transactions => "txid".to_owned(),
    };
    let definition = definition(index, &column);
    format!("CREATE INDEX IF NOT EXISTS {} ON {} {definition}", index.name(), table.quoted())
}

/// The statement that drops it.
fn drop(index: OutboxIndex, table: &Table, is_partitioned: bool) -> String {
    let how = if is_partitioned { "" } else { "CONCURRENTLY " };
    format!("DROP INDEX {how}{}", table.companion(index.name()))
}

impl Store {
    /// Makes an index while others write. Says whether it was missing.
    ///
    /// PostgreSQL makes none of a partitioned table beside writers, but of each partition; the table's
    /// own then takes these in, and reads nothing. What an interrupted run has made is used by the next.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if there is something of that name that cannot be used.
    pub(crate) async fn ensure_index(&self, index: OutboxIndex) -> Result<bool, Error> {
        if self.has_index(index).await? {
            return Ok(false);
        }
        let doing = "create the index";
        let name = self.table.companion(index.name());
        let sql = "SELECT to_regclass($1) IS NOT NULL,
                          (SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($2)),
                          format('%I', $3::text)";
        let (table, column) = (self.table.quoted(), column(index, &self.table));
        let found = self.query_one("look for the index", sql, &[&name, &table, &column]).await?;
        if found.get(0) {
            return Err(Error::Conflict(format!(
                "index {name} cannot be used: it was left half made, or is another table's. Run \
                 `DROP INDEX {name}`, then this again"
            )));
        }
        let is_partitioned = found.get::<_, Option<bool>>(1) == Some(true);
        let definition = definition(index, found.get(2));
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

    /// Room for marks in pages to come, unless the table's owner has set how much: as on a table that
    /// was made for marks. A partitioned table takes no such setting.
    pub(crate) async fn make_room_for_marks(&self) -> Result<(), Error> {
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
    pub(crate) async fn needless_indexes(&self, config: &Config) -> Result<Vec<String>, Error> {
        let wanted = wanted(config);
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
            statements.push(drop(index, &self.table, is_partitioned));
        }
        Ok(statements)
    }
}
