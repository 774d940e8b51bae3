//! Keeps the role, and renews the claims of events whose handlers are at work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::engine::{Move, Renewed, Role, Share, Step};
use crate::nats::durable_consumer::check_divided;
use crate::postgres::attended::answered_within;
use crate::postgres::role_statements::{self, RoleStatements, Said};
use crate::postgres::sqlstate::asks_again;
use crate::postgres::store::Store;
use crate::postgres::tables;
use crate::worker::broker::Broker;
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

/// What the holder has of each partition of the consumer.
pub(crate) struct Part {
    pub(crate) context: Arc<Context>,
    pub(crate) role: watch::Sender<Role>,
    pub(crate) statements: RoleStatements,
    pub(crate) status: watch::Receiver<Status>,
}

impl Part {
    fn said(&self) -> Said<'_> {
        let (status, handled) = (self.status.borrow().clone(), *self.context.handled.borrow());
        Said { role: &self.statements, status, handled }
    }
}

/// Does what [`Share`] decides, and looks after the tables.
pub(crate) struct RoleHolder {
    /// At least one.
    pub(crate) parts: Vec<Part>,
    /// The role of one of them, active if any is.
    pub(crate) any: watch::Sender<Role>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) shutdown: CancellationToken,
}

impl RoleHolder {
    /// Runs until it is dropped, or something is wrong that waiting does not mend.
    pub(crate) async fn run(&self) -> Error {
        tokio::select! {
            error = self.keep_role() => error,
            error = self.look_after() => error,
        }
    }

    /// What all parts share.
    fn context(&self) -> &Context {
        &self.parts[0].context
    }

    async fn keep_role(&self) -> Error {
        let Context { config, pool, partitions, .. } = self.context();
        let count = config.partitions.map(|_| self.parts.len());
        // Others would leave partitions to it that it does not take.
        if self.broker.is_connected()
            && let Err(error) = check_divided(&self.broker.client().1, config).await
        {
            return error;
        }
        let mut share = Share::new(count, config.lease, Instant::now());
        let mut partitions = partitions.subscribe();
        let (mut store, mut away_since, mut handled) = (None, None, (0, Instant::now()));
        loop {
            if partitions.borrow_and_update().is_some() {
                share.prepared();
            }
            if self.is_hindered(&mut handled) && share.rest(Instant::now()) {
                let consumer = &config.consumer;
                warn!(consumer, "no event can be handled: leaving the partitions to other workers");
            }
            share.attend(self.attends(&mut away_since), Instant::now());
            self.publish(&share);
            for leaving in share.leaving() {
                let Context { at_work, left_behind, .. } = &*self.parts[leaving].context;
                if !*at_work.borrow() {
                    share.drained(leaving, left_behind.swap(false, Ordering::Relaxed));
                }
            }
            let leaving =
                share.leaving().first().map(|it| self.parts[*it].context.at_work.subscribe());
            let next = share.next(Instant::now());
            if let Move::Wait { until } = next {
                tokio::select! {
                    () = tokio::time::sleep_until(until.into()) => {}
                    _ = partitions.changed() => {}
                    () = ended(leaving) => {}
                }
            } else if let Err(error) = self.perform(next, &mut store, &mut share).await {
                if !error.is_transient() {
                    return error;
                }
                share.failed(Instant::now());
                // Not given back to the pool: it may hang.
                store = None;
                self.publish(&share);
                pool.note_trouble(&error);
                pool.close_idle();
            }
        }
    }

    /// Whether events can be handled. A broker that is away for long may be there for other workers.
    fn attends(&self, away_since: &mut Option<Instant>) -> bool {
        if self.shutdown.is_cancelled() {
            return false;
        }
        if self.broker.is_connected() {
            *away_since = None;
        } else {
            away_since.get_or_insert_with(Instant::now);
        }
        away_since.is_none_or(|it| it.elapsed() < self.context().config.lease / 2)
    }

    /// Whether nothing was handled for half a lease, and something is why that others may not have.
    /// `handled` is how much was handled, as of when.
    fn is_hindered(&self, (handled, at): &mut (u64, Instant)) -> bool {
        let since = self.parts.iter().filter_map(|it| *it.context.hindered.borrow()).min();
        let Some(since) = since else { return false };
        let counts = self.parts.iter().map(|it| it.status.borrow().counts);
        let now = counts.map(|it| it.processed + it.retried + it.dead).sum();
        if std::mem::replace(handled, now) != now {
            *at = Instant::now();
        }
        since.max(*at).elapsed() >= self.context().config.lease / 2
    }

    fn publish(&self, share: &Share) {
        let mut any = Role::Unknown;
        for (index, part) in self.parts.iter().enumerate() {
            let (before, role) = (*part.role.borrow(), share.role(index));
            if matches!(role, Role::Active { .. }) || any == Role::Unknown {
                any = role;
            }
            if before == role {
                continue;
            }
            part.role.send_replace(role);
            if matches!(role, Role::Standby | Role::Leaving) {
                part.context.hinder(false);
            }
            let consumer = part.context.config.durable();
            match (before, role) {
                (Role::Active { .. }, Role::Active { .. }) | (_, Role::Unknown) => {}
                (_, Role::Active { .. }) => info!(consumer, "the consumer is ours"),
                (_, Role::Leaving) => info!(consumer, "giving the partition back"),
                (_, Role::Standby) if part.context.config.partitions.is_some() => {}
                (_, Role::Standby) => info!(consumer, "another worker is active: standing by"),
            }
        }
        self.any.send_if_modified(|it| std::mem::replace(it, any) != any);
    }

