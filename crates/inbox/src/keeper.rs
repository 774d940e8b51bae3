//! Who is at work on a consumer, and for how long its claims hold.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::leases::Leases;
use crate::pool::Pool;
use crate::role::{Found, Lease};
use crate::store::Store;
use crate::tables::{self, Partitions};
use crate::work::asks_again;
use crate::{Error, Status};

/// How often a standby looks whether the consumer is free.
const LOOK: Duration = Duration::from_millis(200);

/// The longest time between two heartbeats.
const BEAT_MAX: Duration = Duration::from_secs(1);

/// How long the database may take for a statement of the keeper, at most; a third of a shorter lease.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// How long the end waits for the role to be given up. It ends by itself after a lease.
const RELEASE_DEADLINE: Duration = Duration::from_secs(2);

const PREPARE: Duration = Duration::from_secs(3600);

/// After the tables could not be looked after.
const PREPARE_AGAIN: Duration = Duration::from_secs(1);

/// What this worker may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing: the database is not there, so nobody knows.
    Unknown,
    /// Nothing: another worker has the consumer.
    Standby,
    /// Everything, until then by our clock. It is renewed.
    Active { until: Instant },
}

/// Holds the lease that makes this worker the only one of its consumer, renews the leases of events,
/// and looks after the partitions.
pub(crate) struct Keeper {
    pub(crate) pool: Arc<Pool>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lease: Duration,
    pub(crate) consumer: String,
    pub(crate) schema: String,
    pub(crate) retention: Option<Duration>,
    pub(crate) partitions: watch::Sender<Option<Partitions>>,
    pub(crate) role: watch::Sender<Role>,
    pub(crate) held: Lease,
    pub(crate) status: watch::Receiver<Status>,
}

impl Keeper {
    /// Runs until it is dropped, or something is wrong that waiting does not mend.
    pub(crate) async fn run(&self) -> Error {
        tokio::select! {
            error = self.keep_role() => error,
            error = self.look_after() => error,
        }
    }

