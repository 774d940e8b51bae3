//! Starts what an inbox consists of, and starts it again while it can be mended.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod acked_floor;
mod controlling;
mod lease;
pub(crate) mod leased;
pub(crate) mod redrive;
mod rewinding;
mod role;
mod session;
pub(crate) mod transactional;
mod upkeep;
mod work;

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use servers::nats_version;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::config::Config;
use crate::connection::{Connect, ConnectNats};
use crate::engine::{ConsumerEngine, ConsumerStart, Role, Term};
use crate::feed;
use crate::nats::acks::Acks;
use crate::nats::advisories::Advisories;
use crate::nats::source::{FindResolved, Source};
use crate::postgres::pool::Pool;
use crate::postgres::resolved;
use crate::postgres::role_statements::RoleStatements;
use crate::postgres::scope::Scope;
use crate::rewind::RewindState;
use crate::tally::Tally;
use crate::worker::acked_floor::Floor;
use crate::worker::controlling::Controlling;
use crate::worker::lease::Leases;
use crate::worker::redrive::Redrive;
use crate::worker::rewinding::Rewinding;
use crate::worker::role::RoleHolder;
use crate::worker::session::Session;
use crate::worker::upkeep::Upkeep;
use crate::worker::work::{Context, Work};
use crate::{Error, State, Status, Summary};

/// Before the broker is asked again.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Settings {
    pub(crate) config: Arc<Config>,
    pub(crate) connect: Connect,
    pub(crate) nats: async_nats::Client,
    pub(crate) reconnect_nats: Option<ConnectNats>,
}

pub(crate) async fn run<W: Work>(
    settings: Settings,
    status: watch::Sender<Status>,
    shutdown: CancellationToken,
    make: impl FnOnce(&Arc<Context>) -> W,
) -> Result<Summary, Error> {
    let Settings { config, connect, nats, reconnect_nats } = settings;
    let owner = format!("{}:{}", std::process::id(), Uuid::new_v4());
    let scope = Scope {
        schema: config.quoted_schema(),
        consumer: config.consumer.clone(),
        stream: config.stream.clone(),
        owner,
        lease: config.lease,
        takes_over: W::SHARES,
        lent: W::SHARES,
    };
    let statements = RoleStatements::new(scope.clone());
    let tally = Arc::new(Tally::default());
    let context = Arc::new(Context {
        config: Arc::clone(&config),
        pool: Arc::new(Pool::new(Arc::clone(&connect), scope)),
        leases: Arc::new(Leases::new(config.lease, Arc::clone(&tally))),
        tally,
        partitions: watch::Sender::default(),
        term: Term::default(),
        handled: watch::Sender::default(),
        may_forget: watch::Sender::new(false),
    });
    let holder = RoleHolder {
        context: Arc::clone(&context),
        role: watch::Sender::new(Role::Unknown),
        statements,
        status: status.subscribe(),
    };
    let role = holder.role.subscribe();
    let upkeep = Upkeep { context: Arc::clone(&context), connect, role: role.clone() };
    let worker = Worker {
        work: Arc::new(make(&context)),
        rewinding: Rewinding::new(Arc::clone(&context)),
        controlling: Controlling::new(Arc::clone(&context)),
        context,
        nats,
        reconnect_nats,
        one_by_one: false,
        went_back: false,
        status,
        role,
        shutdown,
    };
    let ended = tokio::select! {
        error = holder.run() => Err(error),
        summary = worker.run() => summary,
        never = upkeep.run() => match never {},
    };
    holder.release().await;
    ended
}

/// Such a server may hand events to the inbox that were stored twice, or never.
fn check_server(nats: &async_nats::Client) -> Result<(), Error> {
    let version = nats.server_info().version;
    match nats_version::misreads_headers(&version) {
        true => Err(Error::Refused {
            problem: format!(
                "nats-server {version} takes what an event says for headers of the broker"
            ),
            hint: nats_version::UPGRADE,
        }),
        false => Ok(()),
    }
}

struct Worker<W> {
    work: Arc<W>,
    context: Arc<Context>,
    rewinding: Rewinding,
    controlling: Controlling,
    nats: async_nats::Client,
    reconnect_nats: Option<ConnectNats>,
    /// A message of the stream has ended a client.
    one_by_one: bool,
    /// The stream came back without the end that it had in the session before.
    went_back: bool,
    status: watch::Sender<Status>,
    role: watch::Receiver<Role>,
    shutdown: CancellationToken,
}

