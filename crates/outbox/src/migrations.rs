//! Creates the outbox table and its companions, and keeps a record of what was applied.
//!
//! The SQL is embedded from the repository's `migrations/` directory. Migrations are append-only:
//! the record holds a checksum of each, and a database that was migrated with another text is
//! refused rather than guessed at.

use tokio_postgres::{Client, GenericClient};

use crate::table::{COMPANIONS, STATUS_VIEW};
use crate::{Column, Error, Table, fnv, quote};

/// A numbered change of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// From 1, ascending; migrations are applied in this order. The inbox's have numbers between.
    pub version: i32,
    /// What it is about, as in its file name.
    pub name: &'static str,
    /// Its statements, with `{table}`, `{schema}` and, for a column, such as `{payload}` in place of
    /// the quoted names.
    pub sql: &'static str,
}

/// All migrations of the outbox, in order. Number 2 is the inbox's.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "outbox", sql: include_str!("../migrations/0001_outbox.sql") },
    Migration { version: 3, name: "replays", sql: include_str!("../migrations/0003_replays.sql") },
    Migration {
        version: 4,
        name: "retention",
        sql: include_str!("../migrations/0004_retention.sql"),
    },
    Migration { version: 5, name: "streams", sql: include_str!("../migrations/0005_streams.sql") },
    Migration { version: 6, name: "nulls", sql: include_str!("../migrations/0006_nulls.sql") },
    Migration { version: 7, name: "reasons", sql: include_str!("../migrations/0007_reasons.sql") },
    Migration { version: 14, name: "audit", sql: include_str!("../migrations/0014_audit.sql") },
];

/// What the first migration gives an outbox table, whether it makes it or adopts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// For rows that are marked: an index of those that are not, and room for the mark.
    #[default]
    Marked,
    /// For rows that are never written again: an index of their transactions.
    Lean,
}

impl Layout {
    /// What its part of the text is called.
    const fn section(self) -> &'static str {
        match self {
            Self::Marked => "marked",
            Self::Lean => "lean",
        }
    }
}

/// The part of the first migration that makes the table of a partitioned outbox.
const PARTITIONED: &str = "partitioned";

/// How the line begins before a part of a migration that not every table gets.
const BEGIN: &str = "-- begin ";

/// The line that ends such a part.
const END: &str = "-- end";

/// Held while migrating, so that several instances starting at once do not collide.
const ADVISORY_LOCK: i64 = 0x7461_696C_706F_7374; // "tailpost"

/// How long to wait for other runs: several may be before us.
const TURN_TIMEOUT: &str = "60s";

/// How long a migration waits for the application to let go of the table. Meanwhile the
/// application's own statements queue up behind it.
const LOCK_TIMEOUT: &str = "10s";

impl Migration {
    /// The statements for `table`.
    #[must_use]
    pub fn render(&self, table: &Table, layout: Layout) -> String {
        let part = sections(self.sql)
            .filter(|(section, _)| section.is_none_or(|it| it == layout.section()))
            .flat_map(|(_, line)| [line, "\n"]);
        fill_in(&part.collect::<String>(), table)
    }

    /// Guards against edits by mistake: a hash of the text without carriage returns
    /// (which a checkout on another system may add).
    #[must_use]
    pub fn checksum(&self) -> String {
        format!("{:016x}", fnv(self.sql.bytes().filter(|byte| *byte != b'\r')))
    }
}

/// The lines of a migration's text, each with the name of the section that it is in.
pub fn sections(text: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let mut section = None;
    text.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix(BEGIN) {
            section = Some(name);
            None
        } else if line == END {
            section = None;
            None
        } else {
            Some((section, line))
        }
    })
}

/// A migration's text with the names of `table` in place of `{table}`, `{schema}` and the columns'.
#[must_use]
pub fn fill_in(text: &str, table: &Table) -> String {
    let mut sql = String::with_capacity(text.len());
    // In one pass, since a name may itself look like a placeholder.
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        sql.push_str(&rest[..start]);
        rest = &rest[start..];
        let placeholder = rest[1..].split_once('}').and_then(|(name, after)| {
            let column = || Column::ALL.into_iter().find(|it| it.documented_name() == name);
            let value = match name {
                "table" => table.quoted(),
                "schema" => table.quoted_schema(),
                _ => table.column(column()?),
            };
            Some((value, after))
        });
        match placeholder {
            Some((value, after)) => {
                sql.push_str(&value);
                rest = after;
            }
            None => {
                sql.push('{');
                rest = &rest[1..];
            }
        }
    }
    sql + rest
}

