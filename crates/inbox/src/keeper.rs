//! Who is at work on a consumer, and for how long its claims hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;
use uuid::Uuid;

use crate::Error;
use crate::pool::Pool;
use crate::store::{Held, Store};
use crate::tables::{self, Partitions};
use crate::work::asks_again;

/// How often a standby looks whether the consumer is free, and an active worker whether the
/// database is there.
const LOOK: Duration = Duration::from_millis(200);

const PREPARE: Duration = Duration::from_secs(3600);

/// What this worker may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing: the database is not there, so nobody knows.
    Unknown,
    /// Nothing: another worker has the consumer.
    Standby,
    /// Everything.
    Active,
}

/// Leases that are to be renewed until they are given up.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<Uuid, (Held, CancellationToken)>>,
}

/// A lease that is renewed until this is dropped.
pub(crate) struct Lease {
    leases: Arc<Leases>,
    id: Uuid,
    /// Cancelled when somebody else may have the event.
    pub(crate) lost: CancellationToken,
}

impl Leases {
    pub(crate) fn keep(self: &Arc<Self>, held: Held) -> Lease {
        let lost = CancellationToken::new();
        self.lock().insert(held.key.id, (held, lost.clone()));
        Lease { leases: Arc::clone(self), id: held.key.id, lost }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, (Held, CancellationToken)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order in which everybody locks records, so that no two wait for each other.
    fn all(&self) -> Vec<Held> {
        let mut held: Vec<Held> = self.lock().values().map(|(held, _)| *held).collect();
        held.sort_by_key(|it| it.key);
        held
    }

    /// Those of `asked` that were not renewed are lost.
    fn renewed(&self, asked: &[Held], still_ours: &[Uuid]) {
        let held = self.lock();
        for lost in asked.iter().filter(|it| !still_ours.contains(&it.key.id)) {
            // Completed or failed meanwhile, mostly; then nobody listens any more.
            if let Some((now, token)) = held.get(&lost.key.id)
                && now == lost
            {
                token.cancel();
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.lock().remove(&self.id);
    }
}

/// Holds the lock that makes this worker the only one of its consumer, renews leases, and looks
/// after the partitions, on a connection of its own: the lock ends with it.
///
/// One worker at a time, because events that two of them get would not stay in order. Correctness
/// does not rest on it: a worker that wakes up after another has taken over finds its claims refused.
pub(crate) struct Keeper {
    pub(crate) pool: Arc<Pool>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lease: Duration,
    pub(crate) consumer: String,
    pub(crate) schema: String,
    pub(crate) retention: Option<Duration>,
    pub(crate) partitions: watch::Sender<Option<Partitions>>,
    pub(crate) role: watch::Sender<Role>,
}

impl Keeper {
    /// Runs until it is dropped, or something is wrong that waiting does not mend.
    pub(crate) async fn run(&self) -> Error {
        loop {
            let store = match self.pool.try_get().await {
                Ok(store) => store,
                Err(error) if !error.is_transient() => return error,
                Err(error) => {
                    self.pool.note_trouble(&error);
                    self.role.send_replace(Role::Unknown);
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            };
            let Err(error) = self.hold(&store).await;
            if !error.is_transient() {
                return error;
            }
            self.role.send_replace(Role::Unknown);
            self.pool.note_trouble(&error);
            // Not given back to the pool: with the connection, the lock is gone.
        }
    }

    async fn hold(&self, store: &Store) -> Result<std::convert::Infallible, Error> {
        let sql = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let name = format!("tailpost inbox {}.{}", self.schema, self.consumer);
        loop {
            let row = store.client().query_one(sql, &[&name]).await;
            if row.map_err(Error::sql("lock the consumer"))?.get(0) {
                break;
            }
            if self.role.send_replace(Role::Standby) != Role::Standby {
                info!(consumer = self.consumer, "another worker is active: standing by");
            }
            tokio::time::sleep(LOOK).await;
        }
        self.prepare(store).await?;
        info!(consumer = self.consumer, "the consumer is ours");
        self.role.send_replace(Role::Active);
        let mut renew = tokio::time::interval((self.lease / 3).min(Duration::from_secs(1)));
        let mut prepare = tokio::time::interval(PREPARE);
        prepare.reset();
        loop {
            tokio::select! {
                _ = renew.tick() => self.renew(store).await?,
                _ = prepare.tick() => self.prepare(store).await?,
            }
        }
    }

    async fn renew(&self, store: &Store) -> Result<(), Error> {
        let held = self.leases.all();
        // Asked even for nothing: it tells whether the connection, and with it the lock, is there.
        match store.sql().renew(store.client(), &held).await {
            Ok(renewed) => self.leases.renewed(&held, &renewed),
            // Somebody else has the row: in time for the next renewal it is free.
            Err(error) if asks_again(&error) => {}
            Err(error) => return Err(Error::sql("renew leases")(error)),
        }
        // Whoever met trouble and stopped asking for connections learns of its end from here.
        self.pool.note_answer();
        Ok(())
    }

    /// Only what has to be there before events come: what is old is forgotten beside the work.
    async fn prepare(&self, store: &Store) -> Result<(), Error> {
        let partitions = tables::prepare(store.client(), &self.schema, self.retention).await?;
        self.partitions.send_replace(Some(partitions));
        Ok(())
    }
}
