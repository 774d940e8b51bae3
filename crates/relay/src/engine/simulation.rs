//! The core against a simulated log, broker and network, on seeded schedules.
//!
//! A schedule mixes commits, deliveries, refusals, lost messages and answers, broken connections
//! whose bytes arrive later, crashes and takeovers, foreign messages, poison, keepalives and scans.
//! After every step what is confirmed must be resolved; at the end, healed, everything committed
//! must be stored exactly once and in order. Replay one with `REPLAY_SEED=n`.

mod broker;
mod check;
mod mending;
mod old_rows;
mod schedules;
mod slot_loss;
mod tail;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use outbox::Event;
use pgoutput::Lsn;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use self::broker::{Flying, Packet, Stored, Taking};
use self::old_rows::Scanning;
use super::*;

const SYSTEM: u64 = 7;
const WINDOW: usize = 16;
const MAX_ATTEMPTS: u32 = 3;

/// When somebody else writes to the stream.
#[derive(Clone, Copy, PartialEq)]
enum Foreign {
    Never,
    /// Only while nothing of the relay's is on its way or about to be.
    BetweenMessages,
    Always,
}

#[derive(Clone, Copy, PartialEq)]
struct Faults {
    mode: Mode,
    foreign: Foreign,
    /// Some events are refused for good, and some are dropped by a route.
    poison: bool,
    /// The stream takes some events only now and then.
    picky: bool,
    /// Later events of a parked one's aggregate wait, until it is mended.
    blocking: bool,
    /// The broker remembers ids until the relay is away for long. Fenced mode must not need it,
    /// except where the broker rejects a message for good while old connections still deliver.
    dedup: bool,
    /// The broker takes batches.
    batches: bool,
    /// The slot is lost now and then, and made anew.
    slot_loss: bool,
    /// The stream loses messages while no relay runs.
    purges: bool,
}

struct Transaction {
    commit_lsn: Lsn,
    end_lsn: Lsn,
    events: Vec<u128>,
}

struct World {
    rng: StdRng,
    faults: Faults,
    log: Vec<Transaction>,
    /// Rows from before the slot, which only the scanner brings, and which rows are marked.
    old_rows: Vec<u128>,
    /// Those that only a later look of the scanner found: their order means nothing.
    late_rows: HashSet<u128>,
    marked: HashSet<u128>,
    /// It is written down that the scanner may owe something.
    is_gap_open: bool,
    keys: HashMap<u128, u8>,
    poisoned: HashSet<u128>,
    /// Events of a subject that the stream takes only now and then.
    picky: HashSet<u128>,
    /// Whether it does not take it now.
    is_picky: bool,
    noted: u64,
    /// Ever.
    parked: HashSet<u128>,
    /// The dead-letter table: what each waits for, if nothing is wrong with itself.
    dead: BTreeMap<u128, Option<u128>>,
    requeued: HashSet<u128>,
    dropped: HashSet<u128>,
    stream: Vec<Stored>,
    /// One queue for each connection ever made; the last is the relay's present one.
    connections: Vec<VecDeque<Packet>>,
    /// The batches that the broker knows, by relay and number.
    taking: HashMap<(u64, u32), Taking>,
    /// The broker's memory of ids begins here in the stream.
    forgotten: usize,
    answers: Vec<(u64, Input)>,
    slot_confirmed: Lsn,
    /// What the relay wrote down when it confirmed that.
    place: Option<Place>,
    /// The stream's messages before this one are gone.
    purged: usize,
    lsn: u64,
    next_id: u128,
    now: Duration,
    relay: Relay,
}

