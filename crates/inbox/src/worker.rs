//! Starts what an inbox consists of, and starts it again while it can be mended.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod acked_floor;
mod broker;
mod controlling;
mod endings;
mod lease;
pub(crate) mod leased;
mod places;
pub(crate) mod redrive;
mod rewinding;
mod role;
mod session;
pub(crate) mod transactional;
mod unread_look;
mod upkeep;
mod whole;
mod work;

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
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
use crate::worker::broker::{Broker, is_gone};
use crate::worker::controlling::Controlling;
use crate::worker::lease::Leases;
use crate::worker::places::Places;
use crate::worker::redrive::Redrive;
use crate::worker::rewinding::Rewinding;
use crate::worker::role::{Part, RoleHolder};
use crate::worker::session::Session;
use crate::worker::upkeep::Upkeep;
use crate::worker::work::{Context, Work};
use crate::{Error, State, Status, Summary};

/// Before the broker is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a worker for another stream may have the role: in a deployment that moves a consumer it is
/// stopped once this one is ready.
const OTHER_STREAM_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Settings {
    pub(crate) config: Arc<Config>,
    pub(crate) mended: watch::Receiver<u64>,
    pub(crate) connect: Connect,
    pub(crate) nats: async_nats::Client,
    pub(crate) reconnect_nats: Option<ConnectNats>,
}

pub(crate) async fn run<W: Work>(
    settings: Settings,
    status: watch::Sender<Status>,
    shutdown: CancellationToken,
    mut make: impl FnMut(&Arc<Context>) -> W,
) -> Result<Summary, Error> {
    let Settings { config, mended, connect, nats, reconnect_nats } = settings;
    // Cancelled also when one partition cannot go on.
    let shutdown = shutdown.child_token();
    let owner = format!("{}:{}", std::process::id(), Uuid::new_v4());
    let scope = Scope {
        schema: config.quoted_schema(),
        consumer: config.consumer.clone(),
        stream: config.stream.clone(),
        owner,
        lease: config.lease,
        transactional: W::SHARES,
    };
    let tally = Arc::new(Tally::default());
    let shared = Arc::new(Context {
        config: Arc::clone(&config),
        pool: Arc::new(Pool::new(Arc::clone(&connect), scope.clone())),
        leases: Arc::new(Leases::new(config.lease, Arc::clone(&tally))),
        tally: Arc::clone(&tally),
        partitions: watch::Sender::default(),
        term: Term::default(),
        handled: watch::Sender::default(),
        may_forget: watch::Sender::new(false),
        at_work: watch::Sender::default(),
        left_behind: Arc::default(),
        hindered: watch::Sender::default(),
        unanswered: Arc::default(),
        mended,
        alone: Arc::default(),
        places: config.partitions.map(|_| Arc::new(Semaphore::new(config.lanes))),
    });
    let controlling = Arc::new(Controlling::new(Arc::clone(&shared)));
    let broker = Arc::new(Broker::new(nats, reconnect_nats));
    let (mut parts, mut workers) = (Vec::new(), Vec::new());
    for part in config.parts() {
        let statements = RoleStatements::new(scope.clone(), part.partition.cast_signed());
        let context = Arc::new(shared.of_part(part));
        let whole = config.partitions.is_none().then(|| status.clone());
        let (part, worker) = Worker::of(
            (context, statements),
            whole.unwrap_or_default(),
            (&broker, &controlling, &shutdown),
            &mut make,
        );
        parts.push(part);
        workers.push(worker);
    }
    let statuses = parts.iter().map(|it| it.status.clone()).collect();
    let any = watch::Sender::new(Role::Unknown);
    let pool = Arc::clone(&shared.pool);
    let upkeep = Upkeep { context: shared, connect, role: any.subscribe() };
    let holder = RoleHolder { parts, any, broker, shutdown: shutdown.clone() };
    let ended = tokio::select! {
        error = holder.run() => Err(error),
        error = pool.lacks() => Err(error),
        summary = whole::run_all(workers.into_iter().map(Worker::run), &shutdown) => summary,
        never = upkeep.run() => match never {},
        never = whole::tell(statuses, &tally, status), if config.partitions.is_some() => {
            match never {}
        }
    };
    holder.release().await;
    ended
}

