//! One set-up at a time.

use std::time::{Duration, Instant};

use relay::Error;

use super::Store;

/// How long to wait for another set-up, which may wait for an old transaction to end.
const WAIT_MAX: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(100);

impl Store {
    /// Waits until no other set-up is at work in this database. Released with the connection.
    ///
    /// Asks again and again: a statement that waits would hold up the creation of an index.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if another one is at work for longer than a minute.
    pub(crate) async fn lock_setup(&self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let sql = "SELECT pg_try_advisory_lock(hashtextextended('tailpost setup', 0))";
            let doing = "wait for other set-ups";
            if self.query_one(doing, sql, &[]).await?.get(0) {
                return Ok(());
            }
            if started.elapsed() >= WAIT_MAX {
                return Err(Error::Conflict(format!(
                    "another `tailpost setup` has been at work in this database for {} s: wait for \
                     it, or end it, then run this again",
                    WAIT_MAX.as_secs()
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
