//! Statements that somebody waits for who asked for them.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, ToSql};

use crate::Error;
use crate::connection::Connection;
use crate::postgres::attended::answered_within;

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(60);

impl Connection {
    /// The rows that a statement gives.
    ///
    /// # Errors
    ///
    /// [`Error::Silent`] after [`STATEMENT_MAX`]; [`Error::Tables`] if there is no inbox.
    pub(crate) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        answered_within(STATEMENT_MAX, doing, self.client.query(sql, parameters)).await
    }

    /// As [`query`](Self::query), of a statement that gives JSON.
    pub(crate) async fn select<T: DeserializeOwned>(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<T>, Error> {
        let rows = self.query(doing, sql, parameters).await?;
        let read = |row: &Row| row.try_get::<_, Json<T>>(0).map(|it| it.0);
        rows.iter().map(read).collect::<Result<_, _>>().map_err(Error::sql(doing))
    }
}
