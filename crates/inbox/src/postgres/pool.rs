use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::Error;
use crate::connection::Connect;
use crate::engine::backoff;
use crate::postgres::scope::Scope;
use crate::postgres::sqlstate::is_lack;
use crate::postgres::store::Store;

/// How long opening a connection and preparing the statements may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Different reasons that are logged while the database is away.
const SAID_MAX: usize = 16;

/// Connections that are opened at a time for those who wait: when the database is back, all of them
/// want one.
const OPENED_AT_ONCE: usize = 8;

/// Nothing if no commit of ours waits for longer than standbys take.
const WAITS_FOR_STANDBY: &str = "SELECT current_setting('synchronous_standby_names')
    WHERE EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'
        AND datname = current_database() AND usename = current_user
        AND application_name = current_setting('application_name')
        AND query_start < clock_timestamp() - interval '2 s')";

/// What each partition of a consumer does that is done for so many at a time.
pub(crate) struct Turns {
    /// Looks for something that is wanted of it, or to be done.
    pub(crate) looks: Semaphore,
    /// Searches for what has no end, before a session.
    pub(crate) searches: Semaphore,
    /// Claims of a group.
    pub(crate) claims: Semaphore,
}

/// Connections, opened when needed and kept. How many there are at most is up to those who ask.
pub(crate) struct Pool {
    connect: Connect,
    scope: Scope,
    idle: Mutex<Vec<Store>>,
    /// Why the database cannot be reached, while it cannot. Changes under the lock of `outage`.
    trouble: watch::Sender<Option<String>>,
    outage: Mutex<Outage>,
    openings: Semaphore,
    pub(crate) turns: Turns,
    /// Had by the one who asks for all who wait, while no connection can be opened.
    probe: tokio::sync::Mutex<()>,
    /// Wakes those who wait: somebody has opened a connection, or put one back.
    opened: Notify,
    /// That a table or column is not there any more.
    lack: Mutex<Option<Error>>,
    lacks: Notify,
}

/// What is known of a database that cannot be reached.
#[derive(Default)]
struct Outage {
    /// What was logged of it.
    said: BTreeSet<String>,
    /// Connections that could not be opened, since the last one that could.
    failures: u32,
}

impl Pool {
    pub(crate) fn new(connect: Connect, scope: Scope) -> Self {
        Self {
            connect,
            scope,
            idle: Mutex::default(),
            trouble: watch::Sender::default(),
            outage: Mutex::default(),
            openings: Semaphore::new(OPENED_AT_ONCE),
            turns: Turns {
                looks: Semaphore::new(2),
                searches: Semaphore::new(2),
                claims: Semaphore::new(2),
            },
            probe: tokio::sync::Mutex::default(),
            opened: Notify::new(),
            lack: Mutex::default(),
            lacks: Notify::new(),
        }
    }

    pub(crate) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// A connection that worked when it was used last. Waits for the database for as long as it
    /// takes.
    ///
    /// While none can be opened, one of those who wait tries for all of them, at least every second.
    pub(crate) async fn get(&self) -> Store {
        loop {
            let mut opened = pin!(self.opened.notified());
            opened.as_mut().enable();
            if let Some(store) = self.kept() {
                return store;
            }
            let attempt = if self.outage().failures == 0 {
                self.open_in_turn().await
            } else {
                tokio::select! {
                    biased;
                    attempt = self.probe() => Some(attempt),
                    () = opened => None,
                }
            };
            match attempt {
                Some(Ok(store)) => return store,
                Some(Err(error)) => self.note_trouble(&error),
                None => {}
            }
        }
    }

    /// As [`Pool::get`], and says so if the database cannot be reached.
    pub(crate) async fn try_get(&self) -> Result<Store, Error> {
        match self.kept() {
            Some(store) => Ok(store),
            None => self.open().await,
        }
    }

