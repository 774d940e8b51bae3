//! Two workers of a consumer, a broker, a database and handlers, 20 seeded schedules for each mix of
//! faults; `SEEDS=n` plays more, `REPLAY_SEED=n` repeats one.
//!
//! The engines, the roles, the redrives and the decisions about claims and verdicts are the real
//! ones. What they are told is made up: deliveries, what statements answer, what handlers say.

mod broker_model;
mod feeding;
mod handling;
mod leases;
mod named_schedules;
mod process;
mod record_model;
mod recording;
mod verdicts;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use lab::seeds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::broker_model::BrokerModel;
use self::process::Process;
use self::record_model::RecordModel;
use super::backoff::Backoff;
use super::lanes::Load;
use crate::Status;
use crate::message::{Message, Whence};

const SEEDS: u64 = 20;
const EVENTS: u64 = 50;
const AGGREGATES: u64 = 6;
const ATTEMPTS_MAX: u32 = 4;
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(300), max: Duration::from_secs(3) };

/// Faults happen for so long.
const FAULTY: Duration = Duration::from_secs(25);

/// After the last one everything has its end within so long.
const HEALED_MAX: Duration = Duration::from_mins(20);

/// More of them, each in front of its aggregate, are an outage.
const DOWNERS_MAX: usize = 2;

static LARGE: [u8; 1_200_000] = [0; 1_200_000];

/// What becomes of an event when it is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    Good,
    /// Fails twice.
    Flaky,
    /// Fails.
    Poison,
    Rejected,
    /// Takes long.
    Slow,
    /// Brings the service down.
    Downer,
    /// Ends the process.
    Killer,
}

/// What goes wrong.
struct Mix {
    natures: &'static [Nature],
    /// The part of the statements that fail.
    statements: f64,
    /// The part of what is said to or by the broker that does not arrive.
    lost: f64,
    /// The database is away for a while.
    away: bool,
    /// The service is away for a while.
    outage: bool,
    /// Processes die.
    crashes: bool,
    /// Processes are stopped, and go on.
    stalls: bool,
    /// Processes are asked to end.
    stops: bool,
    /// Somebody pauses the consumer for a while.
    pauses: bool,
    /// An event that fails for so long is a dead letter.
    give_up_after: Option<Duration>,
    /// Somebody requeues dead letters.
    requeues: bool,
    /// Commits take long, now and then.
    slow_commits: bool,
    large: bool,
    held_max: usize,
    unacked_max: usize,
}

#[derive(Debug)]
enum Happening {
    Publish,
    Fault,
    Start { worker: usize },
    OfProcess { worker: usize, life: u64, what: OfProcess },
    OfSession { worker: usize, session: u64, what: OfSession },
}

/// What happens in one life of a process.
#[derive(Debug)]
enum OfProcess {
    Role,
    Begin,
    Job(u64),
    Task(u64),
    Write,
}

/// What happens in one session.
#[derive(Debug)]
enum OfSession {
    Turn,
    Source,
    Redrive,
    /// Of these so many are read.
    Loaded(Load, usize),
}

/// Whether a statement is executed, and whether anybody hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Refused,
    Unheard,
}

struct World {
    random: StdRng,
    mix: &'static Mix,
    /// Whether handlers share a transaction with the records.
    shares: bool,
    began: Instant,
    now: Instant,
    is_faulty: bool,
    /// Each at its time; those of the same time in order.
    queue: BTreeMap<(Instant, u64), Happening>,
    numbers: u64,
    broker: BrokerModel,
    records: RecordModel,
    workers: [Process; 2],
    /// From the first to the second.
    outage: (Instant, Instant),
    away: (Instant, Instant),
    paused: (Instant, Instant),
    natures: HashMap<u64, Nature>,
    failed_calls: HashMap<u64, u32>,
    /// Since when each failed, as its handler saw it, since it was requeued if it was.
    failing_since: HashMap<u64, Instant>,
    expired: HashSet<u64>,
    effects: HashMap<u64, u32>,
}

/// Now and then an id comes twice: see [`super::simulation::message`].
fn id_of(seq: u64) -> u64 {
    if seq.is_multiple_of(17) { seq - 1 } else { seq }
}

/// Messages take longer to make than all else that is done with them.
fn message(seq: u64, whence: Whence, large: bool) -> Arc<Message> {
    thread_local! {
        static MADE: RefCell<HashMap<(u64, bool, bool), Arc<Message>>> = RefCell::default();
    }
    let make = || {
        let mut made = super::simulation::message(seq, AGGREGATES);
        let message = Arc::get_mut(&mut made).expect("just made");
        message.whence = whence;
        if large {
            message.payload = Bytes::from_static(&LARGE);
        }
        made
    };
    let key = (seq, whence == Whence::Letter, large);
    MADE.with_borrow_mut(|made| Arc::clone(made.entry(key).or_insert_with(make)))
}

