//! A connection, and what bounds its statements.

use std::time::Duration;

use outbox::Table;
use outbox::migrations::{self, Layout, Migration};
use serde::de::DeserializeOwned;
use servers::Session;
use tokio::time::timeout;
use tokio_postgres::types::{BorrowToSql, ToSql};
use tokio_postgres::{CopyOutStream, Row, RowStream, Statement, ToStatement};
use tracing::warn;

use super::columns::{self, Types};
use super::opening::Opening;

use crate::error::Error;

/// Has rows come as they are stored until the transaction ends. In UTF-8 that is no difference.
const AS_STORED_NOW: &str = "SET LOCAL client_encoding = 'SQL_ASCII'";

/// How long a statement may take.
pub enum Bound {
    /// As long as the code that runs it allows.
    Caller,
    /// So long, because it waits for nobody.
    Answer(Duration),
    /// As long as the server's process `pid` works on it, or waits for others' locks.
    Work {
        /// What tells of its waits.
        opening: Opening,
        /// As PostgreSQL calls the process.
        pid: i32,
    },
}

impl Bound {
    /// The same for the server's process `pid`.
    pub(super) fn of(&self, pid: i32) -> Self {
        match self {
            Self::Caller => Self::Caller,
            Self::Answer(limit) => Self::Answer(*limit),
            Self::Work { opening, .. } => Self::Work { opening: opening.clone(), pid },
        }
    }

    pub(super) async fn within<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self {
            Self::Caller => work.await,
            Self::Answer(limit) => {
                timeout(*limit, work).await.unwrap_or(Err(Error::Silent { doing }))
            }
            Self::Work { opening, pid } => Box::pin(opening.step(*pid, doing, work)).await,
        }
    }
}

/// A connection for statements. Each says what it is `doing`, in the imperative, for its errors.
pub struct Connection {
    client: Session,
    bound: Bound,
}

impl Connection {
    /// Over a session that is there.
    pub fn new(client: Session, bound: Bound) -> Self {
        Self { client, bound }
    }

    /// What the statements run over.
    pub fn client(&self) -> &Session {
        &self.client
    }

    pub(super) fn bound(&self) -> &Bound {
        &self.bound
    }

    /// From now on whoever runs a statement bounds it.
    pub(super) fn unbound(&mut self) {
        self.bound = Bound::Caller;
    }

    pub(super) async fn statement<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        self.bound.within(doing, async { work.await.map_err(Error::sql(doing)) }).await
    }

    /// Exactly one row.
    pub async fn query_one<T: ?Sized + ToStatement>(
        &self,
        doing: &'static str,
        sql: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.statement(doing, self.client.query_one(sql, parameters)).await
    }

    /// One row at most.
    pub async fn query_opt<T: ?Sized + ToStatement>(
        &self,
        doing: &'static str,
        sql: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.statement(doing, self.client.query_opt(sql, parameters)).await
    }

    /// All rows.
    pub async fn query<T: ?Sized + ToStatement>(
        &self,
        doing: &'static str,
        sql: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.statement(doing, self.client.query(sql, parameters)).await
    }

    /// Reads each row as a `T`, whose fields are called as the columns.
    pub async fn read<T: DeserializeOwned>(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<T>, Error> {
        let sql = format!("SELECT to_jsonb(answer)::text FROM ({sql}) AS answer");
        let rows = self.query(doing, &sql, parameters).await?;
        let read: Result<_, _> = rows.iter().map(|row| serde_json::from_str(row.get(0))).collect();
        read.map_err(|error| {
            warn!(%error, "could not {doing}: the server's answer cannot be read");
            Error::Stalled("the server's answer cannot be read")
        })
    }

    /// How many rows there were.
    pub async fn execute<T: ?Sized + ToStatement>(
        &self,
        doing: &'static str,
        sql: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.statement(doing, self.client.execute(sql, parameters)).await
    }

    /// As [`execute`](Self::execute), where the number of rows does not matter.
    pub async fn perform<T: ?Sized + ToStatement>(
        &self,
        doing: &'static str,
        sql: &T,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Error> {
        self.execute(doing, sql, parameters).await.map(drop)
    }

    /// Statements without parameters and answers.
    pub async fn batch_execute(&self, doing: &'static str, sql: &str) -> Result<(), Error> {
        self.statement(doing, self.client.batch_execute(sql)).await
    }

    /// The rows as they are read.
    pub async fn query_raw<P: BorrowToSql>(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: impl IntoIterator<Item = P, IntoIter: ExactSizeIterator>,
    ) -> Result<RowStream, Error> {
        self.statement(doing, self.client.query_raw(sql, parameters)).await
    }

    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        self.statement("prepare a statement", self.client.prepare(sql)).await
    }

    /// Copies rows whose texts come as they are stored, in a transaction. The statement itself is in
    /// UTF-8.
    pub(super) async fn copy_as_stored(
        &self,
        doing: &'static str,
        sql: &str,
    ) -> Result<CopyOutStream, Error> {
        let statement = self.client.prepare(sql).await.map_err(Error::sql(doing))?;
        self.batch_execute(doing, AS_STORED_NOW).await?;
        self.client.copy_out(&statement).await.map_err(Error::sql(doing))
    }

    /// Whether there is a table or a view; `name` is quoted.
    pub async fn has_relation(&self, doing: &'static str, name: &str) -> Result<bool, Error> {
        let sql = "SELECT to_regclass($1) IS NOT NULL";
        Ok(self.query_one(doing, sql, &[&name]).await?.get(0))
    }

    /// The columns of a table; none if it does not exist. `table` is quoted.
    pub async fn types(&self, table: &str) -> Result<Types, Error> {
        let doing = "look at the table's columns";
        let rows = self.query(doing, columns::TYPES, &[&table]).await?;
        Ok(columns::read_types(&rows))
    }

    /// Applies the migrations that the database lacks, and those from the version `from` on, after the
    /// statements `first`. Returns those.
    pub(crate) async fn migrate(
        &mut self,
        table: &Table,
        layout: Layout,
        from: Option<i32>,
        first: &str,
    ) -> Result<Vec<Migration>, Error> {
        let Self { client, bound } = self;
        let migrated = migrations::migrate_from(client, table, layout, from, first);
        let migrated = async { Ok(migrated.await?) };
        bound.within("migrate the tables", migrated).await
    }
}
