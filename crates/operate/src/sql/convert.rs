//! How an outbox without partitions gets ready to become one: what is in the way, and what is done
//! before, while producers write.

use jiff::Timestamp;
use outbox::Column;
use outbox::migrations::render_partitioned;
use relay::Error;
use servers::partitions::next_midnight;

use super::Store;
use crate::day_partitions::{BEFORE, KEY, digits, from_digits, named};

const DOING: &str = "prepare the outbox for partitions";

/// What is to be the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Missing,
    /// A table without partitions.
    Plain,
    /// With partitions by day, as `tailpost setup --partitioned` makes it.
    ByDay,
    /// With others.
    Partitioned,
    /// No table at all.
    Other,
}

/// What cannot be moved to the new table, each with a remedy. $1 is the table, $2 its column of ids.
const OBSTACLES: &str = "
    WITH t AS (SELECT c.*, $2::text AS id FROM pg_class c WHERE c.oid = to_regclass($1)),
    depends AS (
        SELECT d.classid, d.objid, d.refclassid FROM pg_depend d JOIN t
            ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
            OR d.refclassid = 'pg_type'::regclass AND d.refobjid = t.reltype
        WHERE d.deptype = 'n'
    )
    SELECT 'it is not a permanent table' FROM t WHERE relpersistence <> 'p'
    UNION ALL
    SELECT 'it inherits, or is inherited from' FROM t WHERE reloftype <> 0 OR EXISTS (
        SELECT FROM pg_inherits WHERE t.oid IN (inhrelid, inhparent))
    UNION ALL
    SELECT format('foreign key %I of %s: drop it', conname, conrelid::regclass)
    FROM t JOIN pg_constraint ON t.oid IN (conrelid, confrelid) WHERE contype = 'f'
    UNION ALL
    SELECT format('the primary key has to be (%I)', id) FROM t WHERE NOT EXISTS (
        SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
        WHERE indrelid = t.oid AND indisprimary AND indnatts = 1 AND attname = id)
    UNION ALL
    SELECT format('index %s is unique without column inserted_at: drop it', indexrelid::regclass)
    FROM t JOIN pg_index ON indrelid = t.oid
    WHERE (indisunique OR indisexclusion) AND NOT indisprimary AND NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = t.oid AND attname = 'inserted_at'
            AND attnum = ANY (indkey))
    UNION ALL
    SELECT format('index %s is not valid: drop it', indexrelid::regclass)
    FROM t JOIN pg_index ON indrelid = t.oid
    WHERE NOT indisvalid AND NOT indisunique
    UNION ALL
    SELECT format('constraint %I is not valid, or not inherited: validate it, or drop it', conname)
    FROM t JOIN pg_constraint ON conrelid = t.oid
    WHERE contype = 'c' AND (NOT convalidated OR connoinherit)
        AND NOT starts_with(conname::text, 'tailpost_before_')
    UNION ALL
    SELECT 'it has a column inserted_at already: rename that'
    FROM t JOIN pg_attribute ON attrelid = t.oid AND attname = 'inserted_at' AND NOT attisdropped
    WHERE NOT EXISTS (SELECT FROM pg_constraint
        WHERE conrelid = t.oid AND starts_with(conname::text, 'tailpost_before_'))
    UNION ALL
    SELECT format('%s depends on it: drop that, and make it again afterwards',
        pg_describe_object(classid, objid, 0))
    FROM depends LEFT JOIN pg_rewrite r ON classid = 'pg_rewrite'::regclass AND r.oid = objid
    LEFT JOIN pg_class v ON v.oid = ev_class
    WHERE NOT (classid = 'pg_rewrite'::regclass AND v.relkind = 'v'
               OR refclassid = 'pg_class'::regclass AND classid IN ('pg_proc'::regclass,
                   'pg_policy'::regclass, 'pg_constraint'::regclass, 'pg_trigger'::regclass,
                   'pg_attrdef'::regclass, 'pg_statistic_ext'::regclass,
                   'pg_publication_rel'::regclass))
    UNION ALL
    SELECT format('rule %I: drop it', rulename) FROM t JOIN pg_rewrite ON ev_class = t.oid
    UNION ALL
    SELECT format('trigger %I is not enabled as usual: drop it, and make it again afterwards', tgname)
    FROM t JOIN pg_trigger ON tgrelid = t.oid AND NOT tgisinternal
    WHERE tgenabled <> 'O' OR tgconstraint <> 0 OR tgtype & 1 = 1
        AND (tgoldtable IS NOT NULL OR tgnewtable IS NOT NULL)
    UNION ALL
    SELECT 'it has another REPLICA IDENTITY than the default' FROM t WHERE relreplident <> 'd'
    UNION ALL
    SELECT format('publication %I publishes partitions by their own names: run `ALTER PUBLICATION '
        '%1$I SET (publish_via_partition_root = true)`', pubname)
    FROM t JOIN pg_publication_rel ON prrelid = t.oid
    JOIN pg_publication p ON p.oid = prpubid WHERE NOT pubviaroot";

