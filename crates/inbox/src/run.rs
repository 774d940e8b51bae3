//! Starts what an inbox consists of, and starts it again while it can be mended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::acks::Acks;
use crate::config::Config;
use crate::connection::{Connect, ConnectNats};
use crate::core::{Breaker, Lanes};
use crate::error::describe;
use crate::keeper::{Keeper, Role};
use crate::leases::Leases;
use crate::pool::Pool;
use crate::redrive::{Redrive, closed};
use crate::role::{Lease, Token};
use crate::session::{Leaving, Session};
use crate::source::Source;
use crate::store::Scope;
use crate::strays::Strays;
use crate::work::{Context, Work};
use crate::{Error, State, Status, Summary};

/// Before the broker is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Deliveries between the source and the lanes.
const FED_MAX: usize = 64;

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
    let role = Token::default();
    let schema = crate::tables::quote(&config.schema);
    let owner = format!("{}:{}", std::process::id(), Uuid::new_v4());
    let held = Lease::new(&schema, &config.consumer, &owner, config.lease, role.clone());
    let scope = Scope {
        schema,
        consumer: config.consumer.clone(),
        stream: config.stream.clone(),
        owner,
        lease: config.lease,
        role,
        takes_over: W::SHARES,
        lent: W::SHARES,
    };
    let context = Arc::new(Context {
        config: Arc::clone(&config),
        pool: Arc::new(Pool::new(connect, scope)),
        leases: Arc::new(Leases::new(config.lease)),
        partitions: watch::Sender::default(),
    });
    let keeper = Keeper {
        pool: Arc::clone(&context.pool),
        leases: Arc::clone(&context.leases),
        lease: config.lease,
        consumer: config.consumer.clone(),
        schema: config.schema.clone(),
        retention: config.retention,
        partitions: context.partitions.clone(),
        role: watch::Sender::new(Role::Unknown),
        held,
        status: status.subscribe(),
    };
    let role = keeper.role.subscribe();
    let engine = Engine {
        work: Arc::new(make(&context)),
        context,
        nats,
        reconnect_nats,
        wary: false,
        status,
        role,
        shutdown,
    };
    let ended = tokio::select! {
        error = keeper.run() => Err(error),
        summary = engine.run() => summary,
    };
    keeper.release().await;
    ended
}

struct Engine<W> {
    work: Arc<W>,
    context: Arc<Context>,
    nats: async_nats::Client,
    reconnect_nats: Option<ConnectNats>,
    /// A message of the stream has ended a client.
    wary: bool,
    status: watch::Sender<Status>,
    role: watch::Receiver<Role>,
    shutdown: CancellationToken,
}

