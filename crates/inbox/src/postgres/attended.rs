//! No transaction outlasts its connection.
//!
//! A handler may take its time, and so may a statement of its. A server whose host is gone without a
//! word looks the same from the connection that waits. So the connection is asked for an answer, and
//! if none comes, another one looks whether the server is at work on the transaction.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use crate::Error;
use crate::postgres::pool::Pool;

/// How long a statement of ours may take.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// How long a handler runs before its connection is asked, and how long between two looks.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// How often in a row nobody may be seen at work. Once proves nothing: the answer may be on its way.
const IDLE_LOOKS_MAX: u32 = 2;

const LOOK: &str = "SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active'";

/// Bounds statements of ours.
///
/// # Errors
///
/// [`Error::Silent`] after 30 s; whatever `work` ends with.
pub async fn answered<T, E>(
    doing: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error>
where
    Error: From<Failed<E>>,
{
    let within = ANSWER_DEADLINE;
    let late = |_| Error::Silent { doing, within };
    let answer = timeout(within, work).await.map_err(late)?;
    answer.map_err(|error| Failed { doing, error }.into())
}

/// Bounds a statement on the inbox's tables.
///
/// # Errors
///
/// [`Error::Silent`] after `limit`; [`Error::Tables`] if there are none.
pub async fn answered_within<T>(
    limit: Duration,
    doing: &'static str,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    let late = |_| Error::Silent { doing, within: limit };
    let answer = timeout(limit, statement).await.map_err(late)?;
    answer.map_err(|source| match source.code() {
        Some(&SqlState::UNDEFINED_TABLE) => Error::Tables { reason: "they do not exist".into() },
        _ => Error::Sql { doing, source },
    })
}

/// The rows that a statement gives, on a connection that nobody uses.
///
/// # Errors
///
/// As [`answered`].
pub(crate) async fn asked(
    pool: &Pool,
    doing: &'static str,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let store = pool.try_get().await?;
    let rows = answered(doing, store.client().query(sql, parameters)).await;
    if rows.as_ref().err().is_none_or(|error| !error.is_transient()) {
        pool.put(store);
    }
    rows
}

/// As [`asked`], when it is the partition's turn to look.
///
/// # Errors
///
/// As [`answered`].
pub(crate) async fn looked(
    pool: &Pool,
    doing: &'static str,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let _turn = pool.turns.looks.acquire().await;
    asked(pool, doing, sql, parameters).await
}

/// What was being done, and what went wrong.
pub struct Failed<E> {
    doing: &'static str,
    error: E,
}

impl From<Failed<tokio_postgres::Error>> for Error {
    fn from(Failed { doing, error }: Failed<tokio_postgres::Error>) -> Self {
        Self::sql(doing)(error)
    }
}

impl From<Failed<Self>> for Error {
    fn from(failed: Failed<Self>) -> Self {
        failed.error
    }
}

/// Runs a handler for as long as the connection of its transaction answers, or the server's process
/// `pid` is at work on it.
///
/// # Errors
///
/// [`Error::Silent`] if neither is so; what the handler did is undone.
pub(crate) async fn attended<T>(
    pool: &Pool,
    pid: i32,
    transaction: &Transaction<'_>,
    handling: impl Future<Output = T>,
) -> Result<T, Error> {
    let mut handling = pin!(handling);
    loop {
        if let Ok(done) = timeout(ASK_EVERY, &mut handling).await {
            return Ok(done);
        }
        // Answered behind what the handler asked before. An error is an answer: the next statement
        // fails as well.
        let asked = transaction.batch_execute("");
        tokio::select! {
            biased;
            done = &mut handling => return Ok(done),
            _ = asked => {}
            within = nobody_is_at_work(pool, pid) => {
                return Err(Error::Silent { doing: "handle an event", within });
            }
        }
    }
}

/// Returns once nobody has been at work for so long.
async fn nobody_is_at_work(pool: &Pool, pid: i32) -> Duration {
    let mut idle_looks = 0;
    while idle_looks < IDLE_LOOKS_MAX {
        sleep(ASK_EVERY).await;
        idle_looks = if is_at_work(pool, pid).await { 0 } else { idle_looks + 1 };
    }
    ASK_EVERY * IDLE_LOOKS_MAX
}

/// A server that cannot be asked is not at work for us.
async fn is_at_work(pool: &Pool, pid: i32) -> bool {
    let parameters: [&(dyn ToSql + Sync); 1] = [&pid];
    let looked = timeout(ASK_EVERY, asked(pool, "look for a transaction", LOOK, &parameters)).await;
    looked.is_ok_and(|looked| looked.is_ok_and(|rows| !rows.is_empty()))
}