struct Worker<W> {
    work: Arc<W>,
    context: Arc<Context>,
    rewinding: Rewinding,
    controlling: Arc<Controlling>,
    broker: Arc<Broker>,
    /// What it had from there last, and how many there were before.
    nats: (u32, async_nats::Client),
    /// A message of the stream has ended a client.
    one_by_one: bool,
    /// The stream came back without the end that it had in the session before.
    went_back: bool,
    status: watch::Sender<Status>,
    role: watch::Receiver<Role>,
    /// Of which the worker is that has the role, if it is not ours.
    other_stream: watch::Receiver<Option<String>>,
    shutdown: CancellationToken,
}

impl<W: Work> Worker<W> {
    /// Of a part, and what the holder has of that.
    fn of(
        (context, statements): (Arc<Context>, RoleStatements),
        status: watch::Sender<Status>,
        (broker, controlling, shutdown): (&Arc<Broker>, &Arc<Controlling>, &CancellationToken),
        make: &mut impl FnMut(&Arc<Context>) -> W,
    ) -> (Part, Self) {
        let role = watch::Sender::new(Role::Unknown);
        let worker = Self {
            work: Arc::new(make(&context)),
            rewinding: Rewinding::new(Arc::clone(&context)),
            controlling: Arc::clone(controlling),
            context: Arc::clone(&context),
            broker: Arc::clone(broker),
            nats: broker.client(),
            one_by_one: false,
            went_back: false,
            status,
            role: role.subscribe(),
            other_stream: statements.other_stream.subscribe(),
            shutdown: shutdown.clone(),
        };
        let status = worker.status.subscribe();
        (Part { context, role, statements, status }, worker)
    }

