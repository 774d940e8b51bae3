//! Which columns the outbox has, and of which types.

use std::collections::HashMap;

use outbox::{Column, Table};
use tokio_postgres::Row;

use crate::error::Error;

// From PostgreSQL's `pg_type.dat`; they never change.
pub(crate) const BYTEA: u32 = 17;
pub(crate) const CHAR: u32 = 18;
pub(crate) const NAME: u32 = 19;
pub(crate) const INT8: u32 = 20;
pub(crate) const INT2: u32 = 21;
pub(crate) const INT4: u32 = 23;
pub(crate) const TEXT: u32 = 25;
pub(crate) const JSON: u32 = 114;
pub(crate) const BPCHAR: u32 = 1042;
pub(crate) const VARCHAR: u32 = 1043;
pub(crate) const TIMESTAMP: u32 = 1114;
pub(crate) const TIMESTAMPTZ: u32 = 1184;
pub(crate) const UUID: u32 = 2950;
pub(crate) const JSONB: u32 = 3802;
/// Types from here on were not made by PostgreSQL itself.
pub(crate) const USER_DEFINED_MIN: u32 = 16_384;
const PG_LSN: u32 = 3220;
const XID8: u32 = 5069;

/// The relay's own columns: the types that each may have, and the documented one.
const BOOKKEEPING: [(&str, &[u32], &str); 9] = [
    ("published_at", &[TIMESTAMPTZ, TIMESTAMP], "timestamptz"),
    ("publish_attempts", &[INT4, INT2, INT8], "int"),
    ("publish_error", &[TEXT, VARCHAR], "text"),
    ("next_attempt_at", &[TIMESTAMPTZ, TIMESTAMP], "timestamptz"),
    ("stream", &[TEXT, VARCHAR], "text"),
    ("stream_seq", &[INT8], "bigint"),
    ("commit_lsn", &[PG_LSN], "pg_lsn"),
    ("txid", &[XID8], "xid8"),
    ("seq", &[INT8], "bigint"),
];

/// A table's columns by their names, with their types.
pub(crate) type Types = HashMap<String, ColumnType>;

/// What PostgreSQL says of a column.
#[derive(Debug, Clone)]
pub struct ColumnType {
    pub(crate) oid: u32,
    /// `pg_type.typcategory`.
    category: String,
    is_generated: bool,
    /// A domain over `char(n)`: the log has its spaces, a cast to text has not.
    is_padded: bool,
}

/// What is wrong with a table, and the statement that mends it, if one does.
#[derive(Debug, Clone)]
pub struct Misfit {
    /// What is wrong with the column.
    pub problem: String,
    /// What mends it, if one statement does.
    pub statement: Option<String>,
}

impl From<Misfit> for Error {
    fn from(Misfit { problem, statement }: Misfit) -> Self {
        match statement {
            None => Self::Table(problem),
            Some(statement) => Self::Unusable {
                problem: Self::Table(problem).to_string(),
                fix: format!("run `{statement}`, then `tailpost setup`"),
            },
        }
    }
}

/// Selects the columns of a table, by its quoted name, for [`read_types`].
pub(super) const TYPES: &str = "SELECT attname::text, atttypid, typcategory::text,
        attgenerated <> '', typtype = 'd' AND typoutput = 'bpcharout'::regproc
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped";

pub(super) fn read_types(rows: &[Row]) -> Types {
    let column = |row: &Row| ColumnType {
        oid: row.get(1),
        category: row.get(2),
        is_generated: row.get(3),
        is_padded: row.get(4),
    };
    rows.iter().map(|row| (row.get(0), column(row))).collect()
}

/// Whether an outbox must have the column; the relay can do without the others.
pub(crate) const fn is_required(column: Column) -> bool {
    matches!(
        column,
        Column::Id
            | Column::AggregateType
            | Column::AggregateId
            | Column::EventType
            | Column::Payload
    )
}

pub(crate) fn missing(table: &Table, column: Column) -> Error {
    misses(table, column).into()
}

fn misses(table: &Table, column: Column) -> Misfit {
    let name = table.columns().name(column);
    Misfit { problem: format!("column \"{name}\" is missing or renamed"), statement: None }
}

