//! Keeps the role, and renews the claims of events whose handlers are at work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::engine::{Role, RoleLease, Step};
use crate::postgres::attended::answered_within;
use crate::postgres::role_statements::RoleStatements;
use crate::postgres::sqlstate::asks_again;
use crate::postgres::store::Store;
use crate::postgres::tables;
use crate::worker::work::Context;
use crate::{Error, Status};
use servers::describe;

/// How long the end waits for the role to be given up. It ends by itself after a lease.
const RELEASE_DEADLINE: Duration = Duration::from_secs(2);

/// How often to look whether the role is ours, and the tables are to be looked after.
const LOOK: Duration = Duration::from_millis(200);

const PREPARE: Duration = Duration::from_secs(3600);

/// After the tables could not be looked after.
const PREPARE_AGAIN: Duration = Duration::from_secs(1);

/// Does what [`RoleLease`] decides, and looks after the partitions.
pub(crate) struct RoleHolder {
    pub(crate) context: Arc<Context>,
    pub(crate) role: watch::Sender<Role>,
    pub(crate) statements: RoleStatements,
    pub(crate) status: watch::Receiver<Status>,
}

impl RoleHolder {
    /// Runs until it is dropped, or something is wrong that waiting does not mend.
    pub(crate) async fn run(&self) -> Error {
        tokio::select! {
            error = self.keep_role() => error,
            error = self.look_after() => error,
        }
    }

    async fn keep_role(&self) -> Error {
        let mut lease = RoleLease::new(self.context.config.lease, Instant::now());
        let mut partitions = self.context.partitions.subscribe();
        let mut store = None;
        loop {
            if partitions.borrow_and_update().is_some() {
                lease.prepared();
            }
            self.publish(lease.role());
            let step = lease.next(Instant::now());
            if let Step::Wait { until } = step {
                tokio::select! {
                    () = tokio::time::sleep_until(until.into()) => {}
                    _ = partitions.changed() => {}
                }
            } else if let Err(error) = self.perform(step, &mut store, &mut lease).await {
                if !error.is_transient() {
                    return error;
                }
                lease.failed(Instant::now());
                // Not given back to the pool: it may hang.
                store = None;
                self.publish(lease.role());
                self.context.pool.note_trouble(&error);
                self.context.pool.close_idle();
            }
        }
    }

    fn publish(&self, role: Role) {
        let before = *self.role.borrow();
        if before == role {
            return;
        }
        self.role.send_replace(role);
        let consumer = &self.context.config.consumer;
        match (before, role) {
            (Role::Active { .. }, Role::Active { .. }) | (_, Role::Unknown) => {}
            (_, Role::Active { .. }) => info!(consumer, "the consumer is ours"),
            (_, Role::Standby) => info!(consumer, "another worker is active: standing by"),
        }
    }

    /// Does a step, and tells `lease` what came of it.
    async fn perform(
        &self,
        step: Step,
        store: &mut Option<Store>,
        lease: &mut RoleLease,
    ) -> Result<(), Error> {
        let Some(store) = store else {
            *store = Some(self.context.pool.try_get().await?);
            lease.connected(Instant::now());
            return Ok(());
        };
        let (client, within) = (store.client(), lease.patience());
        match step {
            Step::Connect | Step::Wait { .. } => {}
            Step::Look => {
                let looking = self.statements.look(client);
                let found = answered_within(within, "look for the role", looking).await?;
                lease.looked(found, Instant::now());
            }
            Step::Take(former) => {
                let taking = self.statements.take(client, former.map(|it| it.token));
                let token = answered_within(within, "take the role", taking).await?;
                lease.taken(token, Instant::now());
            }
            Step::Evict(owner) => {
                self.evict(store, &owner, within).await?;
                lease.evicted(Instant::now());
            }
            Step::Renew => {
                let since = Instant::now();
                let status = self.status.borrow().clone();
                let handled = *self.context.handled.borrow();
                let renewing = self.statements.renew(client, &status, handled);
                let server = answered_within(within, "renew the role", renewing).await?;
                if server.is_some() {
                    // Whoever met trouble and stopped asking for connections learns of its end
                    // from here.
                    self.context.pool.note_answer();
                }
                lease.renewed(server, since, Instant::now());
            }
            Step::RenewClaims => {
                self.renew_claims(store, within).await?;
                lease.claims_renewed(Instant::now());
            }
        }
        Ok(())
    }

    /// That it may not be allowed is no reason to stop.
    async fn evict(&self, store: &Store, owner: &str, within: Duration) -> Result<(), Error> {
        let consumer = &self.context.config.consumer;
        let evicting = self.statements.evict(store.client(), owner);
        match answered_within(within, "end the former worker's work", evicting).await {
            Ok(0) => {}
            Ok(connections) => {
                warn!(consumer, connections, "the former worker gave no sign of life: ended it");
            }
            Err(Error::Sql { source, .. }) if source.code().is_some() => {
                let error = describe(&source);
                warn!(consumer, error, "could not end the former worker's work");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn renew_claims(&self, store: &Store, within: Duration) -> Result<(), Error> {
        let claims = self.context.leases.all();
        if claims.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        let renewing = store.sql().renew(store.client(), &claims);
        match answered_within(within, "renew leases", renewing).await {
            Ok(renewed) => self.context.leases.renewed(&claims, &renewed, since),
            // Somebody else has the row: in time for the next renewal it is free.
            Err(Error::Sql { source, .. }) if asks_again(&source) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives the role up, so that a standby takes over at once.
    pub(crate) async fn release(&self) {
        if !self.statements.is_ours() {
            return;
        }
        let releasing = async {
            let store = self.context.pool.try_get().await?;
            let handled = *self.context.handled.borrow();
            let releasing = self.statements.release(store.client(), handled).await;
            releasing.map_err(Error::sql("give the role up"))
        };
        match timeout(RELEASE_DEADLINE, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = describe(&error);
                warn!(consumer = self.context.config.consumer, error, "could not give the role up");
            }
            Err(_) => {
                warn!(consumer = self.context.config.consumer, "could not give the role up in time")
            }
        }
    }

    /// Looks after the partitions while the role is ours, on a connection of its own: it may take
    /// longer than a lease.
    async fn look_after(&self) -> Error {
        let mut role = self.role.subscribe();
        loop {
            // Nobody tells before the first look whether the role is ours.
            while !self.statements.is_ours() {
                tokio::select! {
                    _ = role.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            let pause = match self.prepare().await {
                Ok(()) => PREPARE,
                Err(error) if !error.is_transient() => return error,
                Err(error) => {
                    let error = describe(&error);
                    warn!(
                        consumer = self.context.config.consumer,
                        error, "could not look at the inbox's tables"
                    );
                    PREPARE_AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Only what has to be there before events come: what is old is forgotten beside the work.
    async fn prepare(&self) -> Result<(), Error> {
        let store = self.context.pool.try_get().await?;
        let partitions = tables::prepare(
            store.client(),
            &self.context.config.schema,
            self.context.config.retention,
        )
        .await?;
        self.context.partitions.send_replace(Some(partitions));
        self.context.pool.put(store);
        Ok(())
    }
}
