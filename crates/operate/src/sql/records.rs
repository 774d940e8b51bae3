//! Every statement that operators run on the records of an inbox, and a worker does not. A schema's
//! name is quoted.

pub(crate) mod control_consumers;
pub(crate) mod decide_letters;
pub(crate) mod list_letters;
pub(crate) mod look_up_records;
pub(crate) mod plan_rewinds;
#[cfg(test)]
mod tests;

use std::time::Duration;

use inbox::access::answered_within;
use inbox::{Connection, Error};
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, ToSql};

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// The rows that a statement gives.
///
/// # Errors
///
/// [`Error::Silent`] after [`STATEMENT_MAX`]; [`Error::Tables`] if there is no inbox.
pub(crate) async fn query(
    on: &Connection,
    doing: &'static str,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    answered_within(STATEMENT_MAX, doing, on.client().query(sql, parameters)).await
}

/// As [`query`], of a statement that gives JSON.
pub(crate) async fn select<T: DeserializeOwned>(
    on: &Connection,
    doing: &'static str,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>, Error> {
    let rows = query(on, doing, sql, parameters).await?;
    let read = |row: &Row| row.try_get::<_, Json<T>>(0).map(|it| it.0);
    rows.iter().map(read).collect::<Result<_, _>>().map_err(Error::sql(doing))
}
