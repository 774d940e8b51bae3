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

/// A table's columns by their names, with their types.
pub(crate) type Types = HashMap<String, ColumnType>;

#[derive(Debug, Clone)]
pub(crate) struct ColumnType {
    pub(crate) oid: u32,
    /// `pg_type.typcategory`.
    category: String,
}

/// Selects the columns of a table, by its quoted name, for [`read_types`].
pub(super) const TYPES: &str = "SELECT attname::text, atttypid, typcategory::text
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped";

pub(super) fn read_types(rows: &[Row]) -> Types {
    let column = |row: &Row| (row.get(0), ColumnType { oid: row.get(1), category: row.get(2) });
    rows.iter().map(column).collect()
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
    let name = table.columns().name(column);
    Error::Table(format!("column \"{name}\" is missing or renamed"))
}

/// Refuses a table that exists and that no migration can make fit. What it may lack is added.
pub(crate) fn check(table: &Table, types: &Types) -> Result<(), Error> {
    if types.is_empty() {
        return Ok(()); // the migrations make it
    }
    for column in Column::ALL {
        let name = table.columns().name(column);
        match types.get(name) {
            None if is_required(column) => return Err(missing(table, column)),
            None => {}
            Some(found) => {
                if let Some(wanted) = unfit(column, found) {
                    let problem = format!("column \"{name}\" must be of type {wanted}");
                    return Err(Error::Table(problem));
                }
            }
        }
    }
    Ok(())
}

/// Refuses a table whose aggregates cannot be divided: a row filter takes text as it is, and turns
/// nothing else into it.
pub(crate) fn check_divisible(table: &Table, types: &Types) -> Result<(), Error> {
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
                || matches!(found.category.as_str(), "S" | "E"),
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