/// Brings the schema up to date and returns what had to be applied: nothing, mostly.
///
/// All in one transaction under an advisory lock: concurrent runs wait, and one that fails leaves
/// nothing behind. Needs no privilege but to read the record if there is nothing to do. Migrations
/// that a newer version of tailpost has added are left alone. `layout` matters to the first of them
/// only: a table that has been migrated keeps its own.
///
/// # Errors
///
/// [`Error::Refused`] if the schema holds something else than expected, [`Error::Migrate`] if
/// PostgreSQL refuses.
pub async fn migrate(
    client: &mut Client,
    table: &Table,
    layout: Layout,
) -> Result<Vec<Migration>, Error> {
    migrate_from(client, table, layout, None, "").await
}

/// The same, and applies those from the version `from` on once more, after the statements `first`: others
/// have dropped what they made, and a later one may have changed it.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_from(
    client: &mut Client,
    table: &Table,
    layout: Layout,
    from: Option<i32>,
    first: &str,
) -> Result<Vec<Migration>, Error> {
    let prepare = prepare(table);
    if pending(client, table, from).await?.is_empty() {
        return Ok(Vec::new());
    }
    let tx = client.transaction().await.map_err(prepare)?;
    let turn = format!("SET LOCAL client_min_messages = warning; {}", take_turn(ADVISORY_LOCK));
    tx.batch_execute(&turn).await.map_err(prepare)?;
    create_schema(&tx, table.schema()).await.map_err(prepare)?;
    tx.batch_execute(&record_table(table)).await.map_err(prepare)?;
    // Again, since another run may have been at work until the lock was ours.
    let pending = pending(&tx, table, from).await?;
    tx.batch_execute(first).await.map_err(prepare)?;
    for migration in &pending {
        let script = format!("{}\n{}", migration.render(table, layout), record(migration, table));
        tx.batch_execute(&script).await.map_err(|source| {
            let doing = format!("apply migration {:04}_{}", migration.version, migration.name);
            Error::Migrate { doing, source }
        })?;
    }
    tx.commit().await.map_err(prepare)?;
    Ok(pending)
}

/// The whole of what [`migrate`] does on an empty database, as a script to be read, or run by an
/// administrator. Running it twice does no harm; afterwards [`migrate`] has nothing to do.
#[must_use]
pub fn render(table: &Table, layout: Layout) -> String {
    let mut script = String::from("BEGIN;\n\n");
    if table.schema() != "public" {
        script += &format!("CREATE SCHEMA IF NOT EXISTS {};\n\n", table.quoted_schema());
    }
    script += &record_table(table);
    for migration in MIGRATIONS {
        script += &format!("\n{}\n{}", migration.render(table, layout), record(migration, table));
    }
    script + "\nCOMMIT;\n"
}

/// The statement that makes a partitioned outbox, without partitions, if there is no table of that
/// name. To be run before [`migrate`], which adds what it lacks.
#[must_use]
pub fn render_partitioned(table: &Table) -> String {
    let lines = MIGRATIONS.iter().flat_map(|it| sections(it.sql));
    let part = lines.filter(|(section, _)| *section == Some(PARTITIONED));
    fill_in(&part.flat_map(|(_, line)| [line, "\n"]).collect::<String>(), table)
}

/// The statement that makes `outbox_emit`, if the event's columns have the documented names and types.
#[must_use]
pub fn render_emit(table: &Table) -> String {
    let text = MIGRATIONS[0].sql.split_once("DO $emit$").and_then(|it| it.1.split_once("$emit$;"));
    let (block, _) = text.expect("the first migration has it");
    fill_in(&format!("DO $emit${block}$emit$"), table)
}

