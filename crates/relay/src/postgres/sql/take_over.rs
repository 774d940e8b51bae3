//! What is done once in a copy of the database: transactions and sequences of another cluster mean
//! nothing here.

use tokio_postgres::error::SqlState;
use tracing::warn;

use super::{Store, mark};
use crate::describe;
use crate::error::Error;

const DOING: &str = "take over restored rows";

/// Tables of ours whose `id` is a sequence's.
const NUMBERED: [&str; 7] = [
    "tailpost_published",
    "tailpost_published_history",
    "outbox_dead_letter_audit",
    "inbox_decisions",
    "inbox_rewinds",
    "inbox_attempts",
    "inbox_control_audit",
];

impl Store {
    /// After a restore from a dump the rows' transaction numbers mean nothing here: gives every
    /// unpublished row one of this cluster, so that the next slot's start snapshot sees it.
    /// What says by its number that it is published gets a mark of its own before; but not what was
    /// written here since, under a number that the former cluster had used as well.
    pub(crate) async fn renumber(&self) -> Result<(), Error> {
        // Statements that are sent together are one transaction.
        let sql = format!(
            "UPDATE {outbox} o SET published_at = clock_timestamp()
             WHERE published_at IS NULL AND EXISTS (
                 SELECT FROM {published} p
                 WHERE NOT pg_visible_in_snapshot({transaction}, p.start_snapshot)
                   AND pg_visible_in_snapshot({transaction}, p.end_snapshot)
                   AND age(o.xmin) >= age(p.xmin));
             DELETE FROM {published};
             UPDATE {outbox} o SET txid = pg_current_xact_id()
             WHERE published_at IS NULL AND {owned}",
            transaction = mark::transaction("o"),
            outbox = self.table.quoted(),
            published = self.table.companion("tailpost_published"),
            owned = self.owned_rows("o"),
        );
        self.batch_execute(DOING, &sql).await
    }

    /// The same where no state came along that says of which cluster the rows are: rows of
    /// transactions that are yet to come here are another cluster's. Says whether there were any.
    pub(crate) async fn renumber_future(&self) -> Result<bool, Error> {
        let sql = format!(
            "UPDATE {outbox} o SET txid = pg_current_xact_id()
             WHERE published_at IS NULL AND {owned}
                 AND txid >= pg_snapshot_xmax(pg_current_snapshot())",
            outbox = self.table.quoted(),
            owned = self.owned_rows("o"),
        );
        let renumbered = self.execute(DOING, &sql, &[]).await?;
        Ok(renumbered > 0)
    }

    /// Logical replication copies rows, and not how far their sequences are: rows inserted here would
    /// be scanned before older ones, or refused as doubled. A role without the right to change that
    /// is told what to run.
    pub(crate) async fn catch_up_sequences(&self) -> Result<(), Error> {
        let own = NUMBERED.map(|it| (self.table.companion(it), "id"));
        for (table, column) in std::iter::once((self.table.quoted(), "seq")).chain(own) {
            let Err(error) = self.catch_up_sequence(&table, column).await else { continue };
            match error.code() {
                None => return Err(error),
                Some(SqlState::UNDEFINED_TABLE) => {} // nobody has set up an inbox here
                Some(_) => warn!(
                    error = describe(&error),
                    "the sequence of {table}.{column} may be behind its rows. Run SELECT \
                     setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}"
                ),
            }
        }
        Ok(())
    }

    async fn catch_up_sequence(&self, table: &str, column: &str) -> Result<(), Error> {
        // Whoever inserts meanwhile is not set back.
        let sql = format!(
            "SELECT setval(sequence, greatest(last, coalesce(pg_sequence_last_value(sequence), 0)))
             FROM (SELECT max({column}) AS last FROM {table}) AS rows,
                 (SELECT pg_get_serial_sequence($1, $2)::regclass AS sequence) AS found
             WHERE sequence IS NOT NULL
                 AND last > coalesce(pg_sequence_last_value(sequence), 0)"
        );
        self.query_opt(DOING, &sql, &[&table, &column]).await.map(drop)
    }

    /// Subscriptions that write to the outbox now, whose rows have transactions of another cluster.
    pub async fn subscriptions(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT DISTINCT subname::text FROM pg_subscription_rel
                   JOIN pg_subscription s ON s.oid = srsubid
                   WHERE srrelid = $1::text::regclass AND subenabled ORDER BY 1";
        let rows = self.query("look for subscriptions", sql, &[&self.table.quoted()]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
