//! What operators want of consumers: to be paused, to go on, to go back in the stream.

mod controls;
mod rewinder;

pub use self::controls::{ControlAction, Controls};
pub use self::rewinder::{RewindCounts, RewindPlan, RewindTarget, Rewinder};

use inbox::{Connection, Error};
use outbox::Table;

use crate::sql::records::query;

/// Whether there are tables of an inbox beside the outbox `table`.
///
/// # Errors
///
/// If PostgreSQL refuses or does not answer.
pub async fn exist(connection: &Connection, table: &Table) -> Result<bool, Error> {
    let tables = format!("{}.inbox_retention", table.quoted_schema());
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    Ok(query(connection, "look at the tables of the inbox", sql, &[&tables]).await?[0].get(0))
}