impl World {
    fn new(seed: u64, mix: &'static Mix) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Instant::now();
        let mut window = |is_there: bool, least, most| {
            let begin = now + Duration::from_millis(random.random_range(0..8_000));
            let end = begin + Duration::from_millis(random.random_range(least..most));
            if is_there { (begin, end) } else { (now, now) }
        };
        let outage = window(mix.outage, 3_000, 15_000);
        let away = window(mix.away, 100, 8_000);
        let paused = window(mix.pauses, 500, 9_000);
        let mut world = Self {
            shares: random.random(),
            random,
            mix,
            began: now,
            now,
            is_faulty: true,
            queue: BTreeMap::new(),
            numbers: 0,
            broker: BrokerModel::new(mix.unacked_max),
            records: RecordModel::default(),
            workers: [0, 1].map(|_| Process::new(now)),
            outage,
            away,
            paused,
            natures: HashMap::new(),
            failed_calls: HashMap::new(),
            failing_since: HashMap::new(),
            expired: HashSet::new(),
            effects: HashMap::new(),
        };
        world.after(0, 1, Happening::Publish);
        world.after(0, 2_000, Happening::Fault);
        world.after(0, 1, Happening::Start { worker: 0 });
        world.after(0, 1_000, Happening::Start { worker: 1 });
        world
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.random.random_range(least..most))
    }

    fn after(&mut self, least: u64, most: u64, happening: Happening) {
        let at = self.now + self.millis(least, most);
        self.at(at, happening);
    }

    fn at(&mut self, at: Instant, happening: Happening) {
        let number = self.number();
        self.queue.insert((at, number), happening);
    }

    fn chance(&mut self, part: f64) -> bool {
        self.is_faulty && self.random.random_bool(part)
    }

    /// For people.
    fn time(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + (self.now - self.began)
    }

    fn is_service_away(&self, at: Instant) -> bool {
        self.outage.0 <= at && at < self.outage.1
    }

    fn nature(&self, seq: u64) -> Nature {
        self.natures[&id_of(seq)]
    }

    fn step(&mut self) {
        let ((at, number), happening) = self.queue.pop_first().expect("workers look all the time");
        self.now = self.now.max(at);
        match happening {
            Happening::Publish => self.publish(),
            Happening::Fault => self.fault(),
            Happening::Start { worker } => self.start_process(worker),
            Happening::OfProcess { worker, .. } | Happening::OfSession { worker, .. }
                if self.workers[worker].stalled_until > self.now =>
            {
                self.queue.insert((self.workers[worker].stalled_until, number), happening);
            }
            Happening::OfProcess { worker, life, what } if self.workers[worker].life == life => {
                self.of_process(worker, what);
            }
            Happening::OfSession { worker, session, what }
                if self.workers[worker].session_id() == Some(session) =>
            {
                self.of_session(worker, what);
            }
            Happening::OfProcess { .. } | Happening::OfSession { .. } => {}
        }
    }

    /// Only another event tells an outage from one that brings the service down.
    fn publish(&mut self) {
        let last = self.broker.stream.last().copied().unwrap_or(0);
        let seq = last + if self.random.random_bool(0.1) { 3 } else { 1 };
        let is_extra = self.broker.stream.len() as u64 >= EVENTS;
        let is_open =
            |(id, it): (&u64, &Nature)| *it == Nature::Downer && !self.records.is_resolved(*id);
        if !is_extra || self.natures.iter().any(is_open) {
            let nature = self.mix.natures[self.random.random_range(0..self.mix.natures.len())];
            let downers = self.natures.values().filter(|it| **it == Nature::Downer).count();
            let is_one_too_many = nature == Nature::Downer && downers == DOWNERS_MAX;
            let nature = if is_extra || is_one_too_many { Nature::Good } else { nature };
            self.natures.entry(id_of(seq)).or_insert(nature);
            self.broker.stream.push(seq);
        }
        let most = if self.random.random_bool(0.5) { 10 } else { 800 };
        self.after(0, most, Happening::Publish);
    }

    fn fault(&mut self) {
        if !self.is_faulty {
            return;
        }
        let worker = self.random.random_range(0..2);
        match self.random.random_range(0..5) {
            0 if self.mix.crashes => self.crash(worker),
            1 if self.mix.stops => self.ask_to_stop(worker),
            2 | 3 if self.mix.stalls => {
                let until = self.now + self.millis(0, 8_000);
                self.workers[worker].stalled_until = until;
                if self.random.random_bool(0.2) {
                    self.workers[1 - worker].stalled_until = until;
                }
            }
            4 if self.mix.requeues => {
                let dead = self.records.dead();
                let dead = dead.iter().filter(|id| self.records.rows[id].requeued < 2);
                if let Some(id) = dead.copied().next() {
                    self.records.requeue(id, self.now);
                    self.failing_since.remove(&id);
                }
            }
            _ => {}
        }
        self.after(100, 3_000, Happening::Fault);
    }

    fn is_done(&self) -> bool {
        let rests = |it: &Process| {
            let status = it.session.as_ref().map(|it| it.engine.status(None, Status::default()));
            status.is_none_or(|it| it.held + it.left == 0)
        };
        self.broker.stream.len() as u64 >= EVENTS
            && self.broker.unacknowledged() == 0
            && self.workers.iter().all(rests)
            && self.broker.stream.iter().all(|seq| self.records.is_resolved(id_of(*seq)))
    }

    fn play(&mut self) {
        while self.now < self.began + FAULTY {
            self.step();
        }
        self.is_faulty = false;
        self.workers.iter_mut().for_each(|it| it.stalled_until = self.began);
        let (healed_at, mut steps) = (self.now, 0);
        while !self.is_done() {
            self.step();
            steps += 1;
            let waited = self.now - healed_at;
            assert!(waited < HEALED_MAX && steps < 200_000, "stuck: {}", self.what_is_left());
        }
        self.check_ends();
    }
}