/// The migrations that are not recorded yet, or are to be applied again, after checking the record.
async fn pending(
    client: &impl GenericClient,
    table: &Table,
    from: Option<i32>,
) -> Result<Vec<Migration>, Error> {
    let recorded = recorded(client, table).await.map_err(prepare(table))?;
    let name = table.to_string();
    if let Some(other) = recorded.iter().find(|it| it.outbox_table != name) {
        return Err(Error::Refused(format!(
            "schema {} already belongs to the outbox {}; give {name} a schema of its own",
            table.schema(),
            other.outbox_table
        )));
    }
    let mut pending = Vec::new();
    for migration in MIGRATIONS {
        match recorded.iter().find(|it| it.version == migration.version) {
            None => pending.push(*migration),
            Some(it) if it.checksum == migration.checksum() => {
                let is_again = from.is_some_and(|it| it <= migration.version);
                pending.extend(is_again.then_some(*migration));
            }
            Some(it) => {
                return Err(Error::Refused(changed(migration, &it.checksum, table)));
            }
        }
    }
    Ok(pending)
}

fn prepare(table: &Table) -> impl Fn(tokio_postgres::Error) -> Error + Copy {
    move |source| Error::Migrate { doing: format!("prepare the migrations of {table}"), source }
}

/// Why a migration cannot be taken for the one that was `recorded`, and what to do.
fn changed(migration: &Migration, recorded: &str, table: &Table) -> String {
    format!(
        "migration {:04}_{} was applied to schema {} with a different text (checksum {recorded}, \
         this binary has {}): a version before the first release made it, and no migration leads \
         from there to this one. With the version that made it, publish what is left (`tailpost \
         relay --once`), requeue or discard dead letters, and run `tailpost slot drop`. Then run \
         `{}`, which leaves the outbox alone, and `tailpost setup`",
        migration.version,
        migration.name,
        table.schema(),
        migration.checksum(),
        drop_companions(table)
    )
}

struct Recorded {
    version: i32,
    checksum: String,
    outbox_table: String,
}

async fn recorded(
    client: &impl GenericClient,
    table: &Table,
) -> Result<Vec<Recorded>, tokio_postgres::Error> {
    let record_table = table.companion("tailpost_migrations");
    let sql = "SELECT to_regclass($1::text) IS NOT NULL";
    if !client.query_one(sql, &[&record_table]).await?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT version, checksum, outbox_table FROM {record_table}");
    let rows = client.query(&sql, &[]).await?;
    Ok(rows
        .iter()
        .map(|row| Recorded { version: row.get(0), checksum: row.get(1), outbox_table: row.get(2) })
        .collect())
}

/// The beginning of a transaction that changes tables under the advisory lock `lock`: waits for others
/// who do, and then not for long for the application.
#[must_use]
pub fn take_turn(lock: i64) -> String {
    format!(
        "SET LOCAL lock_timeout = '{TURN_TIMEOUT}';
         SELECT pg_advisory_xact_lock({lock});
         SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';"
    )
}

/// Creates the schema only if it is missing: `IF NOT EXISTS` would ask for the privilege anyway.
///
/// # Errors
///
/// If PostgreSQL refuses.
pub async fn create_schema(
    client: &impl GenericClient,
    schema: &str,
) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    if !client.query_one(sql, &[&schema]).await?.get::<_, bool>(0) {
        // Outbox and inbox, which take different locks, may make it at the same moment.
        let create = format!(
            "DO 'BEGIN CREATE SCHEMA {};
             EXCEPTION WHEN duplicate_schema OR unique_violation THEN NULL; END'",
            quote(schema).replace('\'', "''")
        );
        client.batch_execute(&create).await?;
    }
    Ok(())
}

fn record_table(table: &Table) -> String {
    format!(
        "SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';

CREATE TABLE IF NOT EXISTS {} (
    version      INT PRIMARY KEY,
    name         TEXT NOT NULL,
    checksum     TEXT NOT NULL,
    outbox_table TEXT NOT NULL,
    applied_at   TIMESTAMPTZ NOT NULL DEFAULT now()
);
",
        table.companion("tailpost_migrations")
    )
}

/// Makes way for the companions of this version. The outbox itself stays, with its rows.
fn drop_companions(table: &Table) -> String {
    let tables = COMPANIONS.iter().filter(|it| **it != STATUS_VIEW);
    let tables: Vec<String> = tables.map(|it| table.companion(it)).collect();
    format!(
        "DROP VIEW IF EXISTS {}; DROP TABLE IF EXISTS {}",
        table.companion(STATUS_VIEW),
        tables.join(", ")
    )
}

