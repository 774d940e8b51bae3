//! A table that was the outbox until its name was taken from it.
//!
//! The view `outbox_status` stays with the table that it was made of, and so does `outbox_emit`. So the
//! view tells which table that was, until `tailpost setup` makes both anew.

use tokio_postgres::types::ToSql;

use super::{Store, mark};
use crate::config::MarkBy;
use crate::error::Error;
use crate::postgres::harm;

/// The table that the view $1 reads rows of events of, if it is neither the outbox $2 nor a part of it;
/// and how it gets the schema $3 and the name $4. No companion that the view reads has such a column.
const FORMER: &str = "
    SELECT c.oid, format('%I.%I', nspname, relname),
        CASE WHEN nspname <> $3::text THEN format('ALTER TABLE %I.%I SET SCHEMA %I', nspname, relname, $3::text)
             ELSE format('ALTER TABLE %I.%I RENAME TO %I', nspname, relname, $4::text) END,
        to_regclass($2) IS NOT NULL,
        coalesce((SELECT string_agg(format('%I', theirs.attname), ', ' ORDER BY theirs.attnum)
            FROM pg_attribute theirs JOIN pg_attribute ours USING (attname)
            WHERE theirs.attrelid = c.oid AND ours.attrelid = to_regclass($2)
                AND theirs.attnum > 0 AND ours.attgenerated = ''
                AND NOT theirs.attisdropped AND NOT ours.attisdropped
                AND attname NOT IN ('seq', 'txid', 'inserted_at')), '')
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND c.oid IN (
            SELECT refobjid FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
            WHERE d.classid = 'pg_rewrite'::regclass AND ev_class = to_regclass($1))
        AND EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = c.oid AND attname = 'next_attempt_at' AND NOT attisdropped)
        AND c.oid IS DISTINCT FROM to_regclass($2)::oid
        AND NOT EXISTS (
            SELECT FROM pg_partition_ancestors(c.oid) AS above WHERE relid = to_regclass($2))";

/// More rows than these are not counted.
const COUNTED_MAX: i64 = 1_000_000;

impl Store {
    /// Refuses to go on where the outbox is no table that can be used, or while the former table has rows
    /// that are not published: nobody would publish them any more.
    ///
    /// # Errors
    ///
    /// [`Error::Unusable`] with the statement that brings the rows, or the name, back.
    pub async fn check_former(&self) -> Result<(), Error> {
        let (table, doing) = (&self.table, "look for a former outbox");
        if let Some(harm) = harm::find(self, table).await? {
            return Err(harm.into());
        }
        let (view, outbox) = (table.companion("outbox_status"), table.quoted());
        let parameters: [&(dyn ToSql + Sync); 4] = [&view, &outbox, &table.schema(), &table.name()];
        let Some(row) = self.query_opt(doing, FORMER, &parameters).await? else {
            return Ok(());
        };
        let (former, renamed, is_replaced): (String, String, bool) =
            (row.get(1), row.get(2), row.get(3));
        if !is_replaced {
            return Err(Error::Unusable {
                problem: format!(
                    "there is no table {table}, and the schema has the outbox {former}"
                ),
                fix: format!(
                    "run `{renamed}` if that is the same table, or set postgres.table to its present \
                     name; a second outbox needs a schema of its own"
                ),
            });
        }
        let waits = match self.mark_by {
            MarkBy::Row | MarkBy::Delete => "published_at IS NULL".to_owned(),
            MarkBy::Lean => format!("published_at IS NULL AND {}", mark::not_published(table, "o")),
        };
        let count = format!(
            "SELECT count(*) FROM (SELECT FROM {former} o WHERE {waits} LIMIT {COUNTED_MAX}) w"
        );
        let count: i64 = self.query_one(doing, &count, &[]).await?.get(0);
        let rows = match count {
            0 => return Ok(()),
            1 => "1 row".to_owned(),
            COUNTED_MAX => format!("{count} rows or more"),
            _ => format!("{count} rows"),
        };
        let columns: String = row.get(4);
        // Before all rows of the new table, in their own order.
        Err(Error::Unusable {
            problem: format!(
                "{rows} of {former}, whose place {table} has taken, are not published"
            ),
            fix: format!(
                "run `WITH moved AS (DELETE FROM {former} o WHERE {waits} RETURNING *) \
                 INSERT INTO {outbox} ({columns}, seq) SELECT {columns}, seq - max(seq) OVER () \
                 FROM moved ORDER BY seq ON CONFLICT DO NOTHING`, then `tailpost setup`. If they are \
                 not to be published, drop {former} with CASCADE instead"
            ),
        })
    }

    /// The tables whose rows are the outbox's: it, and the one that a view is still made of.
    pub(crate) async fn outbox_oids(&self) -> Result<Vec<u32>, Error> {
        let table = &self.table;
        let (view, outbox) = (table.companion("outbox_status"), table.quoted());
        let sql = format!(
            "SELECT oid FROM unnest(ARRAY[to_regclass($2)::oid]) AS oid WHERE oid IS NOT NULL
             UNION SELECT oid FROM ({FORMER}) AS former"
        );
        let parameters: [&(dyn ToSql + Sync); 4] = [&view, &outbox, &table.schema(), &table.name()];
        let rows = self.query("look for the outbox", &sql, &parameters).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
