//! What the migrations make, as their text says, and what of it a database lacks.
//!
//! Others change schemas too: a tool that compares a schema with its models drops what it does not
//! know.

use outbox::migrations::{MIGRATIONS, fill_in, sections};
use outbox::{Column, Table};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Connection;
use super::sql::mark::{transaction, version};
use super::sql::sweep::OLDEST_TRANSACTION;
use crate::config::MarkBy;
use crate::error::Error;

/// How lines begin that make something, and what that is called.
const MAKES: [(&str, &str); 7] = [
    ("CREATE TABLE IF NOT EXISTS ", "table"),
    ("CREATE TABLE ", "table"),
    ("ALTER TABLE ", "table"),
    ("CREATE INDEX IF NOT EXISTS ", "index"),
    ("CREATE UNIQUE INDEX IF NOT EXISTS ", "index"),
    ("CREATE OR REPLACE VIEW ", "view"),
    ("CREATE OR REPLACE FUNCTION ", "function"),
];

/// Something that a migration made, and that is not there or not as it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The migration's number.
    pub(crate) version: i32,
    /// Such as `column txid of "public"."outbox_events"`.
    pub what: String,
    /// Whether a relay cannot do without it.
    pub(crate) is_needed: bool,
    /// The statement that makes it: of a companion's column. The migration makes the rest.
    pub statement: Option<String>,
    /// Whether it is there, of another type: that is left to an operator.
    pub is_misfit: bool,
}

/// Something that a migration makes.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    kind: &'static str,
    /// The quoted name, with its schema; of a column, of its table.
    name: String,
    /// A column's name, and what follows it.
    column: Option<(String, String)>,
}

/// What a migration's text makes of every outbox. The event's own columns are left out where the text
/// makes a new table: an adopted one has its own. So is `outbox_emit`, which not every outbox gets.
fn made(text: &str, table: &Table) -> Vec<Made> {
    let (mut found, mut relation) = (Vec::new(), None);
    for (_, line) in sections(text).filter(|(section, _)| section.is_none()) {
        let makes = |(begin, kind): (&'static str, &'static str)| {
            let name = line.strip_prefix(begin)?.split([' ', '(']).next()?;
            Some((kind, fill_in(name, table), line.starts_with("ALTER")))
        };
        if let Some((kind, name, alters)) = MAKES.into_iter().find_map(makes) {
            let is_adopted = name == table.quoted() && !alters;
            relation = (kind == "table" && !is_adopted).then(|| name.clone());
            // The text names an index without its schema.
            let name = if kind == "index" { table.companion(&name) } else { name };
            if !name.ends_with(".outbox_emit") {
                found.push(Made { kind, name, column: None });
            }
        } else if let Some(name) = &relation {
            let Some(line) = line.strip_prefix("    ") else {
                relation = None;
                continue;
            };
            let line = line.strip_prefix("ADD COLUMN IF NOT EXISTS ").unwrap_or(line);
            let is_column = |it: char| it.is_ascii_lowercase() || it == '{';
            if let Some((column, rest)) = line.split_once(' ')
                && column.starts_with(is_column)
            {
                // A condition may go on in the next line.
                let rest = rest.split(" CHECK").next().unwrap_or_default().trim();
                let rest = rest.trim_end_matches([',', ';']).to_owned();
                let column = Some((fill_in(column, table), rest));
                found.push(Made { kind: "column", name: name.clone(), column });
            }
        }
    }
    found
}

/// The place of each $1 $2, or of a column $3 of it of type $4, that is not there, and its other type if
/// it is. The outbox is $5.
const LACKING: &str = "
    SELECT place::int4 - 1, format_type(atttypid, NULL)
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY
        AS made (kind, name, part, type, place)
    LEFT JOIN pg_attribute ON kind = 'column' AND attrelid = to_regclass(name)
        AND attname = (parse_ident(part))[1] AND NOT attisdropped
    WHERE CASE kind
        WHEN 'function' THEN to_regproc(name) IS NULL
        -- It stays with the table that it was made of, whatever that is called by now.
        WHEN 'view' THEN NOT EXISTS (
            SELECT FROM pg_rewrite r JOIN pg_depend d
                ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
            WHERE ev_class = to_regclass(name) AND refobjid = to_regclass($5))
        WHEN 'column' THEN to_regclass(name) IS NOT NULL
            AND (attname IS NULL OR atttypid <> to_regtype(type)::oid)
        ELSE to_regclass(name) IS NULL
    END ORDER BY place";