fn record(migration: &Migration, table: &Table) -> String {
    format!(
        "INSERT INTO {} (version, name, checksum, outbox_table)
VALUES ({}, '{}', '{}', {})
ON CONFLICT (version) DO NOTHING;
",
        table.companion("tailpost_migrations"),
        migration.version,
        migration.name,
        migration.checksum(),
        literal(&table.to_string())
    )
}

/// An SQL string, whatever `standard_conforming_strings` says.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Columns;

    #[test]
    fn versions_ascend() {
        assert!(MIGRATIONS.is_sorted_by(|one, next| one.version < next.version));
    }

    /// A published migration never changes; a change is a new migration.
    #[test]
    fn checksums_are_those_of_the_published_migrations() {
        let checksums: Vec<_> = MIGRATIONS.iter().map(Migration::checksum).collect();
        let published = [
            "f3a7718378e424f4",
            "e6786487bbfdc8f7",
            "20af453e0957067d",
            "9808117a85ce1f0a",
            "bbb97263c09e93ab",
            "8e0ce28c3c101dfb",
            "c54b1e8ee478e31d",
        ];
        assert_eq!(checksums, published);
    }

    #[test]
    fn the_text_names_no_column_of_the_event_itself() {
        let mut columns = Columns::default();
        for column in Column::ALL {
            columns.rename(column, &format!("app {}", column.documented_name())).unwrap();
        }
        let table = Table::default().with_columns(columns).unwrap();
        for layout in [Layout::Marked, Layout::Lean] {
            let sql = render(&table, layout);
            for column in Column::ALL {
                let name = column.documented_name();
                assert!(sql.contains(&format!("\"app {name}\"")), "{name}");
                assert!(!sql.contains(&format!("{{{name}}}")), "{name}");
            }
        }
    }

    #[test]
    fn a_table_gets_the_indexes_of_its_layout_and_no_partitions_unless_they_are_asked_for() {
        let mut columns = Columns::default();
        columns.rename(Column::OccurredAt, "at").unwrap();
        for table in [Table::default(), Table::default().with_columns(columns).unwrap()] {
            let (marked, lean) = (render(&table, Layout::Marked), render(&table, Layout::Lean));
            for (text, has, lacks) in [
                (&marked, ["idx_outbox_unpublished", "fillfactor"], "idx_outbox_txid"),
                (&lean, ["idx_outbox_txid", "idx_outbox_occurred_at"], "idx_outbox_unpublished"),
            ] {
                assert!(has.iter().all(|it| text.contains(it)) && !text.contains(lacks), "{text}");
                assert!(!text.contains("PARTITION BY") && !text.contains(BEGIN), "{text}");
            }
            assert!(!lean.contains("fillfactor"), "{lean}");
            let partitioned = render_partitioned(&table);
            assert!(partitioned.contains("PARTITION BY RANGE (inserted_at)"), "{partitioned}");
            assert!(!partitioned.contains('{') && !partitioned.contains("tailpost_state"));
        }
    }

    #[test]
    fn placeholders_in_names_are_not_replaced_again() {
        let table = Table::new("{table}", "{schema}").unwrap();
        let migration = Migration { version: 1, name: "x", sql: "{schema}|{table}|{other}" };
        let rendered = migration.render(&table, Layout::Marked);
        assert_eq!(rendered, "\"{table}\"|\"{table}\".\"{schema}\"|{other}\n");
    }

    #[test]
    fn checksums_ignore_line_ends_and_nothing_else() {
        let checksum = |sql| Migration { version: 1, name: "x", sql }.checksum();
        assert_eq!(checksum("a\nb"), checksum("a\r\nb"));
        assert_ne!(checksum("a\nb"), checksum("a b"));
        assert_eq!(checksum("foobar"), "85944171f73967e8"); // Known answer of FNV-1a.
    }

    #[test]
    fn literals_survive_quotes_and_backslashes() {
        assert_eq!(literal(r"a'b\"), r"E'a''b\\'");
    }
}
