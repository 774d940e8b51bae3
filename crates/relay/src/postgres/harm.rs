//! What the outbox must not be or have, whoever reads its rows.

use outbox::{Column, Table};
use tokio_postgres::types::ToSql;

use super::Connection;
use super::columns::Misfit;
use crate::error::Error;

/// What of the outbox $1, called $3 in the schema $2, keeps its rows from being published or marked,
/// whoever brings them; and the statement that mends it. PostgreSQL refuses statements that change rows
/// in WITH, as those of marks and dead letters, where a rule does something besides; and updates of a table
/// that another publication brings where nothing says which row each was, by its id $4 for example. It runs
/// every second, so each relation is looked up by its number: a database may have many.
const HARM: &str = "
    SELECT format('it is %s: postgres.table has to name a table', kind), (
        SELECT min(concat_ws('; ', format('DROP VIEW %s', $1::text),
            CASE WHEN nspname <> $2::text
                THEN format('ALTER TABLE %I.%I SET SCHEMA %I', nspname, relname, $2::text) END,
            CASE WHEN relname <> $3::text
                THEN format('ALTER TABLE %I.%I RENAME TO %I', $2::text, relname, $3::text) END))
        FROM pg_class base JOIN pg_namespace n ON n.oid = relnamespace
        WHERE relkind IN ('r', 'p') AND base.oid IN (
            SELECT refobjid FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
            WHERE d.classid = 'pg_rewrite'::regclass AND ev_class = c.oid)
        HAVING count(*) = 1 AND kind = 'a view')
    FROM pg_class c, LATERAL (SELECT CASE relkind WHEN 'v' THEN 'a view'
        WHEN 'm' THEN 'a materialized view' WHEN 'f' THEN 'a foreign table' ELSE 'no table' END) k (kind)
    WHERE oid = to_regclass($1) AND relkind NOT IN ('r', 'p')
    UNION ALL
    SELECT format('rule \"%s\" on %s keeps the relay from its rows', rulename,
            CASE ev_type WHEN '2' THEN 'UPDATE' WHEN '3' THEN 'INSERT' ELSE 'DELETE' END),
        format('DROP RULE IF EXISTS %I ON %s', rulename, $1::text)
    FROM pg_rewrite JOIN pg_class c ON c.oid = ev_class
    WHERE ev_class = to_regclass($1) AND relkind IN ('r', 'p') AND ev_enabled IN ('O', 'A')
        AND (is_instead OR ev_type <> '3')
    UNION ALL
    SELECT 'column \"published_at\" must have no DEFAULT: each row counts as published from the first',
        format('ALTER TABLE %s ALTER COLUMN published_at DROP DEFAULT', $1::text)
    FROM (SELECT to_regclass($1)::oid UNION SELECT relid FROM pg_partition_tree(to_regclass($1)))
            AS part (relid)
        CROSS JOIN LATERAL (SELECT attnum FROM pg_attribute WHERE attrelid = relid
            AND attname = 'published_at' AND attgenerated = '' AND atthasdef OFFSET 0) AS marked
        CROSS JOIN LATERAL (SELECT pg_get_expr(adbin, adrelid) AS value FROM pg_attrdef
            WHERE adrelid = relid AND adnum = attnum OFFSET 0) AS preset
    WHERE value NOT LIKE 'NULL%'
    UNION ALL
    SELECT format('PostgreSQL refuses to mark rows of %s, which has no replica identity while publication '
            '\"%s\" publishes updates or deletes', its.name, theirs.pubname),
        CASE WHEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
            THEN format('ALTER TABLE %s REPLICA IDENTITY DEFAULT', its.name)
            ELSE format('ALTER TABLE %s ADD PRIMARY KEY (%s)', its.name, $4::text) END
    FROM pg_class c
        CROSS JOIN LATERAL (SELECT format('%I.%I', nspname, c.relname) AS name
            FROM pg_namespace n WHERE n.oid = c.relnamespace) AS its
        CROSS JOIN LATERAL (
            SELECT pubname FROM pg_publication p JOIN pg_publication_tables t USING (pubname)
            WHERE (p.pubupdate OR p.pubdelete) AND (format('%I.%I', schemaname, tablename) = its.name
                OR schemaname = $2::text AND tablename = $3::text)
            ORDER BY 1 LIMIT 1) AS theirs
    WHERE c.oid IN (SELECT to_regclass($1)::oid UNION ALL
                    SELECT relid::oid FROM pg_partition_tree(to_regclass($1)))
        AND relkind = 'r' AND relreplident <> 'f' AND NOT EXISTS (
            SELECT FROM pg_index WHERE indrelid = c.oid AND indisvalid AND indimmediate
                AND (relreplident = 'd' AND indisprimary OR relreplident = 'i' AND indisreplident))
    LIMIT 1";

/// What harms first, with the statement that mends it where there is one.
///
/// # Errors
///
/// If the server refuses the question or does not answer.
pub async fn find(connection: &Connection, table: &Table) -> Result<Option<Misfit>, Error> {
    let (doing, outbox) = ("look at what the outbox is", table.quoted());
    let id = table.column(Column::Id);
    let parameters: [&(dyn ToSql + Sync); 4] = [&outbox, &table.schema(), &table.name(), &id];
    let row = connection.query_opt(doing, HARM, &parameters).await?;
    Ok(row.map(|row| Misfit { problem: row.get(0), statement: row.get(1) }))
}

/// Whether something else has the outbox's name, through which rows may go into a table of another one.
pub(super) async fn is_no_table(connection: &Connection, table: &Table) -> Result<bool, Error> {
    let sql = "SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind NOT IN ('r', 'p')";
    let found = connection.query_opt("look at what the outbox is", sql, &[&table.quoted()]).await?;
    Ok(found.is_some())
}
