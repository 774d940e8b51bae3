//! What a SELECT shows of the outbox and the log does not bring.

use outbox::{Column, Columns, Table, quote};
use tokio_postgres::types::ToSql;

use super::Connection;
use crate::error::Error;

/// Why a publication brings too little or too much, and the statement that mends it.
pub struct Unfit {
    /// Why the log does not bring its rows.
    pub reason: String,
    /// What mends it.
    pub statement: String,
}

impl Unfit {
    /// What ends the relay.
    pub fn refusal(self, publication: &str) -> Error {
        let Self { reason, statement } = self;
        Error::Unusable {
            problem: format!("publication \"{publication}\" cannot be used: {reason}"),
            fix: format!("run `{statement}`"),
        }
    }
}

/// Of the table $1: a child by inheritance, which is published under its own name, if at all; a
/// partition that is unlogged or foreign; a column of the event, named in $2, that is generated. From
/// PostgreSQL 18 on a publication may bring stored ones, and $3 does or can be made to: but where $4
/// `outbox_emit` writes them. It runs every second, so each relation is looked up by its number: a database
/// may have many.
const FIND: &str = "
    WITH relation AS NOT MATERIALIZED (
        SELECT c.oid, relkind = 'f' AS is_foreign, relpersistence = 'u' AS is_unlogged,
            format('%I.%I', nspname, relname) AS name
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relpersistence <> 't'
    ), brings AS (
        SELECT NOT $4 AND current_setting('server_version_num')::int >= 180000 AS can_stored,
            coalesce((SELECT to_jsonb(p)->>'pubgencols' = 's' FROM pg_publication p
                      WHERE pubname = $3), true) AS has_stored
    )
    SELECT 'child', child.name, NULL
    FROM pg_inherits JOIN relation child ON child.oid = inhrelid
        JOIN pg_class parent ON parent.oid = inhparent
    WHERE inhparent = to_regclass($1) AND parent.relkind = 'r'
    UNION ALL
    SELECT CASE WHEN leaf.is_foreign THEN 'foreign' ELSE 'unlogged' END, leaf.name, parent.name
    FROM pg_partition_tree(to_regclass($1)) t
        CROSS JOIN LATERAL (SELECT * FROM relation WHERE oid = relid OFFSET 0) AS leaf
        CROSS JOIN LATERAL (SELECT * FROM relation WHERE oid = parentrelid OFFSET 0) AS parent
    WHERE t.isleaf AND (leaf.is_foreign OR leaf.is_unlogged)
    UNION ALL
    SELECT CASE WHEN attgenerated = 'v' THEN 'virtual' WHEN can_stored THEN 'publishable'
                ELSE 'stored' END, attname::text, format_type(atttypid, atttypmod)
    FROM pg_attribute, brings
    WHERE attrelid = to_regclass($1) AND attname::text = ANY ($2) AND NOT attisdropped
        AND attgenerated <> '' AND NOT (attgenerated = 's' AND can_stored AND has_stored)
    ORDER BY 1, 2 LIMIT 1";

/// What is found first. A publication that does not exist is taken for one that can be made.
pub async fn find(
    connection: &Connection,
    table: &Table,
    publication: &str,
) -> Result<Option<Unfit>, Error> {
    let (outbox, columns) = (table.quoted(), Column::ALL.map(|it| table.columns().name(it)));
    let is_emitted = *table.columns() == Columns::default();
    let parameters: [&(dyn ToSql + Sync); 4] =
        [&outbox, &columns.as_slice(), &publication, &is_emitted];
    let doing = "look for what the log does not bring";
    let Some(row) = connection.query_opt(doing, FIND, &parameters).await? else { return Ok(None) };
    let (what, name): (&str, &str) = (row.get(0), row.get(1));
    let further = row.get::<_, Option<&str>>(2).unwrap_or_default();
    let quoted = quote(name);
    let rows = |what: &str| format!("it does not bring the rows of {name}, {what}");
    let column = format!("it does not bring column \"{name}\", which is generated");
    let (reason, statement) = match what {
        "child" => (
            rows("which inherits from the outbox"),
            format!("ALTER TABLE {name} NO INHERIT {outbox}; {}", take_in(table, name)),
        ),
        "foreign" => {
            (rows("a foreign table"), format!("ALTER TABLE {further} DETACH PARTITION {name}"))
        }
        "unlogged" => (rows("which is unlogged"), format!("ALTER TABLE {name} SET LOGGED")),
        "publishable" => (
            column,
            format!("ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)"),
        ),
        "stored" => (column, format!("ALTER TABLE {outbox} ALTER COLUMN {quoted} DROP EXPRESSION")),
        // A virtual column cannot be made another one.
        _ => {
            let renamed = quote(&format!("{name}_virtual"));
            let statement = format!(
                "ALTER TABLE {outbox} RENAME COLUMN {quoted} TO {renamed}; ALTER TABLE {outbox} \
                 ADD COLUMN {quoted} {further}; UPDATE {outbox} SET {quoted} = {renamed}"
            );
            (column, statement)
        }
    };
    Ok(Some(Unfit { reason, statement }))
}

/// Inserts what a former child has into the outbox, as events of now.
fn take_in(table: &Table, child: &str) -> String {
    let columns = Column::ALL.map(|it| table.column(it)).join(", ");
    format!(
        "INSERT INTO {} ({columns}) SELECT {columns} FROM {child} WHERE published_at IS NULL",
        table.quoted()
    )
}
