//! Creates the outbox table and its companions, and keeps a record of what was applied.
//!
//! The SQL is embedded from the repository's `migrations/` directory. Migrations are append-only:
//! the record holds a checksum of each, and a database that was migrated with another text is
//! refused rather than guessed at.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient};

use crate::{Column, Columns, Error, Table};

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

/// All migrations, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "outbox", sql: include_str!("../migrations/0001_outbox.sql") },
    Migration {
        version: 2,
        name: "slot_life",
        sql: include_str!("../migrations/0002_slot_life.sql"),
    },
    Migration {
        version: 3,
        name: "dead_letters",
        sql: include_str!("../migrations/0003_dead_letters.sql"),
    },
    Migration {
        version: 5,
        name: "room_for_marks",
        sql: include_str!("../migrations/0005_room_for_marks.sql"),
    },
    Migration {
        version: 7,
        name: "published",
        sql: include_str!("../migrations/0007_published.sql"),
    },
    Migration {
        version: 8,
        name: "rows_in_hand",
        sql: include_str!("../migrations/0008_rows_in_hand.sql"),
    },
    Migration {
        version: 10,
        name: "resolved_place",
        sql: include_str!("../migrations/0010_resolved_place.sql"),
    },
    Migration {
        version: 13,
        name: "checkpoint",
        sql: include_str!("../migrations/0013_checkpoint.sql"),
    },
    Migration { version: 14, name: "replays", sql: include_str!("../migrations/0014_replays.sql") },
    Migration {
        version: 15,
        name: "retention",
        sql: include_str!("../migrations/0015_retention.sql"),
    },
    Migration {
        version: 17,
        name: "emit_wal",
        sql: include_str!("../migrations/0017_emit_wal.sql"),
    },
    Migration {
        version: 18,
        name: "partitions",
        sql: include_str!("../migrations/0018_partitions.sql"),
    },
    Migration {
        version: 19,
        name: "rewind_slot",
        sql: include_str!("../migrations/0019_rewind_slot.sql"),
    },
    Migration {
        version: 21,
        name: "replicated",
        sql: include_str!("../migrations/0021_replicated.sql"),
    },
];

/// The first migration for a table that the documented text does not fit: one with other column
/// names, or with a payload that is no JSON.
const OUTBOX_ADOPTED: &str = include_str!("../migrations/0001_outbox_adopted.sql");

/// How an outbox table is stored when the first migration makes it, or adopts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// With an index of the rows that are not marked, which every mark touches.
    #[default]
    Standard,
    /// With no index that a mark touches, and room in every page for the marks of its rows.
    Fast,
}

/// What the layout [`Fast`](Layout::Fast) has in place of the index of unmarked rows.
const LAYOUT_FAST: &str = include_str!("../migrations/0001_layout_fast.sql");

/// The table that a partitioned outbox begins as.
const PARTITIONED: &str = include_str!("../migrations/0001_layout_partitioned.sql");

/// How the line begins that makes this index, in both texts of the first migration.
const UNMARKED_INDEX: &str = "CREATE INDEX IF NOT EXISTS idx_outbox_unpublished ";

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
        let documented = *table.columns() == Columns::default();
        if documented {
            laid_out(self.sql, table, layout)
        } else {
            self.render_adopted(table, layout)
        }
    }

    /// As [`render`](Self::render), for a table that the documented text does not fit.
    fn render_adopted(&self, table: &Table, layout: Layout) -> String {
        laid_out(if self.version == 1 { OUTBOX_ADOPTED } else { self.sql }, table, layout)
    }

    /// Guards against edits by mistake: FNV-1a, 64 bits, of the text without carriage returns
    /// (which a checkout on another system may add).
    #[must_use]
    pub fn checksum(&self) -> String {
        let bytes = self.sql.bytes().filter(|byte| *byte != b'\r');
        let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        format!("{hash:016x}")
    }
}