impl Store {
    pub(crate) async fn kind(&self) -> Result<Kind, Error> {
        let sql = "SELECT relkind FROM pg_class WHERE oid = to_regclass($1)";
        let table = self.table.quoted();
        let Some(row) = self.query_opt(DOING, sql, &[&table]).await? else {
            return Ok(Kind::Missing);
        };
        Ok(match row.get::<_, i8>(0).cast_unsigned() {
            b'r' => Kind::Plain,
            b'p' if self.day_partitions().await?.is_some() => Kind::ByDay,
            b'p' => Kind::Partitioned,
            _ => Kind::Other,
        })
    }

    /// Makes the partitioned table, without partitions: the migrations add columns that tables with
    /// partitions do not take.
    pub(crate) async fn create_partitioned(&self) -> Result<(), Error> {
        // The inbox's set-up may make the schema at the same moment.
        let sql = format!(
            "DO 'BEGIN
                 IF to_regnamespace(''{name}'') IS NULL THEN CREATE SCHEMA {schema}; END IF;
             EXCEPTION WHEN duplicate_schema OR unique_violation THEN NULL; END';
             {table}",
            name = self.table.quoted_schema().replace('\'', "''''"),
            schema = self.table.quoted_schema().replace('\'', "''"),
            table = render_partitioned(&self.table)
        );
        self.batch_execute(DOING, &sql).await
    }

    /// Why the table cannot become a partition.
    pub(crate) async fn obstacles(&self) -> Result<Vec<String>, Error> {
        let (table, id) = (self.table.quoted(), self.table.columns().name(Column::Id));
        Ok(self
            .query(DOING, OBSTACLES, &[&table, &id])
            .await?
            .iter()
            .map(|row| row.get(0))
            .collect())
    }

    /// The time before which all rows of the table are inserted, as an earlier attempt fixed it.
    pub(crate) async fn fixed_end(&self) -> Result<Option<Timestamp>, Error> {
        let sql = format!(
            "SELECT substr(conname::text, {}) FROM pg_constraint
             WHERE conrelid = to_regclass($1) AND starts_with(conname::text, '{BEFORE}')",
            BEFORE.len() + 1
        );
        let table = self.table.quoted();
        let row = self.query_opt(DOING, &sql, &[&table]).await?;
        Ok(row.and_then(|row| from_digits(row.get(0))))
    }

    /// Gives the table the column that says which partition has a row. Until it is a partition every
    /// row gets the present time, also later ones: so the constraint refuses none, however long it
    /// takes, and whatever becomes of this process. Reads and writes no row.
    pub(crate) async fn fix_end(&self) -> Result<Timestamp, Error> {
        let now = self.clock().await?;
        let until = next_midnight(now);
        let sql = format!(
            "BEGIN;
             SET LOCAL statement_timeout = '5s';
             {first_lock}
             ALTER TABLE {table} ADD COLUMN {KEY} timestamptz NOT NULL DEFAULT '{now}',
                 ADD CONSTRAINT {constraint} CHECK ({KEY} < '{until}') NOT VALID;
             COMMENT ON COLUMN {table}.{KEY} IS
                 'the day of it says which partition has the row; leave it to its default';
             COMMIT",
            first_lock = self.first_lock(),
            table = self.table.quoted(),
            constraint = constraint(until),
        );
        self.run(DOING, &sql).await.map(|()| until)
    }

    /// Reads the table now, so that the step under the lock does not. Producers continue.
    pub(crate) async fn validate_end(&self, until: Timestamp) -> Result<(), Error> {
        let sql = format!(
            "SET lock_timeout = 0; SET statement_timeout = 0;
             ALTER TABLE {} VALIDATE CONSTRAINT {}",
            self.table.quoted(),
            constraint(until)
        );
        self.batch_execute(DOING, &sql).await
    }

    /// The index that becomes the key of the partition.
    pub(super) fn key_index(&self, until: Timestamp) -> String {
        named(self.table.name(), &format!("_key_{}", digits(until)))
    }

    /// Makes that index while producers go on. One that was left half made is made again.
    pub(crate) async fn ensure_key_index(&self, until: Timestamp) -> Result<(), Error> {
        let (table, name) = (self.table.quoted(), self.key_index(until));
        let index = self.table.companion(&name);
        let sql = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)";
        let row = self.query_opt(DOING, sql, &[&index]).await?;
        match row.map(|row| row.get(0)) {
            Some(true) => return Ok(()),
            Some(false) => {
                let sql = format!("DROP INDEX CONCURRENTLY {index}");
                self.batch_execute(DOING, &sql).await?;
            }
            None => {}
        }
        let sql = format!(
            "CREATE UNIQUE INDEX CONCURRENTLY {name} ON {table} ({id}, {KEY})",
            name = quote(&name),
            id = self.table.column(Column::Id)
        );
        self.batch_execute(DOING, &sql).await
    }
}

pub(super) fn constraint(until: Timestamp) -> String {
    format!("{BEFORE}{}", digits(until))
}

pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