    async fn run(mut self) -> Result<Summary, Error> {
        let mut counts = Summary::default();
        while let Some(term) = self.becomes_active().await {
            let session = async {
                self.revive().await?;
                if !self.rewinds(term).await? {
                    return Ok(counts);
                }
                Box::pin(self.session(term, counts)).await
            };
            let ended = session.await;
            self.context.at_work.send_replace(false);
            match ended {
                Ok(summary) => counts = summary,
                Err(error) if error.is_transient() => {
                    self.context.unanswered.failed(&self.nats.1, &error).await;
                    let error = error.without_data();
                    warn!(consumer = self.context.config.consumer, error, "trying again");
                    self.context.hinder(true);
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
        let (mut trouble, began) = (self.context.pool.trouble(), Instant::now());
        loop {
            if self.shutdown.is_cancelled() {
                return None;
            }
            let role = *self.role.borrow_and_update();
            match role {
                Role::Active { term, until } if Instant::now() < until => {
                    self.context.at_work.send_replace(true);
                    // Who takes the role away looks whether anything is at work under it after that.
                    if self.is_active_in(term) {
                        return Some(term);
                    }
                    self.context.at_work.send_replace(false);
                    continue;
                }
                Role::Active { .. } => {
                    let why = trouble.borrow_and_update().clone();
                    let why = why.unwrap_or_else(|| "the role was not renewed".into());
                    self.say(State::Paused, Some(why));
                }
                Role::Standby | Role::Leaving => self.stands_by(began),
                Role::Unknown => match trouble.borrow_and_update().clone() {
                    Some(trouble) => self.say(State::Paused, Some(trouble)),
                    None => self.say(State::Starting, None),
                },
            }
            tokio::select! {
                _ = self.role.changed() => {}
                _ = trouble.changed() => {}
                _ = self.other_stream.changed() => {}
                () = tokio::time::sleep(OTHER_STREAM_MAX) => {}
                () = self.shutdown.cancelled() => return None,
            }
        }
    }

    /// Another worker handles the events; none handles those of this stream if that is of another one.
    fn stands_by(&mut self, since: Instant) {
        let other = self.other_stream.borrow_and_update().clone();
        let Some(other) = other.filter(|_| since.elapsed() >= OTHER_STREAM_MAX) else {
            return self.say(State::Standby, None);
        };
        let Config { consumer, stream, .. } = &*self.context.config;
        let why = format!(
            "another stream has the consumer: a worker handles events of \"{other}\" as \"{consumer}\". \
             Stop it, or give the consumer of \"{stream}\" another name"
        );
        warn!(consumer, "{why}");
        self.say(State::Paused, Some(why));
    }

    /// Takes the client that the broker is reached by now: another one if it has ended.
    async fn revive(&mut self) -> Result<(), Error> {
        let revived = self.broker.revived().await?;
        self.one_by_one |= revived.0 != self.nats.0;
        self.nats = revived;
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
            self.rewinding.carry_out(&rewind, (&self.nats.1, term), &self.shutdown).await?;
            if self.shutdown.is_cancelled() || !self.is_active_in(term) {
                return Ok(false);
            }
        }
    }

    /// Where the consumer has to go back to by itself, if it has to.
    async fn follows(&mut self, term: Term, stream: bool) -> Result<Option<RewindState>, Error> {
        if stream {
            let pending = self.rewinding.follow_stream(&self.nats.1, self.went_back).await?;
            self.went_back = false;
            if pending.is_some() {
                return Ok(pending);
            }
        }
        self.rewinding.follow_database(&self.nats.1, term).await
    }

    fn is_active_in(&self, asked: Term) -> bool {
        matches!(*self.role.borrow(), Role::Active { term, .. } if term == asked)
    }

    async fn session(&mut self, term: Term, counts: Summary) -> Result<Summary, Error> {
        let context = Arc::new(Context { term, ..(*self.context).clone() });
        let Context { config, pool, tally, unanswered, .. } = &*context;
        // Before anything is begun.
        let wanted = self.controlling.begin().await?;
        let mut source =
            Source::open(&self.nats.1, config, self.find_resolved(), (tally, unanswered)).await?;
        check_retention(config, source.max_age())?;
        self.context.may_forget.send_replace(true);
        let origin = source.origin().clone();
        let advisories = Advisories::open(&self.nats.1, origin.clone(), config).await?;
        let redrive = Redrive::new(&self.context, self.nats.1.clone(), origin.clone());
        let acks = Acks::start(self.nats.1.clone()).await?;
        // Of this session; another one begins as always.
        source.one_by_one = mem::take(&mut self.one_by_one);
        source.known(self.rewinding.level);
        let start = ConsumerStart {
            term,
            shares: W::SHARES,
            lanes: config.lanes,
            batch: config.batch,
            limits: config.hold_limits(),
            unacked_max: source.unacked_max(),
            ack_wait: source.ack_wait(),
            backoff: config.pauses.of_consumer(),
            rate: config.rate,
            counts,
        };
        let (feed, intake) = feed::open();
        let session = Session {
            nats: self.nats.1.clone(),
            acks,
            work: Arc::clone(&self.work),
            context: Arc::clone(&context),
            status: self.status.clone(),
            role: self.role.clone(),
            trouble: pool.trouble(),
            broker: source.trouble(),
            wanted,
            intake,
            origin,
            engine: ConsumerEngine::new(start, Instant::now()),
            places: Places::of(context.places.as_ref()),
            ended: watch::Sender::default(),
            ended_at: None,
            held_up: Arc::default(),
        };
        let stop = self.shutdown.child_token();
        let mut floor = Floor {
            context: &context,
            stream: source.stream(),
            nats: &self.nats.1,
            level: self.rewinding.level,
            made: self.rewinding.made.or(source.made),
            ended: session.ended.subscribe(),
            seen: None,
        };
        // What is delivered from here on is not missed.
        floor.look(false).await?;
        let (summary, (), (), (), (), went_back, (), ()) = tokio::join!(
            // They are large, and polled in turns.
            Box::pin(session.run(&stop)),
            until(feed.closed(), stop_when_gone(&self.nats.1, &stop)),
            until(feed.closed(), self.rewinding.watch(&stop)),
            until(feed.closed(), self.controlling.watch()),
            until(feed.closed(), floor.follow(self.status.subscribe())),
            Box::pin(source.run(feed.clone(), &stop)),
            Box::pin(redrive.run(feed.clone())),
            advisories.run(feed),
        );
        floor.end(self.is_active_in(term)).await;
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
    tokio::select! {
        _ = role.wait_for(|it| it.is_lost(asked)) => {}
        () = shutdown.cancelled() => {}
    }
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