    /// A connection that nobody uses.
    fn kept(&self) -> Option<Store> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|it| !it.is_closed())
    }

    /// `None` if others could not open one while this one waited for its turn.
    async fn open_in_turn(&self) -> Option<Result<Store, Error>> {
        let _turn = self.openings.acquire().await;
        if self.outage().failures > 0 {
            return None;
        }
        Some(self.open().await)
    }

    async fn probe(&self) -> Result<Store, Error> {
        let _probe = self.probe.lock().await;
        let failures = self.outage().failures;
        sleep(backoff::DATABASE.after(failures)).await;
        self.open().await
    }

    async fn open(&self) -> Result<Store, Error> {
        let opening = async {
            let connection = (self.connect)().await.map_err(Error::Connect)?;
            let store = Store::new(connection, self.scope.clone()).await;
            let store = store.map_err(Error::sql("prepare the statements of the inbox"))?;
            match self.waits_for_standby(&store).await? {
                Some(standbys) => Err(Error::StandbyAway { standbys }),
                None => Ok(store),
            }
        };
        let opened = timeout(CONNECT_DEADLINE, opening).await;
        let doing = "open a connection";
        let opened = opened.unwrap_or(Err(Error::Silent { doing, within: CONNECT_DEADLINE }));
        match &opened {
            Ok(_) => self.note_opened(),
            Err(error) => {
                self.note_lack(error);
                let mut outage = self.outage();
                outage.failures = outage.failures.saturating_add(1);
            }
        }
        opened
    }

    /// The standbys that commits of ours wait for, where the database is in trouble: it takes
    /// connections, and no commit ends.
    async fn waits_for_standby(&self, store: &Store) -> Result<Option<String>, Error> {
        if self.trouble.borrow().is_none() {
            return Ok(None);
        }
        let waits = store.client().query_opt(WAITS_FOR_STANDBY, &[]).await;
        let waits = waits.map_err(Error::sql("look what commits wait for"))?;
        Ok(waits.map(|row| row.get(0)))
    }

    fn note_lack(&self, error: &Error) {
        if let Error::Sql { source, .. } = error
            && is_lack(source)
        {
            let reason = error.without_data();
            let mut lack = self.lack.lock().unwrap_or_else(PoisonError::into_inner);
            *lack = Some(Error::Tables { reason });
            self.lacks.notify_one();
        }
    }

    /// Returns when somebody else has dropped what every connection needs: waiting brings nothing back.
    pub(crate) async fn lacks(&self) -> Error {
        loop {
            let lack = self.lack.lock().unwrap_or_else(PoisonError::into_inner).take();
            match lack {
                Some(error) => return error,
                None => self.lacks.notified().await,
            }
        }
    }

    fn note_opened(&self) {
        self.outage().failures = 0;
        self.end_trouble();
        self.opened.notify_waiters();
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connections that nobody uses: the network may have forgotten them.
    pub(crate) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The database has answered somebody. Who asks for a connection just now says more of it: there may
    /// be none, or none of use.
    pub(crate) fn note_answer(&self) {
        if self.probe.try_lock().is_ok() {
            self.end_trouble();
        }
    }

    fn end_trouble(&self) {
        let mut outage = self.outage();
        if self.trouble.send_if_modified(|trouble| trouble.take().is_some()) {
            outage.said.clear();
            info!(consumer = self.scope.consumer, "the database is back");
        }
    }

    /// Takes a connection back. Only if no transaction is open on it.
    pub(crate) fn put(&self, store: Store) {
        if !store.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(store);
            self.opened.notify_one();
        }
    }

    pub(crate) fn note_trouble(&self, error: &Error) {
        let text = error.without_data();
        let Outage { said, .. } = &mut *self.outage();
        self.trouble
            .send_if_modified(|trouble| trouble.replace(text.clone()).as_ref() != Some(&text));
        // What ends connections is no reason why no other is made, and may be said too.
        let is_new = match error {
            Error::Connect(_) | Error::StandbyAway { .. } => {
                said.len() < SAID_MAX && !said.contains(&text)
            }
            _ => said.is_empty(),
        };
        if is_new && said.insert(text.clone()) {
            warn!(consumer = self.scope.consumer, error = text, "the database is away, waiting");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use lab::{Postgres, PostgresOptions};

    use super::*;
    use crate::connection::Connection;

    /// A pool that opens no connection, and how often it was tried.
    fn closed() -> (Arc<Pool>, Arc<AtomicUsize>) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        let connect: Connect = Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Err("refused".into()) })
        });
        (Arc::new(Pool::new(connect, scope())), attempts)
    }

    fn scope() -> Scope {
        Scope {
            schema: "public".into(),
            consumer: "billing".into(),
            stream: "OUTBOX".into(),
            owner: "test".into(),
            lease: Duration::from_secs(30),
            transactional: true,
        }
    }

    fn wait(pool: &Arc<Pool>, waiters: usize) {
        for _ in 0..waiters {
            let pool = Arc::clone(pool);
            tokio::spawn(async move { pool.get().await });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_for_all_who_wait_at_least_every_second() {
        let (pool, attempts) = closed();
        wait(&pool, 100);
        sleep(Duration::from_secs(10)).await;
        let mut before = attempts.load(Ordering::Relaxed);
        assert!((13..13 + OPENED_AT_ONCE).contains(&before), "{before} in the first 10 s");
        for second in 0..600 {
            sleep(Duration::from_secs(1)).await;
            let now = attempts.load(Ordering::Relaxed);
            assert_eq!(now, before + 1, "in second {second}");
            before = now;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_asks_at_once_when_somebody_has_opened_a_connection() {
        let (pool, attempts) = closed();
        wait(&pool, 3);
        sleep(Duration::from_secs(60)).await;
        let before = attempts.load(Ordering::Relaxed);
        pool.note_opened();
        // The clock stands still while somebody can go on.
        for _ in 0..1_000 {
            if attempts.load(Ordering::Relaxed) > before {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("nobody asks before the pause is over");
    }

    /// The server says nothing to who wants another one.
    #[tokio::test]
    async fn who_waits_takes_at_once_what_is_put_back() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let only = Mutex::new(Some(Connection::new(client)));
        let connect: Connect = Arc::new(move || {
            let next = only.lock().expect("not poisoned").take();
            Box::pin(async {
                match next {
                    Some(connection) => Ok(connection),
                    None => std::future::pending().await,
                }
            })
        });
        let pool = Arc::new(Pool::new(connect, scope()));
        let store = pool.get().await;
        pool.outage().failures = 1;
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.get().await.pid() }
        });
        tokio::task::yield_now().await;
        // From here on time passes only when nobody can go on.
        tokio::time::pause();
        let (began, pid) = (tokio::time::Instant::now(), store.pid());
        pool.put(store);
        assert_eq!(waiting.await.expect("a connection"), pid);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[test]
    fn what_was_said_of_an_outage_is_forgotten_at_its_end() {
        let (pool, _) = closed();
        let silent = Error::Silent { doing: "commit", within: CONNECT_DEADLINE };
        let many = 20_000;
        thread::scope(|scope| {
            scope.spawn(|| (0..many).for_each(|_| pool.note_trouble(&silent)));
            scope.spawn(|| {
                for _ in 0..many {
                    pool.note_answer();
                    let outage = pool.outage();
                    let is_away = pool.trouble.borrow().is_some();
                    assert_eq!(is_away, !outage.said.is_empty(), "both change together");
                }
            });
        });
    }
}