fn laid_out(text: &str, table: &Table, layout: Layout) -> String {
    let lines = text.lines().map(|line| match layout {
        Layout::Fast if line.starts_with(UNMARKED_INDEX) => LAYOUT_FAST,
        _ => line,
    });
    fill_in(&lines.flat_map(|line| [line, "\n"]).collect::<String>(), table)
}

fn fill_in(text: &str, table: &Table) -> String {
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
/// [`Error::MigrationChanged`] and [`Error::SchemaTaken`] if the schema holds something else than
/// expected, the others if PostgreSQL refuses.
pub async fn migrate(
    client: &mut Client,
    table: &Table,
    layout: Layout,
) -> Result<Vec<Migration>, Error> {
    let prepare = |source| Error::PrepareMigrations { table: table.to_string(), source };
    if pending(client, table).await?.is_empty() {
        return Ok(Vec::new());
    }
    let tx = client.transaction().await.map_err(prepare)?;
    tx.batch_execute(&format!(
        "SET LOCAL lock_timeout = '{TURN_TIMEOUT}';
         SELECT pg_advisory_xact_lock({ADVISORY_LOCK});
         SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"
    ))
    .await
    .map_err(prepare)?;
    create_schema(&tx, table).await.map_err(prepare)?;
    tx.batch_execute(&record_table(table)).await.map_err(prepare)?;
    // Again, since another run may have been at work until the lock was ours.
    let pending = pending(&tx, table).await?;
    let adopted = is_adopted(&tx, table).await.map_err(prepare)?;
    for migration in &pending {
        let text = match adopted {
            true => migration.render_adopted(table, layout),
            false => migration.render(table, layout),
        };
        let script = format!("{text}\n{}", record(migration, table));
        tx.batch_execute(&script).await.map_err(|source| Error::Migrate {
            version: migration.version,
            name: migration.name,
            source,
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
    fill_in(PARTITIONED, table)
}

/// The migrations that are not recorded yet, after checking those that are.
async fn pending(client: &impl GenericClient, table: &Table) -> Result<Vec<Migration>, Error> {
    let recorded = recorded(client, table)
        .await
        .map_err(|source| Error::PrepareMigrations { table: table.to_string(), source })?;
    let name = table.to_string();
    if let Some(other) = recorded.iter().find(|it| it.outbox_table != name) {
        return Err(Error::SchemaTaken {
            schema: table.schema().to_owned(),
            table: name,
            recorded: other.outbox_table.clone(),
        });
    }
    let mut pending = Vec::new();
    for migration in MIGRATIONS {
        match recorded.iter().find(|it| it.version == migration.version) {
            None => pending.push(*migration),
            Some(it) if it.checksum == migration.checksum() => {}
            Some(it) => {
                return Err(Error::MigrationChanged {
                    version: migration.version,
                    name: migration.name,
                    recorded: it.checksum.clone(),
                    embedded: migration.checksum(),
                });
            }
        }
    }
    Ok(pending)
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

/// Creates the schema only if it is missing: `IF NOT EXISTS` would ask for the privilege anyway.
async fn create_schema(
    client: &impl GenericClient,
    table: &Table,
) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    if !client.query_one(sql, &[&table.schema()]).await?.get::<_, bool>(0) {
        // The inbox, which takes another lock, may make it at the same moment.
        let create = format!(
            "DO 'BEGIN CREATE SCHEMA {};
             EXCEPTION WHEN duplicate_schema OR unique_violation THEN NULL; END'",
            table.quoted_schema().replace('\'', "''")
        );
        client.batch_execute(&create).await?;
    }
    Ok(())
}

/// Whether there is a table already, and a column of it has another type than the documented one.
async fn is_adopted(
    client: &impl GenericClient,
    table: &Table,
) -> Result<bool, tokio_postgres::Error> {
    let sql = "SELECT EXISTS (
                   SELECT FROM pg_attribute
                   JOIN unnest($2::text[], $3::text[]) AS documented (name, type) ON attname = name
                   WHERE attrelid = to_regclass($1::text) AND NOT attisdropped
                       AND atttypid <> type::regtype
                       AND NOT (attname = $4::text
                           AND atttypid IN ('json'::regtype, 'text'::regtype)))";
    let names = Column::ALL.map(|it| table.columns().name(it));
    let types = Column::ALL.map(documented_type);
    // The documented text fits any payload but bytes.
    let payload = table.columns().name(Column::Payload);
    let parameters: [&(dyn ToSql + Sync); 4] =
        [&table.quoted(), &&names[..], &&types[..], &payload];
    Ok(client.query_one(sql, &parameters).await?.get(0))
}

const fn documented_type(column: Column) -> &'static str {
    match column {
        Column::Id | Column::CorrelationId | Column::CausationId => "uuid",
        Column::AggregateType | Column::AggregateId | Column::EventType => "text",
        Column::EventVersion => "int",
        Column::Payload | Column::Headers => "jsonb",
        Column::OccurredAt => "timestamptz",
    }
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

    #[test]
    fn versions_ascend() {
        assert!(MIGRATIONS.is_sorted_by(|one, next| one.version < next.version));
    }

    /// A published migration never changes; a change is a new migration.
    #[test]
    fn checksums_are_those_of_the_published_migrations() {
        let checksums: Vec<_> = MIGRATIONS.iter().map(Migration::checksum).collect();
        assert_eq!(
            checksums,
            [
                "dca413c504537e6b",
                "ff5d1428ebb075d4",
                "37e5d5084e10aa68",
                "46ef4200e46652c5",
                "d8df65c4442489a6",
                "8ae75a4906b13c3a",
                "45d5808b27d1424a",
                "6cf4fc66e3dd94ab",
                "b913d97a7114c995",
                "36382dbfa5b89b98",
                "9f1b8f6641005edf",
                "a179ae4e22943325",
                "88e6e89e156e93fc",
                "433b90c5f45b3394"
            ]
        );
    }

    /// It is the same migration, so it is published as well.
    #[test]
    fn the_other_texts_of_the_first_are_pinned_too_and_adopting_names_no_column_itself() {
        let text = Migration { version: 1, name: "x", sql: OUTBOX_ADOPTED };
        assert_eq!(text.checksum(), "047b77c17760c253");
        let layout = Migration { version: 1, name: "x", sql: LAYOUT_FAST };
        assert_eq!(layout.checksum(), "9c05e581abbbb1e0");
        let mut columns = Columns::default();
        for column in Column::ALL {
            columns.rename(column, &format!("app {}", column.documented_name())).unwrap();
        }
        let sql = text.render(&Table::default().with_columns(columns).unwrap(), Layout::Standard);
        for column in Column::ALL {
            let name = column.documented_name();
            assert!(sql.contains(&format!("\"app {name}\"")), "{name}");
            assert!(!sql.contains(&format!("{{{name}}}")), "{name}");
        }
    }

    #[test]
    fn the_fast_layout_takes_the_place_of_the_index_of_unmarked_rows() {
        let mut columns = Columns::default();
        columns.rename(Column::OccurredAt, "at").unwrap();
        for table in [Table::default(), Table::default().with_columns(columns).unwrap()] {
            let (plain, fast) = (render(&table, Layout::Standard), render(&table, Layout::Fast));
            assert!(plain.contains(UNMARKED_INDEX) && !plain.contains("idx_outbox_txid"));
            assert!(!fast.contains(UNMARKED_INDEX) && fast.contains("idx_outbox_txid"));
            assert!(!fast.contains("{occurred_at}") && !fast.contains("{table}"));
        }
    }

    #[test]
    fn placeholders_in_names_are_not_replaced_again() {
        let table = Table::new("{table}", "{schema}").unwrap();
        let migration = Migration { version: 1, name: "x", sql: "{schema}|{table}|{other}" };
        let rendered = migration.render(&table, Layout::Standard);
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