const CALM: Mix = Mix {
    natures: &[Nature::Good, Nature::Good, Nature::Good, Nature::Flaky, Nature::Poison],
    statements: 0.0,
    lost: 0.0,
    away: false,
    outage: false,
    crashes: false,
    stalls: false,
    stops: false,
    pauses: false,
    give_up_after: None,
    requeues: false,
    slow_commits: false,
    large: false,
    held_max: 16,
    unacked_max: 1_000,
};

fn play(mix: &'static Mix) {
    for seed in seeds(SEEDS) {
        World::new(seed, mix).play();
    }
}

// proves: G-EFFECT-2
#[test]
fn events_that_fail_have_their_ends_in_order_where_there_is_little_room() {
    static MIX: Mix = Mix {
        natures: &[Nature::Good, Nature::Flaky, Nature::Poison, Nature::Rejected],
        requeues: true,
        held_max: 8,
        unacked_max: 30,
        ..CALM
    };
    play(&MIX);
}

// proves: G-EFFECT-5
#[test]
fn an_outage_costs_no_attempt_and_an_event_that_brings_the_service_down_ends() {
    static MIX: Mix = Mix {
        natures: &[
            Nature::Good,
            Nature::Good,
            Nature::Good,
            Nature::Good,
            Nature::Good,
            Nature::Good,
            Nature::Slow,
            Nature::Flaky,
            Nature::Poison,
            Nature::Downer,
        ],
        outage: true,
        ..CALM
    };
    play(&MIX);
}

// proves: G-EFFECT-5
#[test]
fn an_event_expires_that_failed_for_so_long_and_none_at_its_first_call() {
    static MIX: Mix = Mix {
        natures: &[Nature::Good, Nature::Good, Nature::Good, Nature::Slow, Nature::Poison],
        outage: true,
        pauses: true,
        requeues: true,
        give_up_after: Some(Duration::from_secs(2)),
        ..CALM
    };
    play(&MIX);
}

// proves: G-EFFECT-2, G-CONTROL-1
#[test]
fn statements_and_messages_that_are_lost_cost_nothing_but_time() {
    static MIX: Mix = Mix {
        statements: 0.08,
        lost: 0.1,
        away: true,
        pauses: true,
        requeues: true,
        large: true,
        unacked_max: 20,
        ..CALM
    };
    play(&MIX);
}

// proves: G-EFFECT-2, G-EFFECT-3
#[test]
fn workers_that_die_stall_and_stop_leave_everything_to_their_successor() {
    static MIX: Mix = Mix {
        natures: &[
            Nature::Good,
            Nature::Good,
            Nature::Good,
            Nature::Flaky,
            Nature::Poison,
            Nature::Slow,
            Nature::Killer,
        ],
        crashes: true,
        stalls: true,
        stops: true,
        slow_commits: true,
        ..CALM
    };
    play(&MIX);
}

// proves: G-EFFECT-2, G-EFFECT-3
#[test]
fn whatever_goes_wrong_at_once_each_event_has_its_end_once_and_in_order() {
    static MIX: Mix = Mix {
        natures: &[
            Nature::Good,
            Nature::Good,
            Nature::Good,
            Nature::Flaky,
            Nature::Poison,
            Nature::Rejected,
            Nature::Slow,
        ],
        statements: 0.04,
        lost: 0.05,
        away: true,
        outage: true,
        crashes: true,
        stalls: true,
        stops: true,
        requeues: true,
        slow_commits: true,
        held_max: 12,
        unacked_max: 25,
        ..CALM
    };
    play(&MIX);
}
