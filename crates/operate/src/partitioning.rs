//! Makes the outbox a table with partitions by day, whether there is one or not.

use std::time::{Duration, Instant};

use relay::{Config, Error};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::sql::{Kind, Store};

/// How long a lock on a table that others use is tried to get: each attempt is short, because others
/// wait behind it.
const TRY_MAX: Duration = Duration::from_secs(120);

/// The others' turn between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Makes the table, if there is none. Before the migrations, which add what it lacks.
///
/// # Errors
///
/// [`Error::Conflict`] if there is one that cannot have partitions by day.
pub(super) async fn begin(config: &Config, store: &Store) -> Result<bool, Error> {
    let table = &config.table;
    match store.kind().await? {
        Kind::Missing => store.create_partitioned().await.map(|()| true),
        Kind::ByDay => Ok(false),
        Kind::Plain => {
            check(config, store).await?;
            Ok(false)
        }
        Kind::Partitioned => Err(Error::Conflict(format!(
            "{table} is partitioned by something else than inserted_at: leave out --partitioned, \
             and make its partitions as before"
        ))),
        Kind::Other => {
            Err(Error::Conflict(format!("{table} is no table: nothing of it can be partitioned")))
        }
    }
}

async fn check(config: &Config, store: &Store) -> Result<(), Error> {
    let obstacles = store.obstacles().await?;
    if obstacles.is_empty() {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "{} cannot become a partition as it is: {}. Nothing was changed",
        config.table,
        obstacles.join("; ")
    )))
}

/// Makes a table without partitions the first partition of a new one, while others read and write.
/// If it is killed, the next run continues. Says whether there was something to do.
///
/// # Errors
///
/// [`Error::Conflict`] if others do not let go of the table.
pub(super) async fn convert(config: &Config, store: &Store) -> Result<bool, Error> {
    if store.kind().await? != Kind::Plain {
        return Ok(false);
    }
    check(config, store).await?;
    let until = match store.fixed_end().await? {
        Some(until) => until,
        None => patiently(store, async || store.fix_end().await).await?,
    };
    info!(%until, "rows so far become the partition before this");
    // These take as long as reading the table takes.
    store.validate_end(until).await?;
    store.ensure_key_index(until).await?;
    patiently(store, async || store.swap(until).await).await?;
    Ok(true)
}

/// Tries again what did not get a lock.
async fn patiently<T>(store: &Store, work: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let (began, mut told) = (Instant::now(), false);
    loop {
        match work().await {
            Err(error) if error.is_contention() && began.elapsed() < TRY_MAX => {
                if !std::mem::replace(&mut told, true) {
                    let others = store.users_of_the_outbox().await?;
                    warn!(others, "others use the outbox: trying again");
                }
                sleep(PAUSE).await;
            }
            Err(error) if error.is_contention() => {
                let others = store.users_of_the_outbox().await?;
                return Err(Error::Conflict(format!(
                    "others have used the outbox for {} s without a pause: {others}. What was \
                     prepared stays; end these transactions, or run this again when it is quieter",
                    TRY_MAX.as_secs()
                )));
            }
            done => return done,
        }
    }
}
