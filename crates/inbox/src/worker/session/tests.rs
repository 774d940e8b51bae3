//! Each effect that the engine may ask for is given to the shell, and something happens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lab::{Nats, NatsOptions};
use tokio::sync::broadcast;
use tracing::span;

use super::*;
use crate::config::Config;
use crate::controls::Control;
use crate::engine::{ConsumerStart, Full, HoldLimits, Item, Load, Notice, Term};
use crate::feed;
use crate::postgres::pool::Pool;
use crate::postgres::scope::Scope;
use crate::record::{Claim, Key};
use crate::tally::Tally;
use crate::worker::lease::{Leases, Over};

fn id(seq: u64) -> MessageId {
    let key = Key { id: uuid::Uuid::nil(), event_time: Timestamp::UNIX_EPOCH };
    MessageId { stream_created: None, seq, key }
}

/// The first effect, or the one behind this. Names all: one that is added has to get its place.
fn effect_after(last: Option<&Effect>) -> Option<Effect> {
    let replies = || vec![Subject::from("reply")];
    Some(match last {
        None => Effect::Start(Vec::new()),
        Some(Effect::Start(_)) => Effect::Handle(vec![id(1)]),
        Some(Effect::Handle(_)) => Effect::Withdraw(vec![id(1)]),
        Some(Effect::Withdraw(_)) => Effect::Acknowledge("reply".into()),
        Some(Effect::Acknowledge(_)) => Effect::InProgress(replies()),
        Some(Effect::InProgress(_)) => Effect::GiveBack(replies()),
        Some(Effect::GiveBack(_)) => Effect::Leave(replies()),
        Some(Effect::Leave(_)) => Effect::Load(Load { lane: 1, seqs: vec![1] }),
        Some(Effect::Load(_)) => Effect::Request(17),
        Some(Effect::Request(_)) => Effect::Close,
        Some(Effect::Close) => Effect::AbandonAll,
        Some(Effect::AbandonAll) => Effect::Tell(Notice::TookOver),
        Some(Effect::Tell(notice)) => match notice_after(notice) {
            Some(notice) => Effect::Tell(notice),
            None => Effect::End,
        },
        Some(Effect::End) => return None,
    })
}

fn notice_after(last: &Notice) -> Option<Notice> {
    Some(match last {
        Notice::TookOver => Notice::BreakerOpen { reason: "no answer".into() },
        Notice::BreakerOpen { .. } => Notice::BreakerClosed,
        Notice::BreakerClosed => Notice::BreakerReset,
        Notice::BreakerReset => Notice::Held,
        Notice::Held => Notice::Released,
        Notice::Released => Notice::AtFault { stream_seq: 1, reason: "no answer".into() },
        Notice::AtFault { .. } => Notice::Full { full: Full::Left { max: 1 }, left: 1 },
        Notice::Full { .. } => Notice::LeftInStream,
        Notice::LeftInStream => Notice::NothingLeft,
        Notice::NothingLeft => Notice::EndingHandlers { busy: 1 },
        Notice::EndingHandlers { .. } => Notice::LeftHandlers { busy: 1 },
        Notice::LeftHandlers { .. } => return None,
    })
}

/// By what it shows that an effect was carried out.
#[derive(Debug)]
enum Sign {
    Reported,
    Begun,
    Withdrawn,
    Read,
    Published(&'static [u8]),
    Room(usize),
    Closed,
    Abandoned,
    Logged,
    Ended,
}

fn sign_of(effect: &Effect) -> Sign {
    match effect {
        Effect::Start(_) => Sign::Reported,
        Effect::Handle(_) => Sign::Begun,
        Effect::Withdraw(_) => Sign::Withdrawn,
        Effect::Acknowledge(_) => Sign::Published(b"+ACK"),
        Effect::InProgress(_) => Sign::Published(IN_PROGRESS),
        Effect::GiveBack(_) => Sign::Published(GIVEN_BACK),
        Effect::Leave(_) => Sign::Published(LATER),
        Effect::Load(_) => Sign::Read,
        Effect::Request(room) => Sign::Room(*room),
        Effect::Close => Sign::Closed,
        Effect::AbandonAll => Sign::Abandoned,
        Effect::Tell(_) => Sign::Logged,
        Effect::End => Sign::Ended,
    }
}

/// Reports each job as empty.
struct Reporting;

impl Work for Reporting {
    const SHARES: bool = false;