impl<W: Work> Engine<W> {
    async fn run(mut self) -> Result<Summary, Error> {
        let mut counts = Summary::default();
        while self.becomes_active().await {
            let session = async {
                self.revive().await?;
                Box::pin(self.session(counts)).await
            };
            match session.await {
                Ok(summary) => counts = summary,
                Err(error) if error.is_transient() => {
                    let error = describe(&error);
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
        info!(consumer = self.context.config.consumer, ?counts, "the inbox has stopped");
        Ok(counts)
    }

    /// Waits until this worker may handle events; not so if it is to stop.
    async fn becomes_active(&mut self) -> bool {
        let mut trouble = self.context.pool.trouble();
        loop {
            if self.shutdown.is_cancelled() {
                return false;
            }
            let role = *self.role.borrow_and_update();
            match role {
                Role::Active { until } if Instant::now() < until => return true,
                Role::Active { .. } => {
                    self.say(State::Paused, Some("the role was not renewed".into()))
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
                () = self.shutdown.cancelled() => return false,
            }
        }
    }

    /// Connects to the broker anew if the client has ended: some bytes in a header do that.
    async fn revive(&mut self) -> Result<(), Error> {
        if !is_gone(&self.nats).await {
            return Ok(());
        }
        let reconnect = self.reconnect_nats.as_ref().ok_or(Error::NatsClientEnded)?;
        self.nats = reconnect().await.map_err(Error::jetstream("connect to NATS"))?;
        self.wary = true;
        info!(consumer = self.context.config.consumer, "connected to NATS anew");
        Ok(())
    }

    async fn session(&self, counts: Summary) -> Result<Summary, Error> {
        let Context { config, pool, .. } = &*self.context;
        let mut source = Source::open(&self.nats, config, pool).await?;
        source.wary = self.wary;
        check_retention(config, source.max_age())?;
        let strays = Strays::open(&self.nats, source.origin().clone(), &config.consumer).await?;
        let (nats, origin) = (self.nats.clone(), source.origin().clone());
        let of_left = origin.clone();
        let redrive = Redrive::new(Arc::clone(config), Arc::clone(pool), nats, origin);
        let acks = Acks::start(self.nats.clone()).await?;
        let (ack_wait, unacked_max) = (source.ack_wait(), source.unacked_max());
        let (room, wanted) = watch::channel(0);
        let (fed, feed) = mpsc::channel(FED_MAX);
        let session = Session {
            config: Arc::clone(config),
            nats: self.nats.clone(),
            acks,
            ack_wait,
            unacked_max,
            work: Arc::clone(&self.work),
            context: Arc::clone(&self.context),
            status: self.status.clone(),
            role: self.role.clone(),
            trouble: pool.trouble(),
            broker: source.trouble(),
            room,
            feed,
            lanes: Lanes::default(),
            leaving: Leaving::default(),
            origin: of_left,
            breaker: Breaker::new(config.backoff),
            next_probe_at: None,
            batch: config.batch,
            counts,
        };
        let stop = self.shutdown.child_token();
        let (summary, (), (), (), ()) = tokio::join!(
            // They are large, and polled in turns.
            Box::pin(session.run(&stop)),
            stop_when_gone(&self.nats, &stop, wanted.clone()),
            Box::pin(source.run(fed.clone(), wanted.clone(), &stop)),
            Box::pin(redrive.run(fed.clone(), wanted.clone())),
            strays.run(fed, wanted),
        );
        Ok(summary)
    }

    fn say(&self, state: State, paused: Option<String>) {
        self.status.send_modify(|status| {
            status.state = state;
            status.paused = paused;
        });
    }
}

/// Whether the client's task has ended, so that nothing will ever be sent by it.
async fn is_gone(nats: &async_nats::Client) -> bool {
    matches!(tokio::time::timeout(PAUSE, nats.flush()).await, Ok(Err(_)))
}

/// Ends the session when its client has ended.
async fn stop_when_gone(
    nats: &async_nats::Client,
    stop: &CancellationToken,
    room: watch::Receiver<usize>,
) {
    loop {
        tokio::select! {
            () = closed(room.clone()) => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
        if is_gone(nats).await {
            warn!("the client of NATS has ended: a message of the stream may be why");
            return stop.cancel();
        }
    }
}

/// What is forgotten must not be delivered any more. Only the stream brings an event again: the
/// record of a dead letter is kept until somebody decides about it, and nothing replays.
fn check_retention(config: &Config, max_age: Option<Duration>) -> Result<(), Error> {
    let Some(keep) = config.retention else { return Ok(()) };
    match max_age {
        Some(max_age) if keep < max_age + config.lease => Err(Error::Config {
            consumer: config.consumer.clone(),
            reason: format!(
                "records are kept for {keep:?}, but the stream \"{}\" keeps messages for \
                 {max_age:?}: keep records for longer than that and a lease",
                config.stream
            ),
        }),
        Some(_) => Ok(()),
        None => {
            warn!(
                consumer = config.consumer,
                ?keep,
                "the stream keeps messages for ever: those older than the records become dead \
                 letters when they are delivered again"
            );
            Ok(())
        }
    }
}
