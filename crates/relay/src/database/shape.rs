//! Which columns the outbox has, and of which types.

use std::collections::HashMap;

use outbox::{Column, Table};
use tokio_postgres::Client;

use crate::error::Error;

// From PostgreSQL's `pg_type.dat`; they never change.
pub(crate) const BYTEA: u32 = 17;
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
pub(crate) type Types = HashMap<String, u32>;

/// The columns of a table; none if it does not exist. `table` is quoted.
pub(crate) async fn types(client: &Client, table: &str) -> Result<Types, Error> {
    let rows = client
        .query(
            "SELECT attname::text, atttypid FROM pg_attribute
             WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
            &[&table],
        )
        .await
        .map_err(Error::sql("look at the table's columns"))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
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
    for (column, allowed, wanted) in [
        (Column::Id, &[UUID][..], "uuid"),
        (Column::AggregateType, &[], ""),
        (Column::AggregateId, &[], ""),
        (Column::EventType, &[], ""),
        (
            Column::Payload,
            &[JSONB, JSON, TEXT, VARCHAR, BPCHAR, BYTEA],
            "jsonb, json, text, or bytea",
        ),
    ] {
        let name = table.columns().name(column);
        let type_oid = types.get(name).ok_or_else(|| missing(table, column))?;
        let is_known = allowed.is_empty() || *type_oid >= USER_DEFINED_MIN;
        if !is_known && !allowed.contains(type_oid) {
            return Err(Error::Table(format!("column \"{name}\" must be of type {wanted}")));
        }
    }
    let occurred_at = table.columns().name(Column::OccurredAt);
    match types.get(occurred_at) {
        None | Some(&(TIMESTAMPTZ | TIMESTAMP)) => Ok(()),
        Some(_) => Err(Error::Table(format!(
            "column \"{occurred_at}\" must be of type timestamptz: name another one, or none, as \
             outbox.columns.occurred_at"
        ))),
    }
}