/// What the migrations make and the database lacks, whether they were applied or not.
pub async fn lacking(connection: &Connection, table: &Table) -> Result<Vec<Lack>, Error> {
    let of = |(version, text)| made(text, table).into_iter().map(move |it| (version, it));
    let all: Vec<(i32, Made)> =
        MIGRATIONS.iter().map(|it| (it.version, it.sql)).flat_map(of).collect();
    let (mut kinds, mut names, mut columns, mut types) = (vec![], vec![], vec![], vec![]);
    for (_, Made { kind, name, column }) in &all {
        let (column, rest) = column.as_ref().map(|(name, rest)| (name, rest)).unzip();
        // The outbox's own may be of other types, and dead letters' payloads are of the outbox's.
        let of_companion = rest.filter(|it| *name != table.quoted() && !it.starts_with('%'));
        kinds.push(*kind);
        names.push(name);
        columns.push(column);
        types.push(of_companion.and_then(|it| it.split(' ').next()));
    }
    let parameters: [&(dyn ToSql + Sync); 5] = [&kinds, &names, &columns, &types, &table.quoted()];
    let rows = connection.query("compare the schema", LACKING, &parameters).await?;
    let lack = |row: &Row| {
        let (version, made) = all.get(usize::try_from(row.get::<_, i32>(0)).ok()?)?;
        Some(made.lack(*version, row.get(1), table))
    };
    Ok(rows.iter().filter_map(lack).collect())
}

/// The type of a companion's column that is of another one, and what mends it.
pub(crate) fn misfit(lacks: &[Lack]) -> Option<Error> {
    let misfit = lacks.iter().find(|it| it.is_misfit)?;
    let (problem, statement) = (misfit.what.clone(), misfit.statement.as_ref()?);
    Some(Error::Unusable { problem, fix: format!("run `{statement}`") })
}

/// What is run before the migrations where columns lack whose defaults would say something wrong about
/// the rows that are there: others dropped them, or an adopted table never had them.
pub(super) fn contents_kept(lacks: &[Lack], table: &Table, by: MarkBy) -> Vec<String> {
    let lacks = |what: String| lacks.iter().any(|it| it.what == what);
    let lacks = |column: &str| lacks(format!("column {column} of {}", table.quoted()));
    let waits = if lacks("published_at") { "true" } else { "published_at IS NULL" };
    let mut statements = Vec::new();
    if lacks("txid") {
        statements.extend(transactions_kept(&lacks, table, by, waits));
    }
    if lacks("seq") {
        statements.extend(order_kept(table, waits));
    }
    statements
}

/// The migrations would give the rows that are there the transaction of today, as if the log were to
/// bring them: rows that it never brings would count as published. Versions still say who wrote them,
/// as long as nothing rewrites the table. Those of a failed attempt do not: the scanner takes these.
fn transactions_kept(
    lacks: &impl Fn(&str) -> bool,
    table: &Table,
    by: MarkBy,
    waits: &str,
) -> Vec<String> {
    let outbox = table.quoted();
    let mut statements = vec![
        format!("ALTER TABLE {outbox} ADD COLUMN txid XID8"),
        format!("ALTER TABLE {outbox} ALTER COLUMN txid SET DEFAULT pg_current_xact_id()"),
        // An update gives a row another version.
        format!("UPDATE {outbox} o SET txid = {} WHERE {waits}", version("o")),
    ];
    if by != MarkBy::Lean && !lacks("publish_attempts") {
        statements.push(format!(
            "UPDATE {outbox} SET txid = '{OLDEST_TRANSACTION}' WHERE {waits} AND publish_attempts > 0"
        ));
    }
    statements
}