    async fn run(&self, _: Arc<Context>, _: Vec<Item>, reports: Reports) {
        let _ = reports.send(Said::Reported(Vec::new())).await;
    }
}

/// Counts what is logged.
#[derive(Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("inbox")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn context() -> Arc<Context> {
    let config = Config { stream: "S".into(), ..Config::new("c".into()) };
    let scope = Scope {
        schema: "public".into(),
        consumer: "c".into(),
        stream: "S".into(),
        owner: "w".into(),
        lease: config.lease,
        transactional: false,
    };
    let tally = Arc::new(Tally::default());
    Arc::new(Context {
        pool: Arc::new(Pool::new(Arc::new(|| Box::pin(async { Err("away".into()) })), scope)),
        leases: Arc::new(Leases::new(config.lease, Arc::clone(&tally))),
        config: Arc::new(config),
        tally,
        partitions: watch::Sender::default(),
        term: Term::default(),
        handled: watch::Sender::default(),
        may_forget: watch::Sender::new(false),
        at_work: watch::Sender::default(),
        left_behind: Arc::default(),
        hindered: watch::Sender::default(),
        unanswered: Arc::default(),
        mended: watch::channel(0).1,
        alone: Arc::default(),
        places: None,
    })
}

async fn session(nats: &Client, intake: Intake) -> Session<Reporting> {
    let start = ConsumerStart {
        term: Term::default(),
        shares: false,
        lanes: 1,
        batch: 1,
        limits: HoldLimits::of(16),
        unacked_max: None,
        ack_wait: Duration::from_secs(30),
        backoff: crate::engine::backoff::EVENT,
        rate: None,
        counts: Summary::default(),
    };
    Session {
        nats: nats.clone(),
        acks: Acks::start(nats.clone()).await.unwrap(),
        work: Arc::new(Reporting),
        context: context(),
        status: watch::Sender::default(),
        role: watch::channel(Role::Unknown).1,
        trouble: watch::channel(None).1,
        broker: watch::channel(None).1,
        wanted: Wanted {
            control: watch::channel(Control::default()).1,
            known: Control::default(),
            decided: broadcast::Sender::new(1).subscribe(),
            mended: watch::channel(0).1,
        },
        intake,
        origin: Origin { stream: "S".into(), created: None },
        engine: ConsumerEngine::new(start, Instant::now()),
        ended: watch::Sender::default(),
        ended_at: None,
        held_up: Arc::default(),
        places: Places::default(),
    }
}

/// Panics, or waits for ever, unless it happens.
async fn carry_out(nats: &Client, log: &Log, effect: Effect) {
    let (mut feed, intake) = feed::open();
    let mut session = session(nats, intake).await;
    let (reports, mut reported) = mpsc::channel(1);
    let (begins, begin) = oneshot::channel();
    let mut begun = Begun {
        jobs: JoinSet::new(),
        reports: Some(reports),
        waiting: HashMap::from([(id(1), begins)]),
        loads: JoinSet::new(),
    };
    let mut published = nats.subscribe("reply").await.unwrap();
    nats.flush().await.unwrap();
    let key = Key { id: uuid::Uuid::nil(), event_time: Timestamp::UNIX_EPOCH };
    let claim = Claim { key, token: uuid::Uuid::nil() };
    let mut lease = session.context.leases.keep(claim, 0, Instant::now());
    let logged = log.0.load(Ordering::Relaxed);
    let sign = sign_of(&effect);
    let ends = session.carry_out(effect, &mut begun).await.is_break();
    assert_eq!(ends, matches!(sign, Sign::Ended));
    match sign {
        Sign::Reported => drop(reported.recv().await.expect("a report")),
        Sign::Begun => assert!(begin.await.is_ok()),
        Sign::Withdrawn => assert!(begin.await.is_err()),
        Sign::Read => drop(begun.loads.join_next().await.expect("it is read").unwrap()),
        Sign::Published(text) => assert_eq!(published.next().await.unwrap().payload, text),
        Sign::Room(room) => assert!(feed.room_for(room).await.is_ok()),
        Sign::Closed => {
            assert!(begun.reports.is_none());
            feed.closed().await;
        }
        Sign::Abandoned => assert_eq!(lease.over().await, Over::Abandoned),
        Sign::Logged => assert!(log.0.load(Ordering::Relaxed) > logged),
        Sign::Ended => {}
    }
}

#[tokio::test]
async fn each_effect_is_carried_out() {
    let server = Nats::start(NatsOptions::default()).await.unwrap();
    let nats = server.client().await.unwrap();
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let mut next = effect_after(None);
    let mut carried_out = 0;
    while let Some(effect) = next {
        next = effect_after(Some(&effect));
        let what = format!("{effect:?}");
        let done = timeout(Duration::from_secs(10), carry_out(&nats, &log, effect)).await;
        done.unwrap_or_else(|_| panic!("nothing came of {what}"));
        carried_out += 1;
    }
    assert_eq!(carried_out, 24, "the way from the first effect to the last misses some");
}
