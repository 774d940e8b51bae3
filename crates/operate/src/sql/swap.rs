//! The moment in which an outbox becomes the first partition of a new one.
//!
//! One transaction renames the table, makes another with its name, and attaches it there, with what
//! belongs to it: nothing reads a row. An insert waits meanwhile, and then finds the new table:
//! PostgreSQL looks a name up again once it has the lock.

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use outbox::Column;
use relay::Error;
use servers::partitions::midnight;

use super::Store;
use super::convert::{constraint, quote};
use crate::day_partitions::{KEY, before_name, day_name, digits, named};

const DOING: &str = "move the outbox below a partitioned table";

/// How long the lock is waited for. Inserts wait behind it.
pub(crate) const SWAP_WAIT: Duration = Duration::from_millis(200);

/// What has to be moved, as statements in their order, read before anything is. $1 is the table, $2
/// the partition that it becomes, unquoted, $3 its schema, $4 the day for names, $5 what the index is
/// called that becomes its key, $6 the schema quoted.
const MOVED: &str = "
    WITH t AS (
        SELECT c.*, $1::text AS parent, $6::text || '.' || quote_ident($2) AS part,
            pg_get_userbyid(relowner) AS owner
        FROM pg_class c WHERE c.oid = to_regclass($1)
    ), identity AS (
        SELECT attname, s.relname AS sequence, quote_ident(n.nspname) AS its_schema, q.*
        FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attidentity <> ''
        JOIN pg_depend d ON d.refobjid = t.oid AND d.refobjsubid = attnum AND d.deptype = 'i'
            AND d.classid = 'pg_class'::regclass
        JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        JOIN pg_namespace n ON n.oid = s.relnamespace
        CROSS JOIN LATERAL (SELECT coalesce(pg_sequence_last_value(s.oid) + seqincrement, seqstart)
            AS next FROM pg_sequence WHERE seqrelid = s.oid) q
    ), others AS (
        SELECT i.indexrelid, x.relname FROM t JOIN pg_index i ON i.indrelid = t.oid
        JOIN pg_class x ON x.oid = i.indexrelid
        WHERE NOT indisprimary AND x.relname <> $5
    ), views AS (
        SELECT DISTINCT v.oid, v.reloptions FROM t
        JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
            AND d.classid = 'pg_rewrite'::regclass
        JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class v ON v.oid = ev_class
        WHERE v.relkind = 'v'
    ), functions AS (
        SELECT DISTINCT d.objid FROM t JOIN pg_depend d
            ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
            AND d.classid = 'pg_proc'::regclass
    ), published AS (
        -- By way of JSON, since PostgreSQL 14 knows neither row filters nor lists of columns.
        SELECT p.pubname, to_jsonb(r)->>'prattrs' AS columns, t.*,
            (SELECT to_jsonb(pt)->>'rowfilter' FROM pg_publication_tables pt
             WHERE pt.pubname = p.pubname AND schemaname = $3 AND tablename = t.relname) AS filter
        FROM t JOIN pg_publication_rel r ON prrelid = t.oid
        JOIN pg_publication p ON p.oid = prpubid
    )
    SELECT step, statement FROM (
        SELECT 10 AS step, format('DROP TRIGGER %I ON %s', tgname, parent) AS statement
        FROM t JOIN pg_trigger ON tgrelid = t.oid AND NOT tgisinternal
        UNION ALL
        SELECT 11, format('ALTER SEQUENCE %s.%I RENAME TO %I', its_schema, sequence,
            left(sequence, 50) || '_' || $4) FROM identity
        UNION ALL
        SELECT 12, format('ALTER TABLE %s RENAME TO %I', parent, $2) FROM t
        UNION ALL
        SELECT 13, format('ALTER INDEX %s.%I RENAME TO %I', $6::text, relname,
            left(relname, 50) || '_' || $4) FROM others
        UNION ALL
        SELECT 31, format('ALTER TABLE %s ALTER %I DROP IDENTITY', part, attname)
        FROM t, identity
        UNION ALL
        SELECT 32, format('ALTER TABLE %s ALTER %I RESTART WITH %s', parent, attname, next)
        FROM t, identity
        UNION ALL
        SELECT 33, format('ALTER SEQUENCE %s OWNED BY %s.%I', d.objid::regclass, parent, attname)
        FROM t JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
            AND d.classid = 'pg_class'::regclass AND d.deptype = 'a'
        JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        JOIN pg_attribute a ON a.attrelid = t.oid AND attnum = refobjsubid
        UNION ALL
        SELECT 34, pg_get_indexdef(indexrelid) FROM others
        UNION ALL
        SELECT 35, pg_get_triggerdef(tg.oid)
        FROM t JOIN pg_trigger tg ON tgrelid = t.oid AND NOT tgisinternal
        UNION ALL
        SELECT 36, format('GRANT %s ON %s TO %s%s', privilege_type, parent,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
            CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM t, aclexplode(relacl) WHERE grantee <> relowner
        UNION ALL
        SELECT 36, format('GRANT %s (%I) ON %s TO %s', privilege_type, attname, parent,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
        FROM t JOIN pg_attribute a ON attrelid = t.oid, aclexplode(attacl)
        UNION ALL
        SELECT 37, format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', parent)
        FROM t WHERE relrowsecurity
        UNION ALL
        SELECT 37, format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', parent)
        FROM t WHERE relforcerowsecurity
        UNION ALL
        SELECT 38, format('CREATE POLICY %I ON %s AS %s FOR %s TO %s%s%s', policyname, parent,
            permissive, cmd, (SELECT string_agg(CASE it WHEN 'public' THEN 'PUBLIC'
                ELSE quote_ident(it) END, ', ') FROM unnest(roles) AS it),
            ' USING (' || qual || ')', ' WITH CHECK (' || with_check || ')')
        FROM t JOIN pg_policies p ON p.schemaname = $3 AND p.tablename = t.relname
        UNION ALL
        SELECT 39, format('COMMENT ON TABLE %s IS %L', parent, obj_description(t.oid, 'pg_class'))
        FROM t WHERE obj_description(t.oid, 'pg_class') IS NOT NULL
        UNION ALL
        SELECT 40, format('ALTER PUBLICATION %I DROP TABLE %s', pubname, part) FROM published
        UNION ALL
        SELECT 41, format('ALTER PUBLICATION %I ADD TABLE %s%s%s', pubname, parent,
            (SELECT format(' (%s)', string_agg(quote_ident(attname), ', ' ORDER BY attnum))
             FROM pg_attribute WHERE attrelid = published.oid
                 AND attnum::text = ANY (string_to_array(translate(columns, '[],', ''), ' ')) HAVING count(*) > 0),
            ' WHERE (' || filter || ')')
        FROM published
        UNION ALL
        SELECT 60, format('CREATE OR REPLACE VIEW %s%s AS %s', oid::regclass,
            ' WITH (' || array_to_string(reloptions, ', ') || ')', pg_get_viewdef(oid))
        FROM views
        UNION ALL
        SELECT 61, pg_get_functiondef(objid) FROM functions
    ) AS statements WHERE statement IS NOT NULL ORDER BY step";

impl Store {
    /// Makes the table the partition with everything before `until` of a new table with its name, and
    /// makes partitions for today and tomorrow.
    ///
    /// # Errors
    ///
    /// Contention if others do not let go of the table within [`SWAP_WAIT`]. Nothing is done then.
    pub(crate) async fn swap(&self, until: Timestamp) -> Result<(), Error> {
        // If this process is lost in between, the server undoes it as soon.
        let begin = format!(
            "BEGIN; SET LOCAL lock_timeout = '{wait}ms'; SET LOCAL statement_timeout = '5s';
             SET LOCAL idle_in_transaction_session_timeout = '5s'; SET LOCAL search_path = '';
             SET LOCAL client_min_messages = warning;
             {first_lock}
             LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
             -- Whoever emits an event without a row takes its number from a sequence that goes.
             LOCK TABLE {state} IN ACCESS EXCLUSIVE MODE",
            wait = SWAP_WAIT.as_millis(),
            first_lock = self.first_lock(),
            table = self.table.quoted(),
            state = self.table.companion("tailpost_state"),
        );
        let swapped = async {
            self.run(DOING, &begin).await?;
            let script = self.swap_script(until).await?;
            self.run(DOING, &format!("{script}; COMMIT")).await
        };
        let swapped = swapped.await;
        if swapped.is_err() {
            // The error says more.
            let _ = self.run(DOING, "ROLLBACK").await;
        }
        swapped
    }

    /// The first statement that locks the table, in a transaction with a limit of [`SWAP_WAIT`]: it
    /// waits for no reader or writer, and for so long that PostgreSQL ends an autovacuum which
    /// is in the way (`deadlock_timeout`).
    pub(super) fn first_lock(&self) -> String {
        format!(
            "SET LOCAL lock_timeout = '3s';
             LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE;
             SET LOCAL lock_timeout = '{}ms';",
            self.table.quoted(),
            SWAP_WAIT.as_millis()
        )
    }

    async fn swap_script(&self, until: Timestamp) -> Result<String, Error> {
        let (table, part) = (self.table.quoted(), before_name(self.table.name(), until));
        let (key, day) = (self.key_index(until), digits(until));
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&table, &part, &self.table.schema(), &day, &key, &self.table.quoted_schema()];
        let mut steps: Vec<(i32, String)> = self
            .query(DOING, MOVED, &parameters)
            .await?
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        steps.extend(self.own_steps(until, &part).await?);
        steps.sort_by_key(|it| it.0); // keeps what is of one step in order
        let statements: Vec<String> = steps.into_iter().map(|it| it.1).collect();
        Ok(statements.join(";\n"))
    }

    /// What is done with every table.
    async fn own_steps(&self, until: Timestamp, part: &str) -> Result<Vec<(i32, String)>, Error> {
        let (table, id) = (self.table.quoted(), self.table.column(Column::Id));
        let (bound, old_key) = (constraint(until), self.primary_key().await?);
        let (old, owner) = (quote(&old_key.name), quote(&old_key.owner));
        let part_key = quote(&named(part, "_pkey"));
        let (key, part) = (quote(&self.key_index(until)), self.table.companion(part));
        let becomes_part = format!(
            "ALTER TABLE {part} DROP CONSTRAINT {old};
             ALTER TABLE {part} ADD CONSTRAINT {part_key} PRIMARY KEY USING INDEX {key};
             CREATE TABLE {table} (LIKE {part} INCLUDING ALL EXCLUDING INDEXES)
                 PARTITION BY RANGE ({KEY});
             ALTER TABLE {table} DROP CONSTRAINT {bound},
                 ALTER {KEY} SET DEFAULT clock_timestamp(),
                 ADD CONSTRAINT {old} PRIMARY KEY ({id}, {KEY});
             ALTER TABLE {table} OWNER TO {owner}"
        );
        let attached = format!(
            "ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM (MINVALUE) TO ('{until}');
             ALTER TABLE {part} DROP CONSTRAINT {bound}"
        );
        let noted = format!(
            "UPDATE {} SET partitioned_txid = pg_current_xact_id(), wal_seq = CASE
                 WHEN wal_seq IS NOT NULL THEN pg_get_serial_sequence('{}', 'seq') END",
            self.table.companion("tailpost_state"),
            table.replace('\'', "''")
        );
        let mut steps =
            vec![(20, becomes_part), (50, attached), (53, self.keep_defaults(&part)), (70, noted)];
        let today = midnight(self.clock().await?).max(until);
        for day in 0..2 {
            let since = today.checked_add((24 * day).hours()).unwrap_or(today);
            let until = since.checked_add(24.hours()).unwrap_or(since);
            steps.push((52, self.partition_statements(&part, &owner, since, until)));
        }
        Ok(steps)
    }

    /// A call of a function with a parsed body that waits for the table goes on with the partition.
    /// From PostgreSQL 17 on that has the identity of its table.
    fn keep_defaults(&self, part: &str) -> String {
        let quoted = |name: &str| name.replace('\'', "''");
        format!(
            "DO $defaults$ DECLARE
                 sequence CONSTANT TEXT := pg_get_serial_sequence('{table}', 'seq');
                 producer TEXT;
             BEGIN
                 IF current_setting('server_version_num')::int >= 170000
                     OR NOT EXISTS (SELECT FROM pg_attribute WHERE attname = 'seq'
                         AND attrelid = '{table}'::regclass AND attidentity <> '') THEN
                     RETURN;
                 END IF;
                 EXECUTE format('ALTER TABLE %s ALTER seq SET DEFAULT nextval(%L)',
                     '{part}'::regclass, sequence);
                 FOR producer IN
                     SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC'
                         ELSE quote_ident(pg_get_userbyid(grantee)) END
                     FROM pg_class, aclexplode(relacl)
                     WHERE oid = '{table}'::regclass AND privilege_type = 'INSERT'
                         AND grantee <> relowner
                 LOOP
                     EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %s', sequence, producer);
                 END LOOP;
             END $defaults$",
            table = quoted(&self.table.quoted()),
            part = quoted(part),
        )
    }

    /// A partition for a day, stored as `like` is, made while the table is locked. `owner` is quoted.
    fn partition_statements(
        &self,
        like: &str,
        owner: &str,
        since: Timestamp,
        until: Timestamp,
    ) -> String {
        let name = self.table.companion(&day_name(self.table.name(), since, until));
        // In a string that is a format.
        let partition = name.replace('\'', "''").replace('%', "%%");
        format!(
            "DO $partition$ BEGIN EXECUTE (SELECT format(
                 'CREATE TABLE {partition} PARTITION OF {table}
                      FOR VALUES FROM (''{since}'') TO (''{until}'') %s',
                 'WITH (' || array_to_string(reloptions, ', ') || ')')
             FROM pg_class WHERE oid = to_regclass('{like}')); END $partition$;
             ALTER TABLE {name} OWNER TO {owner}",
            table = self.table.quoted().replace('\'', "''").replace('%', "%%"),
            like = like.replace('\'', "''"),
        )
    }

    /// Which transactions use the table, for people.
    pub(crate) async fn users_of_the_outbox(&self) -> Result<String, Error> {
        let sql = "SELECT coalesce(string_agg(format('process %s (%s), since %s', pid, name,
                date_trunc('second', xact_start)), ', ' ORDER BY xact_start), 'none at the moment')
            FROM (SELECT DISTINCT pid, xact_start,
                    coalesce(nullif(application_name, ''), backend_type, 'unknown') AS name
                FROM pg_locks JOIN pg_stat_activity USING (pid)
                WHERE relation IN (to_regclass($1), to_regclass($2)) AND granted
                    AND pid <> pg_backend_pid()
                ORDER BY xact_start LIMIT 3) AS users";
        let (table, state) = (self.table.quoted(), self.table.companion("tailpost_state"));
        Ok(self.query_one(DOING, sql, &[&table, &state]).await?.get(0))
    }

    async fn primary_key(&self) -> Result<PrimaryKey, Error> {
        let sql = "SELECT conname::text, pg_get_userbyid(relowner)::text
            FROM pg_constraint JOIN pg_class c ON c.oid = conrelid
            WHERE conrelid = to_regclass($1) AND contype = 'p'";
        let table = self.table.quoted();
        let row = self.query_one(DOING, sql, &[&table]).await?;
        Ok(PrimaryKey { name: row.get(0), owner: row.get(1) })
    }
}

/// What the table's key is called, and who owns the table.
struct PrimaryKey {
    name: String,
    owner: String,
}