/// The migrations would number rows as they lie in the table, and attempts, marks and vacuum have moved
/// those. Transactions tell the order of rows that wait: an aggregate's writers wait for each other.
/// Numbers go on beyond all that were given before, in microseconds: dead letters and the log keep theirs.
fn order_kept(table: &Table, waits: &str) -> [String; 7] {
    let (outbox, at) = (table.quoted(), table.column(Column::OccurredAt));
    let literal = |name: &str| name.replace('\'', "''");
    let sequence = format!("pg_get_serial_sequence('{}', 'seq')", literal(&outbox));
    let numbers = table.companion("tailpost_numbers");
    [
        // Before PostgreSQL 17 no identity is added where there are partitions, but a column becomes
        // one. It is that of the table alone then, as where partitions are made later.
        format!("CREATE SEQUENCE {numbers}"),
        format!(
            "ALTER TABLE {outbox} ADD COLUMN IF NOT EXISTS {at} TIMESTAMPTZ DEFAULT NOW(),
                 ADD COLUMN seq BIGINT NOT NULL DEFAULT nextval('{}')",
            literal(&numbers)
        ),
        format!("ALTER TABLE {outbox} ALTER COLUMN seq DROP DEFAULT"),
        format!("ALTER TABLE {outbox} ALTER COLUMN seq ADD GENERATED BY DEFAULT AS IDENTITY"),
        format!("DROP SEQUENCE {numbers}"),
        format!(
            "SELECT setval({sequence}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
        ),
        format!(
            "UPDATE {outbox} o SET seq = numbered.place FROM (
                 SELECT was, nextval({sequence}) AS place FROM (
                     SELECT o.seq AS was FROM {outbox} o WHERE {waits}
                     ORDER BY {}, o.{at}, o.seq) AS in_order) AS numbered
             WHERE o.seq = numbered.was",
            transaction("o")
        ),
    ]
}

impl Made {
    fn lack(&self, version: i32, found: Option<String>, table: &Table) -> Lack {
        let Self { kind, name, column } = self;
        let is_misfit = found.is_some();
        let Some((column, rest)) = column else {
            let (what, is_needed) =
                (format!("{kind} {name}"), matches!(*kind, "table" | "function"));
            return Lack { version, what, is_needed, statement: None, is_misfit };
        };
        let rest = rest.replace("%payload%", "TEXT");
        let wanted = rest.split(' ').next().unwrap_or_default();
        let (what, change) = match found {
            None => (String::new(), format!("ADD COLUMN {column} {rest}")),
            Some(found) => (
                format!(", which is of type {found} and has to be {wanted}"),
                format!("ALTER COLUMN {column} TYPE {wanted} USING {column}::text::{wanted}"),
            ),
        };
        let what = format!("column {column} of {name}{what}");
        let statement = (*name != table.quoted()).then(|| format!("ALTER TABLE {name} {change}"));
        Lack { version, what, is_needed: true, statement, is_misfit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_text_makes_is_read_from_it() {
        let text = "-- x\nCREATE TABLE IF NOT EXISTS {table} (\n    {id} UUID\n);\n\n\
            ALTER TABLE {table}\n    ADD COLUMN IF NOT EXISTS {headers} JSONB,\n    \
            ADD COLUMN IF NOT EXISTS seq BIGINT GENERATED BY DEFAULT AS IDENTITY;\n\n\
            CREATE TABLE IF NOT EXISTS {schema}.kept (\n    at   INT CHECK (at >\n                1),\n    \
            PRIMARY KEY (at)\n) WITH (x);\n-- begin lean\nCREATE INDEX IF NOT EXISTS no ON {table};\n-- end\n\
            CREATE INDEX IF NOT EXISTS idx ON {schema}.kept (at);\n\
            CREATE OR REPLACE FUNCTION {schema}.outbox_emit(\n    id UUID\n)";
        let found = made(text, &Table::default()).into_iter().map(|it| {
            let column = it.column.map(|(name, rest)| format!(" {name}: {rest}"));
            format!("{} {}{}", it.kind, it.name, column.unwrap_or_default())
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                "table \"public\".\"outbox_events\"",
                "table \"public\".\"outbox_events\"",
                "column \"public\".\"outbox_events\" \"headers\": JSONB",
                "column \"public\".\"outbox_events\" seq: BIGINT GENERATED BY DEFAULT AS IDENTITY",
                "table \"public\".kept",
                "column \"public\".kept at: INT",
                "index \"public\".\"idx\"",
            ]
        );
    }
}