/// Refuses a table that exists and that no migration can make fit. What it may lack is added.
pub fn check(table: &Table, types: &Types) -> Result<(), Misfit> {
    if types.is_empty() {
        return Ok(()); // the migrations make it
    }
    for column in Column::ALL {
        let name = table.columns().name(column);
        match types.get(name) {
            None if is_required(column) => return Err(misses(table, column)),
            None => {}
            Some(found) => {
                if let Some(wanted) = unfit(column, found) {
                    let problem = format!("column \"{name}\" must be of type {wanted}");
                    return Err(Misfit { problem, statement: None });
                }
            }
        }
    }
    for (name, fits, wanted) in BOOKKEEPING {
        match types.get(name) {
            None => {}
            Some(found) if found.is_generated => {
                let problem = format!("column \"{name}\" must not be generated");
                let statement = Some(change(table, name, "DROP EXPRESSION"));
                return Err(Misfit { problem, statement });
            }
            Some(found) if fits.contains(&found.oid) => {}
            Some(_) => {
                let problem = format!("column \"{name}\" must be of type {wanted}");
                let statement = Some(retype(table, name, wanted));
                return Err(Misfit { problem, statement });
            }
        }
    }
    Ok(())
}

fn change(table: &Table, name: &str, how: &str) -> String {
    format!("ALTER TABLE {} ALTER COLUMN {name} {how}", table.quoted())
}

/// Gives one of the relay's own columns its type. The view that shows it is in the way.
fn retype(table: &Table, name: &str, wanted: &str) -> String {
    let to = format!("TYPE {wanted} USING {name}::text::{wanted}");
    match name {
        "seq" => change(table, name, &to),
        "txid" => format!(
            "DROP VIEW IF EXISTS {}; {}, ALTER COLUMN txid {to}, ALTER COLUMN txid SET DEFAULT \
             pg_current_xact_id()",
            table.companion("outbox_status"),
            change(table, name, "DROP DEFAULT"),
        ),
        _ => format!(
            "DROP VIEW IF EXISTS {}; {}",
            table.companion("outbox_status"),
            change(table, name, &to)
        ),
    }
}

/// Refuses a table whose aggregates cannot be divided: a row filter takes text as it is, and turns
/// nothing else into it.
pub fn check_divisible(table: &Table, types: &Types) -> Result<(), Error> {
    for column in [Column::AggregateType, Column::AggregateId] {
        let name = table.columns().name(column);
        let found = types.get(name).ok_or_else(|| missing(table, column))?;
        if !matches!(found.oid, TEXT | VARCHAR) {
            return Err(Error::Unusable {
                problem: format!(
                    "relay.shards above 1 needs column \"{name}\" to be of type text or varchar"
                ),
                fix: format!(
                    "run `ALTER TABLE {} ALTER COLUMN {} TYPE text`, or set relay.shards = 1",
                    table.quoted(),
                    table.column(column)
                ),
            });
        }
    }
    Ok(())
}

/// The types that a column may have, if it has another one. Others would be misread: the log has
/// values in their binary form.
fn unfit(column: Column, found: &ColumnType) -> Option<&'static str> {
    let (fits, wanted) = match column {
        Column::Id | Column::CorrelationId | Column::CausationId => (found.oid == UUID, "uuid"),
        // Text of any kind, and enumerations.
        Column::AggregateType | Column::AggregateId | Column::EventType => (
            matches!(found.oid, UUID | INT2 | INT4 | INT8)
                || matches!(found.category.as_str(), "S" | "E") && !found.is_padded,
            "text, an enumeration, uuid, or a whole number",
        ),
        Column::EventVersion => (matches!(found.oid, INT2 | INT4 | INT8), "int"),
        Column::Payload => (
            matches!(found.oid, JSONB | JSON | TEXT | VARCHAR | BYTEA),
            "jsonb, json, text, or bytea",
        ),
        Column::OccurredAt => (matches!(found.oid, TIMESTAMPTZ | TIMESTAMP), "timestamptz"),
        Column::Headers => (matches!(found.oid, JSONB | JSON | TEXT | VARCHAR), "jsonb or json"),
    };
    (!fits).then_some(wanted)
}
