//! The partitions of a table, as PostgreSQL has them.

use inbox::Connection;
use outbox::Table;
use relay::{Config, Error};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Store;
use super::records::select;

/// A partition. Its figures are PostgreSQL's, as of its last look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionEntry {
    /// Its name.
    pub name: String,
    /// Which rows it is for, as PostgreSQL says it.
    pub range: String,
    /// About how many rows it has; -1 if that is not known yet.
    pub rows: f64,
    /// How large it is, with its indexes.
    pub bytes: i64,
}

/// Of the table `$1`, the oldest first. One without partitions has none.
const LIST: &str = "SELECT c.relname::text AS name, pg_get_expr(c.relpartbound, c.oid) AS range,
        c.reltuples::float8 AS rows, pg_total_relation_size(c.oid) AS bytes
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass($1) ORDER BY c.relname::text";

const DOING: &str = "list the partitions";

/// The partitions of the outbox.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached.
pub async fn outbox_partitions(config: &Config) -> Result<Vec<PartitionEntry>, Error> {
    let store = Store::brief(config, "tailpost partitions").await?;
    store.read(DOING, LIST, &[&config.table.quoted()]).await
}

/// The partitions of the inbox beside `outbox`.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer.
pub async fn inbox_partitions(
    connection: &Connection,
    outbox: &Table,
) -> Result<Vec<PartitionEntry>, inbox::Error> {
    let records = format!("{}.inbox_messages", outbox.quoted_schema());
    select(connection, DOING, &inbox::access::as_json(LIST), &[&records]).await
}