    async fn keep_role(&self) -> Error {
        loop {
            let store = match self.pool.try_get().await {
                Ok(store) => store,
                Err(error) if !error.is_transient() => return error,
                Err(error) => {
                    self.lose_sight(&error);
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            };
            let Err(error) = self.hold(&store).await;
            if !error.is_transient() {
                return error;
            }
            self.lose_sight(&error);
            // Not given back to the pool: it may hang.
        }
    }

    fn lose_sight(&self, error: &Error) {
        self.role.send_replace(Role::Unknown);
        self.pool.note_trouble(error);
        self.pool.close_idle();
    }

    async fn hold(&self, store: &Store) -> Result<Infallible, Error> {
        loop {
            if !self.held.is_ours() {
                self.acquire(store).await?;
            }
            self.beat(store).await?;
            // It is somebody else's, if only for a moment: what is held may be out of date.
            self.role.send_replace(Role::Standby);
        }
    }

    /// Stands by until the role is free, and takes it.
    async fn acquire(&self, store: &Store) -> Result<(), Error> {
        let (mut renewed, mut said) = (Instant::now(), false);
        loop {
            let found = self.bounded("look for the role", self.held.look(store.client())).await?;
            if let Found::Free(former) = found {
                let took = self.held.take(store.client(), former.as_ref());
                if self.bounded("take the role", took).await? {
                    if let Some((_, owner)) = former {
                        self.evict(store, &owner).await?;
                    }
                    return Ok(());
                }
            }
            self.role.send_replace(Role::Standby);
            if !std::mem::replace(&mut said, true) {
                info!(consumer = self.consumer, "another worker is active: standing by");
            }
            // Handlers of ours may still be at work.
            if renewed.elapsed() >= self.pause() {
                renewed = Instant::now();
                self.renew(store).await?;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Without it, what the former worker has begun and not committed would hold us up for as long as
    /// it hangs. That it may not be allowed is no reason to stop.
    async fn evict(&self, store: &Store, owner: &str) -> Result<(), Error> {
        let evicting = self.held.evict(store.client(), owner);
        match timeout(self.patience(), evicting).await {
            Ok(Ok(0)) => {}
            Ok(Ok(connections)) => {
                let consumer = &self.consumer;
                warn!(consumer, connections, "the former worker gave no sign of life: ended it");
            }
            Ok(Err(error)) if error.code().is_some() => {
                let error = crate::error::describe(&error);
                warn!(consumer = self.consumer, error, "could not end the former worker's work");
            }
            Ok(Err(error)) => return Err(Error::sql("end the former worker's work")(error)),
            Err(_) => return Err(self.silent("end the former worker's work")),
        }
        Ok(())
    }

    /// Renews the role for as long as it is ours.
    async fn beat(&self, store: &Store) -> Result<(), Error> {
        let mut partitions = self.partitions.subscribe();
        let mut said = false;
        loop {
            let since = Instant::now();
            let status = self.status.borrow().clone();
            let renewed = self.held.renew(store.client(), &status);
            if !self.bounded("renew the role", renewed).await? {
                return Ok(());
            }
            // Whoever met trouble and stopped asking for connections learns of its end from here.
            self.pool.note_answer();
            if partitions.borrow_and_update().is_some() {
                if !said {
                    info!(consumer = self.consumer, "the consumer is ours");
                    said = true;
                }
                self.role.send_replace(Role::Active { until: since + self.lease });
            } else {
                self.role.send_replace(Role::Unknown);
            }
            self.renew(store).await?;
            tokio::select! {
                () = tokio::time::sleep(self.pause()) => {}
                _ = partitions.changed() => {}
            }
        }
    }

    async fn renew(&self, store: &Store) -> Result<(), Error> {
        let held = self.leases.all();
        if held.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        let renewing = store.sql().renew(store.client(), &held);
        match timeout(self.patience(), renewing).await {
            Ok(Ok(renewed)) => self.leases.renewed(&held, &renewed, since),
            // Somebody else has the row: in time for the next renewal it is free.
            Ok(Err(error)) if asks_again(&error) => {}
            Ok(Err(error)) => return Err(Error::sql("renew leases")(error)),
            Err(_) => return Err(self.silent("renew leases")),
        }
        Ok(())
    }

    /// Gives the role up, so that a standby takes over at once.
    pub(crate) async fn release(&self) {
        if !self.held.is_ours() {
            return;
        }
        let releasing = async {
            let store = self.pool.try_get().await?;
            self.held.release(store.client()).await.map_err(Error::sql("give the role up"))
        };
        match timeout(RELEASE_DEADLINE, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = crate::error::describe(&error);
                warn!(consumer = self.consumer, error, "could not give the role up");
            }
            Err(_) => warn!(consumer = self.consumer, "could not give the role up in time"),
        }
    }

    fn pause(&self) -> Duration {
        (self.lease / 3).min(BEAT_MAX)
    }

    fn patience(&self) -> Duration {
        (self.lease / 3).min(PATIENCE_MAX)
    }

    fn silent(&self, doing: &'static str) -> Error {
        Error::Silent { doing, within: self.patience() }
    }

    async fn bounded<T>(
        &self,
        doing: &'static str,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let answered = timeout(self.patience(), statement).await;
        answered.map_err(|_| self.silent(doing))?.map_err(Error::sql(doing))
    }

    /// Looks after the partitions while the role is ours, on a connection of its own: it may take
    /// longer than a lease.
    async fn look_after(&self) -> Error {
        let mut role = self.role.subscribe();
        loop {
            // Nobody tells before the first look whether the role is ours.
            while !self.held.is_ours() {
                tokio::select! {
                    _ = role.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            let pause = match self.prepare().await {
                Ok(()) => PREPARE,
                Err(error) if !error.is_transient() => return error,
                Err(error) => {
                    let error = crate::error::describe(&error);
                    warn!(consumer = self.consumer, error, "could not look at the inbox's tables");
                    PREPARE_AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Only what has to be there before events come: what is old is forgotten beside the work.
    async fn prepare(&self) -> Result<(), Error> {
        let store = self.pool.try_get().await?;
        let partitions = tables::prepare(store.client(), &self.schema, self.retention).await?;
        self.partitions.send_replace(Some(partitions));
        self.pool.put(store);
        Ok(())
    }
}
