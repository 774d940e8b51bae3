//! Rows of an outbox without marks stay in their partitions.

use outbox::Table;
use outbox::migrations::fill_in;
use relay::Error;

use super::Store;

/// An update that moves a row to another partition is logged as its deletion and an insert. Without a mark
/// nothing tells such an insert from a new event's.
const STAY: &str = "DO $stay$
DECLARE
    keys TEXT;
    changed TEXT;
BEGIN
    SELECT string_agg(format('%I', attname), ', '),
        string_agg(format('OLD.%1$I IS DISTINCT FROM NEW.%1$I', attname), ' OR ')
    INTO keys, changed
    FROM (SELECT DISTINCT attname -- partitions may be partitioned by other columns
          FROM pg_partition_tree($name${table}$name$) JOIN pg_partitioned_table ON partrelid = relid
          JOIN pg_attribute ON attrelid = partrelid AND attnum = ANY (partattrs)) AS key;
    IF keys IS NOT NULL THEN
        CREATE OR REPLACE FUNCTION {schema}.tailpost_stay() RETURNS TRIGGER
        LANGUAGE plpgsql SET search_path = pg_catalog AS $body$
        BEGIN
            RAISE EXCEPTION 'the partition key of an event without a mark cannot be changed'
                USING HINT = 'It would be published again where relay.mark is lean: see docs/marking.md';
        END
        $body$;
        EXECUTE format('CREATE OR REPLACE TRIGGER tailpost_stay BEFORE UPDATE OF %s ON %s
            FOR EACH ROW WHEN (%s) EXECUTE FUNCTION %s.tailpost_stay()',
            keys, $name${table}$name$, changed, $name${schema}$name$);
    END IF;
END
$stay$";

/// The statement that refuses updates of the partition key, if there is one.
pub(crate) fn stay(table: &Table) -> String {
    fill_in(STAY, table)
}

impl Store {
    /// Refuses updates that move rows to other partitions. Says whether that was to be done.
    pub(crate) async fn ensure_rows_stay(&self) -> Result<bool, Error> {
        let is_there = async || -> Result<bool, Error> {
            let sql = "SELECT EXISTS (SELECT FROM pg_trigger
                WHERE tgrelid = to_regclass($1) AND tgname = 'tailpost_stay')";
            let found = self.query_one("look for a trigger", sql, &[&self.table.quoted()]).await?;
            Ok(found.get(0))
        };
        if is_there().await? {
            return Ok(false);
        }
        let sql = format!("SET LOCAL lock_timeout = '10s'; {}", stay(&self.table));
        self.batch_execute("keep rows in their partitions", &sql).await?;
        is_there().await
    }
}