impl<W: Work> Worker<W> {
    async fn run(mut self) -> Result<Summary, Error> {
        let mut counts = Summary::default();
        while let Some(term) = self.becomes_active().await {
            let session = async {
                self.revive().await?;
                check_server(&self.nats)?;
                if !self.rewinds(term).await? {
                    return Ok(counts);
                }
                Box::pin(self.session(term, counts)).await
            };
            match session.await {
                Ok(summary) => counts = summary,
                Err(error) if error.is_transient() => {
                    let error = error.without_data();
                    warn!(consumer = self.context.config.consumer, error, "trying again");
                    self.say(State::Paused, Some(error));
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = self.shutdown.cancelled() => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let Summary { processed, skipped, retried, dead, released } = counts;
        info!(
            consumer = self.context.config.consumer,
            processed, skipped, retried, dead, released, "the inbox has stopped"
        );
        Ok(counts)
    }

    /// Waits until this worker may handle events, and says in which term of the role; nothing if it is
    /// to stop.
    async fn becomes_active(&mut self) -> Option<Term> {
        let mut trouble = self.context.pool.trouble();
        loop {
            if self.shutdown.is_cancelled() {
                return None;
            }
            let role = *self.role.borrow_and_update();
            match role {
                Role::Active { term, until } if Instant::now() < until => return Some(term),
                Role::Active { .. } => {
                    let why = trouble.borrow_and_update().clone();
                    let why = why.unwrap_or_else(|| "the role was not renewed".into());
                    self.say(State::Paused, Some(why));
                }
                Role::Standby => self.say(State::Standby, None),
                Role::Unknown => match trouble.borrow_and_update().clone() {
                    Some(trouble) => self.say(State::Paused, Some(trouble)),
                    None => self.say(State::Starting, None),
                },
            }
            tokio::select! {
                _ = self.role.changed() => {}
                _ = trouble.changed() => {}
                () = self.shutdown.cancelled() => return None,
            }
        }
    }

    /// Connects to the broker anew if the client has ended: some bytes in a header do that.
    async fn revive(&mut self) -> Result<(), Error> {
        if !is_gone(&self.nats).await {
            return Ok(());
        }
        let reconnect = self.reconnect_nats.as_ref().ok_or_else(|| Error::Refused {
            problem: "the client of NATS has ended".into(),
            hint: "start the process again, or give the inbox a way to connect anew",
        })?;
        self.nats = reconnect().await.map_err(Error::jetstream("connect to NATS"))?;
        self.one_by_one = true;
        info!(consumer = self.context.config.consumer, "connected to NATS anew");
        Ok(())
    }

    /// Does what was requested between sessions. False if there may be more of it, and no time, or
    /// another term.
    async fn rewinds(&mut self, term: Term) -> Result<bool, Error> {
        // It may not be so when the consumer has gone back.
        self.context.handled.send_replace(None);
        let mut follows = true;
        loop {
            let mut pending = self.rewinding.pending().await?;
            if pending.is_none() {
                let ends = ends(self.role.clone(), term, self.shutdown.clone());
                tokio::select! {
                    followed = self.follows(term, mem::take(&mut follows)) => pending = followed?,
                    () = ends => return Ok(false),
                }
            }
            let Some(rewind) = pending else { return Ok(true) };
            let from = rewind.from_sequence;
            self.say(State::Paused, Some(format!("is being rewound to sequence {from}")));
            self.rewinding.carry_out(&rewind, (&self.nats, term), &self.shutdown).await?;
            if self.shutdown.is_cancelled() || !self.is_active_in(term) {
                return Ok(false);
            }
        }
    }

    /// Where the consumer has to go back to by itself, if it has to.
    async fn follows(&mut self, term: Term, stream: bool) -> Result<Option<RewindState>, Error> {
        if stream {
            let pending = self.rewinding.follow_stream(&self.nats, self.went_back).await?;
            self.went_back = false;
            if pending.is_some() {
                return Ok(pending);
            }
        }
        self.rewinding.follow_database(&self.nats, term).await
    }

    fn is_active_in(&self, asked: Term) -> bool {
        matches!(*self.role.borrow(), Role::Active { term, .. } if term == asked)
    }

    async fn session(&mut self, term: Term, counts: Summary) -> Result<Summary, Error> {
        let context = Arc::new(Context { term, ..(*self.context).clone() });
        let Context { config, pool, .. } = &*context;
        // Before anything is begun.
        let control = self.controlling.look().await?;
        let closings = control.breaker_closings;
        let (wanted, control) = watch::channel(control);
        let mut source =
            Source::open(&self.nats, config, self.find_resolved(), &self.context.tally).await?;
        check_retention(config, source.max_age())?;
        self.context.may_forget.send_replace(true);
        let origin = source.origin().clone();
        let advisories = Advisories::open(&self.nats, origin.clone(), config).await?;
        let redrive = Redrive::new(&self.context, self.nats.clone(), origin.clone());
        let acks = Acks::start(self.nats.clone()).await?;
        // Of this session; another one begins as always.
        source.one_by_one = mem::take(&mut self.one_by_one);
        source.known(self.rewinding.level);
        let start = ConsumerStart {
            term,
            shares: W::SHARES,
            lanes: config.lanes,
            batch: config.batch,
            held_max: config.held_max(),
            unacked_max: source.unacked_max(),
            ack_wait: source.ack_wait(),
            backoff: config.backoff,
            rate: config.rate,
            counts,
        };
        let (feed, intake) = feed::open();
        let session = Session {
            nats: self.nats.clone(),
            acks,
            work: Arc::clone(&self.work),
            context: Arc::clone(&context),
            status: self.status.clone(),
            role: self.role.clone(),
            trouble: pool.trouble(),
            broker: source.trouble(),
            closings,
            control,
            intake,
            origin,
            engine: ConsumerEngine::new(start, Instant::now()),
            ended: watch::Sender::default(),
            ended_at: None,
        };
        let stop = self.shutdown.child_token();
        let floor = Floor {
            context: &context,
            stream: source.stream(),
            level: self.rewinding.level,
            ended: session.ended.subscribe(),
        };
        let (summary, (), (), (), (), went_back, (), ()) = tokio::join!(
            // They are large, and polled in turns.
            Box::pin(session.run(&stop)),
            until(feed.closed(), stop_when_gone(&self.nats, &stop)),
            until(feed.closed(), self.rewinding.watch(&stop)),
            until(feed.closed(), self.controlling.watch(wanted)),
            until(feed.closed(), floor.follow(self.status.subscribe())),
            Box::pin(source.run(feed.clone(), &stop)),
            Box::pin(redrive.run(feed.clone())),
            advisories.run(feed),
        );
        if self.is_active_in(term) {
            floor.note().await;
        }
        self.went_back = went_back;
        Ok(summary)
    }

    /// To have many messages out of the way at once that were read again.
    fn find_resolved(&self) -> FindResolved {
        let context = Arc::clone(&self.context);
        Arc::new(move |keys| {
            let context = Arc::clone(&context);
            Box::pin(async move { resolved::among(&context.pool, &context.config, &keys).await })
        })
    }

    fn say(&self, state: State, paused: Option<String>) {
        self.status.send_modify(|status| {
            status.state = state;
            status.paused = paused;
            // Between sessions it is not the operator who keeps it from working.
            status.paused_by = None;
            status.went_back_at = self.context.tally.went_back_at();
        });
    }
}

/// Returns when the worker is to stop, or may have lost the role that it had in `asked`.
async fn ends(mut role: watch::Receiver<Role>, asked: Term, shutdown: CancellationToken) {
    let is_lost = |it: &Role| match it {
        Role::Unknown => false,
        Role::Standby => true,
        Role::Active { term, .. } => *term != asked,
    };
    tokio::select! {
        _ = role.wait_for(is_lost) => {}
        () = shutdown.cancelled() => {}
    }
}

/// Whether the client's task has ended, so that nothing will ever be sent by it.
async fn is_gone(nats: &async_nats::Client) -> bool {
    matches!(tokio::time::timeout(PAUSE, nats.flush()).await, Ok(Err(_)))
}

/// Ends the session when its client has ended.
async fn stop_when_gone(nats: &async_nats::Client, stop: &CancellationToken) {
    while !is_gone(nats).await {
        tokio::time::sleep(PAUSE).await;
    }
    warn!("the client of NATS has ended: a message of the stream may be why");
    stop.cancel();
}

/// Does what has no end of its own, until `end`.
async fn until(end: impl Future<Output = ()>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = end => {}
        () = work => {}
    }
}

/// What is forgotten must not be delivered any more. Only the stream brings an event again: the
/// record of a dead letter is kept until somebody decides about it, and nothing replays.
fn check_retention(config: &Config, max_age: Option<Duration>) -> Result<(), Error> {
    let problem = |keep| retention_problem(keep, &config.stream, max_age, config.lease);
    config.retention.and_then(problem).map_or(Ok(()), |reason| Err(config.refused(reason)))
}

/// Why an inbox must not forget records after `keep`, if it must not: its stream, which forgets
/// messages after `max_age`, or never, could bring an event whose record is gone.
#[must_use]
pub fn retention_problem(
    keep: Duration,
    stream: &str,
    max_age: Option<Duration>,
    lease: Duration,
) -> Option<String> {
    let remedy = "set inbox.retention = \"off\"";
    match max_age {
        None => Some(format!(
            "inbox.retention is {keep:?}, but the stream \"{stream}\" has no max_age and keeps \
             messages for ever: an event could come again when its record is gone. Give the stream \
             a max_age that is shorter, or {remedy}"
        )),
        Some(max_age) if keep < max_age + lease => Some(format!(
            "inbox.retention is {keep:?}, but the stream \"{stream}\" keeps messages for \
             {max_age:?} (max_age): records have to be kept for longer than that and a lease, \
             {lease:?}. Raise inbox.retention, lower the stream's max_age, or {remedy}"
        )),
        Some(_) => None,
    }
}