/// A relay process: its core and how far its replication connection has got.
struct Relay {
    generation: u64,
    state: Publishing,
    /// Next to deliver: transaction, and within it 0 = begin, 1.. = events, then commit.
    at: (usize, usize),
    tails: Vec<u64>,
    parks: Vec<u64>,
    asked: bool,
    scan: Scanning,
    /// Batches that were read and are not marked.
    scanned: VecDeque<Vec<u128>>,
    /// Rows of them to be marked. Those that were parked are not among them.
    settled: HashSet<u128>,
    batches: u32,
    /// What the scan that is open has yet to bring.
    cursor: Option<VecDeque<u128>>,
    /// The first scan of the session is not finished: the log waits.
    scan_is_initial: bool,
    /// The log waits, because aggregates are blocked.
    holding: bool,
    tail_read: bool,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let old = rng.random_range(0..6);
        let relay = Relay {
            generation: 0,
            state: Publishing::new(start(
                faults,
                Lsn::ZERO,
                Tail::default(),
                None,
                &HashSet::new(),
            )),
            at: (0, 0),
            tails: Vec::new(),
            parks: Vec::new(),
            asked: false,
            scan: Scanning::Reading,
            scanned: VecDeque::new(),
            settled: HashSet::new(),
            batches: 0,
            cursor: None,
            scan_is_initial: true,
            holding: false,
            tail_read: false,
        };
        let mut world = Self {
            rng,
            faults,
            log: Vec::new(),
            old_rows: Vec::new(),
            late_rows: HashSet::new(),
            marked: HashSet::new(),
            is_gap_open: true,
            keys: HashMap::new(),
            poisoned: HashSet::new(),
            picky: HashSet::new(),
            is_picky: false,
            noted: 0,
            parked: HashSet::new(),
            dead: BTreeMap::new(),
            requeued: HashSet::new(),
            dropped: HashSet::new(),
            stream: Vec::new(),
            connections: vec![VecDeque::new()],
            taking: HashMap::new(),
            forgotten: 0,
            answers: Vec::new(),
            slot_confirmed: Lsn::ZERO,
            place: None,
            purged: 0,
            lsn: 100,
            next_id: 1,
            now: Duration::ZERO,
            relay,
        };
        world.old_rows = (0..old).map(|_| world.mint()).collect();
        world
    }

    fn mint(&mut self) -> u128 {
        let id = self.next_id;
        self.next_id += 1;
        self.keys.insert(id, self.rng.random_range(0..4));
        if self.faults.poison && self.rng.random_bool(0.05) {
            self.poisoned.insert(id);
        }
        if self.faults.picky && self.rng.random_bool(0.1) {
            self.picky.insert(id);
        }
        id
    }

    fn commit(&mut self) {
        let count = *[1, 1, 1, 2, 5].choose(&mut self.rng).expect("not empty");
        let events = (0..count).map(|_| self.mint()).collect();
        self.lsn += 10;
        let (commit_lsn, end_lsn) = (Lsn(self.lsn), Lsn(self.lsn + 5));
        self.log.push(Transaction { commit_lsn, end_lsn, events });
    }

    fn outgoing(&self, id: u128) -> Outgoing {
        let mut event = Event::new("t", format!("k{}", self.keys[&id]), "e", &0).expect("valid");
        event.id = Uuid::from_u128(id);
        event.payload = Bytes::from_static(b"{}");
        // Half of the poison is found before sending, the other half by the broker.
        let known = self.poisoned.contains(&id) && id.is_multiple_of(2);
        let subject = match known {
            _ if self.is_filtered(id) => Err(Unpublished::Dropped),
            true => Err(Unpublished::Unfit("illegal".into())),
            false if self.picky.contains(&id) => Ok("picky".into()),
            false => Ok("s".into()),
        };
        Outgoing { event, subject, seq: None, requeued: false, tried: Tried::default() }
    }

    fn scanned(&self, id: u128) -> Outgoing {
        Outgoing { requeued: self.requeued.contains(&id), ..self.outgoing(id) }
    }

    fn apply(&mut self, input: Input) {
        self.relay.state.apply(self.now, input);
    }

    /// The walsender's next message.
    fn deliver_log(&mut self) {
        let (transaction, part) = self.relay.at;
        let Some(it) = self.log.get(transaction) else { return };
        if !self.relay.state.has_room() || self.relay.scan_is_initial || self.relay.holding {
            return;
        }
        if part == 0 && it.end_lsn <= self.slot_confirmed {
            self.relay.at = (transaction + 1, 0);
            return;
        }
        let (commit_lsn, end_lsn) = (it.commit_lsn, it.end_lsn);
        let input = match part {
            0 => Input::Begin { commit_lsn, commit_time_micros: 0 },
            n if n <= it.events.len() => Input::Logged(self.outgoing(it.events[n - 1])),
            _ => Input::Commit { end_lsn },
        };
        let last = matches!(input, Input::Commit { .. });
        self.relay.at = if last { (transaction + 1, 0) } else { (transaction, part + 1) };
        self.apply(input);
    }

    fn keepalive(&mut self) {
        // The walsender's position: behind everything it has delivered.
        let (transaction, part) = self.relay.at;
        if part == 0 {
            let mut sent = transaction.checked_sub(1).map_or(Lsn::ZERO, |it| self.log[it].end_lsn);
            if self.log.len() == transaction {
                sent = sent.max(Lsn(self.lsn + 6)); // something else was written to the log
            }
            self.apply(Input::Keepalive { wal_end: sent });
        } else {
            let sent = self.log[transaction].commit_lsn;
            self.apply(Input::Keepalive { wal_end: sent });
        }
    }

    fn send(&mut self) {
        let generation = self.relay.generation;
        let packet = if let Some(send) = self.relay.state.next_send() {
            if self.is_picky && self.picky.contains(&send.event.id.as_u128()) {
                let index = send.index;
                let refusal = Refusal::Unwelcome("no stream takes it".into());
                self.apply(Input::Unsendable { index, refusal });
                return;
            }
            Packet::Message(Flying {
                reply: (generation, send.epoch, send.index),
                id: send.event.id.as_u128(),
                expected: send.expected,
                position: send.position,
                part: send.part,
            })
        } else if let Some(end) = self.relay.state.next_end() {
            Packet::End { generation, end }
        } else {
            return;
        };
        self.connections.last_mut().expect("one connection").push_back(packet);
    }

    fn requests(&mut self) {
        while let Some(request) = self.relay.state.next_request() {
            match request {
                Request::ReadTail { from, .. } => self.relay.tails.push(from),
                Request::Park { index, dead } => {
                    self.park(&dead);
                    self.relay.parks.push(index);
                }
                Request::NoteFailure { attempts, .. } => {
                    assert!(attempts < MAX_ATTEMPTS, "tried too often");
                    self.noted += 1;
                }
                Request::AskForMarks(_) => self.relay.asked = true,
                Request::TellDoubt { .. } => {}
                Request::Stop(reason) => panic!("asked to stop: {reason}"),
            }
        }
        for settled in self.relay.state.take_settled() {
            if matches!(settled.origin, Origin::Scan(_)) {
                self.relay.settled.insert(settled.id.as_u128());
            }
            self.check_settled(settled);
        }
    }

    fn jobs(&mut self, honest: bool) {
        if let Some(from) = self.relay.tails.pop() {
            if !honest && self.rng.random_bool(0.2) {
                self.apply(Input::TailFailed("silent".into()));
                return;
            }
            let tail = self.tail_since(from);
            self.apply(Input::Tail(tail));
        }
        if std::mem::take(&mut self.relay.asked) {
            self.apply(Input::Marks(HashMap::new())); // all are late
        }
        if let Some(index) = self.relay.parks.pop() {
            self.apply(Input::Parked { index });
        }
    }

    /// The process dies, or another takes its place; its messages may still arrive.
    fn crash(&mut self) {
        if self.rng.random_bool(0.5) {
            let rng = &mut self.rng;
            self.connections.last_mut().expect("one").retain(|_| rng.random_bool(0.5));
        }
        let for_long = self.rng.random_bool(0.3);
        if for_long || self.has_late_rows() {
            self.connections.iter_mut().for_each(VecDeque::clear);
        }
        if for_long {
            self.forgotten = self.stream.len();
        }
        self.connections.push(VecDeque::new());
        if self.faults.purges && self.rng.random_bool(0.3) {
            self.stop();
        }
        let is_told = !self.is_gap_open && self.place.is_some_and(|it| it.seq.is_some());
        if self.faults.purges && is_told && self.rng.random_bool(0.7) {
            self.purge();
        }
        let tail = self.tail_back(WINDOW);
        let doubted = (self.purged > 0).then(|| Doubted {
            before: Lsn(self.lsn + 6),
            first_seq: self.purged as u64 + 1,
            last_at_micros: 0,
            place: self.place,
        });
        let mended = self.requeued.intersection(&self.marked);
        let dead = self.dead.keys().chain(mended).copied().collect();
        self.now = Duration::ZERO;
        self.relay = Relay {
            generation: self.relay.generation + 1,
            state: Publishing::new(start(self.faults, self.slot_confirmed, tail, doubted, &dead)),
            at: (0, 0),
            tails: Vec::new(),
            parks: Vec::new(),
            asked: false,
            scan: Scanning::Reading,
            scanned: VecDeque::new(),
            settled: HashSet::new(),
            batches: 0,
            cursor: None,
            scan_is_initial: self.is_gap_open || self.faults.blocking,
            holding: false,
            tail_read: false,
        };
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..8 => self.commit(),
            8..30 => self.some_times(Self::deliver_log),
            30..50 => self.some_times(Self::send),
            50..68 => self.broker(false),
            68..82 => self.answer(),
            82..90 => self.jobs(false),
            90..92 => self.keepalive(),
            92..94 => self.scan(),
            94 => self.break_link(),
            95 if self.faults.slot_loss && self.rng.random_bool(0.2) => self.lose_slot(),
            95 if self.rng.random_bool(0.3) => self.crash(),
            99 if self.faults.blocking => self.mend_now_and_then(),
            99 => self.unmark_by_hand(),
            96 if self.foreign_comes() => {
                self.stream.push(Stored { id: None, position: None, position_event: None });
            }
            97 => {
                self.now += Duration::from_secs(3);
                self.is_picky = self.rng.random_bool(0.5);
                self.apply(Input::Tick);
            }
            95 => self.taking.clear(), // a change of leader, or ten seconds
            98 => self.confirm(),
            _ => {}
        }
        self.requests();
        self.check_confirmed();
    }

    /// In bursts, so that now and then the window is full and much is on its way.
    fn some_times(&mut self, happens: fn(&mut Self)) {
        for _ in 0..*[1, 1, 1, 8].choose(&mut self.rng).expect("not empty") {
            happens(self);
        }
    }

    fn foreign_comes(&mut self) -> bool {
        let sending = !self.relay.state.is_idle();
        let quiet = !sending && self.connections.iter().all(VecDeque::is_empty);
        match self.faults.foreign {
            Foreign::Never => false,
            Foreign::BetweenMessages => {
                quiet && self.answers.is_empty() && self.relay.tails.is_empty()
            }
            Foreign::Always => self.rng.random_bool(0.3),
        }
    }

    fn heal(&mut self) {
        self.is_picky = false;
        for _ in 0..20_000 {
            self.deliver_log();
            self.send();
            self.broker(true);
            self.answer();
            self.jobs(true);
            self.scan();
            self.keepalive();
            if self.faults.purges {
                self.confirm();
            }
            let wait = self.relay.state.breaker().1;
            self.now += wait.unwrap_or(Duration::from_millis(50));
            self.apply(Input::Tick);
            self.requests();
            self.check_confirmed();
            let quiet = self.connections.iter().all(VecDeque::is_empty) && self.answers.is_empty();
            let done = self.relay.at.0 == self.log.len()
                && matches!(self.relay.scan, Scanning::Done)
                && self.relay.scanned.is_empty();
            if quiet && done && self.relay.state.is_idle() {
                if !self.faults.blocking || self.dead.is_empty() {
                    return;
                }
                self.mend_by_hand();
            }
        }
        panic!("does not come to rest: {:?}", self.relay.state);
    }
}

fn start(
    faults: Faults,
    resolved_before: Lsn,
    tail: Tail,
    doubted: Option<Doubted>,
    dead: &HashSet<u128>,
) -> Start {
    Start {
        doubted,
        mode: faults.mode,
        limits: Limits { events: WINDOW, bytes: 1 << 20 },
        ack_timeout: Duration::from_secs(2),
        resolved_before,
        tail,
        batches: faults.batches,
        dead: dead.iter().map(|id| Uuid::from_u128(*id)).collect(),
        tried: HashMap::new(),
        parking_blocks: faults.blocking,
        max_attempts: MAX_ATTEMPTS,
        seed: 1,
    }
}