    /// Does what comes next, and tells `share` what came of it.
    async fn perform(
        &self,
        next: Move,
        store: &mut Option<Store>,
        share: &mut Share,
    ) -> Result<(), Error> {
        let Some(store) = store else {
            *store = Some(self.context().pool.try_get().await?);
            share.connected(Instant::now());
            return Ok(());
        };
        let (client, within) = (store.client(), share.patience());
        match next {
            Move::Role(index, step) => self.step((index, step), store, share).await?,
            Move::Renew(these) => {
                let since = Instant::now();
                let said: Vec<_> = these.iter().map(|it| self.parts[*it].said()).collect();
                let renewing = role_statements::renew(client, &said);
                let renewed = answered_within(within, "renew roles", renewing).await?;
                if renewed.iter().any(|it| matches!(it, Renewed::By(_))) {
                    // Whoever met trouble and stopped asking for connections learns of its end
                    // from here.
                    self.context().pool.note_answer();
                }
                let asked = (since, Instant::now());
                these.iter().zip(renewed).for_each(|(of, it)| share.renewed(*of, it, asked));
            }
            Move::Look { joins } => {
                let looking = self.parts[0].statements.look_around(client, joins, self.parts.len());
                let seen = answered_within(within, "look for partitions", looking).await?;
                share.looked(&seen, Instant::now());
            }
            Move::GiveBack(index, left_behind) => {
                let said = [self.parts[index].said()];
                let giving = role_statements::release(client, &said, !left_behind);
                answered_within(within, "give a partition back", giving).await?;
                share.given_back(index, Instant::now());
            }
            Move::Wait { .. } => {}
        }
        Ok(())
    }

    /// Does a step for the role of a part.
    async fn step(
        &self,
        (index, step): (usize, Step),
        store: &Store,
        share: &mut Share,
    ) -> Result<(), Error> {
        let statements = &self.parts[index].statements;
        let (client, within) = (store.client(), share.patience());
        let consumer = &self.context().config.consumer;
        match step {
            // The roles are renewed together.
            Step::Connect | Step::Renew | Step::Wait { .. } => {}
            Step::Look => {
                let found = answered_within(within, "look for the role", statements.look(client));
                share.looked_for(index, found.await?, Instant::now());
            }
            Step::Take(former) => {
                let taking = statements.take(client, former.map(|it| it.token));
                let token = match answered_within(within, "take the role", taking).await {
                    // Another one takes it now, or has its row locked.
                    Err(Error::Sql { source, .. }) if asks_again(&source) => None,
                    taken => taken?,
                };
                share.taken(index, token, Instant::now());
            }
            Step::Evict(owner) => {
                let evicting = statements.evict(client, &owner);
                match answered_within(within, "end the former worker's work", evicting).await {
                    Ok(0) => {}
                    Ok(connections) => {
                        warn!(consumer, connections, "the former worker was silent: ended it");
                    }
                    // That it may not be allowed is no reason to stop.
                    Err(Error::Sql { source, .. }) if source.code().is_some() => {
                        let error = describe(&source);
                        warn!(consumer, error, "could not end the former worker's work");
                    }
                    Err(error) => return Err(error),
                }
                share.evicted(index, Instant::now());
            }
            Step::RenewClaims => {
                renew_claims(self.context(), store, within).await?;
                share.claims_renewed(Instant::now());
            }
        }
        Ok(())
    }

    /// Gives the roles up, so that others take over at once.
    pub(crate) async fn release(&self) {
        let is_divided = self.context().config.partitions.is_some();
        let ours: Vec<&Part> = self.parts.iter().filter(|it| it.statements.is_ours()).collect();
        if ours.is_empty() && !is_divided {
            return;
        }
        let releasing = async {
            let store = self.context().pool.try_get().await?;
            let said: Vec<_> = ours.into_iter().map(Part::said).collect();
            let releasing = role_statements::release(store.client(), &said, false).await;
            releasing.map_err(Error::sql("give the role up"))?;
            if is_divided {
                let leaving = self.parts[0].statements.leave(store.client()).await;
                leaving.map_err(Error::sql("say that the worker is gone"))?;
            }
            Ok::<_, Error>(())
        };
        let consumer = &self.context().config.consumer;
        match timeout(RELEASE_DEADLINE, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = describe(&error);
                warn!(consumer, error, "could not give the role up");
            }
            Err(_) => warn!(consumer, "could not give the role up in time"),
        }
    }

    /// Looks after the partitions while the role is ours, on a connection of its own: it may take
    /// longer than a lease.
    async fn look_after(&self) -> Error {
        let mut role = self.any.subscribe();
        loop {
            // Nobody tells before the first look whether the role is ours.
            while !self.parts.iter().any(|it| it.statements.is_ours()) {
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
                        consumer = self.context().config.consumer,
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
        let Context { pool, config, partitions, .. } = self.context();
        let store = pool.try_get().await?;
        let found = tables::prepare(store.client(), &config.schema, config.retention).await?;
        partitions.send_replace(Some(found));
        pool.put(store);
        Ok(())
    }
}

/// Returns when nothing is at work any more on the part that is to be given back.
async fn ended(leaving: Option<watch::Receiver<bool>>) {
    match leaving {
        Some(mut at_work) if *at_work.borrow() => _ = at_work.wait_for(|it| !it).await,
        _ => std::future::pending().await,
    }
}

async fn renew_claims(context: &Context, store: &Store, within: Duration) -> Result<(), Error> {
    let claims = context.leases.all();
    if claims.is_empty() {
        return Ok(());
    }
    let since = Instant::now();
    let renewing = store.sql().renew(store.client(), &claims);
    match answered_within(within, "renew leases", renewing).await {
        Ok(renewed) => context.leases.renewed(&claims, &renewed, since),
        // Somebody else has the row: in time for the next renewal it is free.
        Err(Error::Sql { source, .. }) if asks_again(&source) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
