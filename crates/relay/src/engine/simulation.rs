//! The engine against a simulated PostgreSQL, broker and network, on seeded schedules: over the log,
//! one session after the other, and over the table, nodes side by side ([`claiming`]).
//!
//! A schedule mixes commits, deliveries, refusals, lost messages and answers, broken connections
//! whose bytes arrive later, crashes and takeovers, foreign messages, poison, keepalives, scans,
//! statements that fail before or after they were executed, answers that are late, locked rows, rows
//! that become visible late or never passed the log, lost slots and purged streams. Everything that
//! the engine decides is decided by the engine; what it asks for is executed here.
//!
//! After every step what is confirmed must be resolved, and a row is marked only if it is
//! published. At the end, healed, everything committed must be stored exactly once and in order,
//! and marked, and the relay grows quiet. Replay one with `REPLAY_SEED=n`.

mod asked;
mod awaited;
mod broker;
mod check;
mod claiming;
mod database;
mod emitting;
mod failed;
mod failing;
mod faults;
mod going_back;
mod leases;
mod marks;
mod meddling;
mod mending;
mod relays;
mod replaying;
mod schedules;
mod sessions;
mod small_worlds;
mod strangers;
mod table;
mod tail;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use outbox::Event;
use pgoutput::Lsn;
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use self::awaited::Kept;
use self::broker::{Flying, Packet, Stored as Message, Taking};
use self::claiming::Claiming;
use self::database::Written;
use self::emitting::Emitted;
use self::faults::{Faults, Foreign};
use self::marks::MarksSeen;
use self::relays::{Job, Relay};
use self::replaying::Replay;
use self::sessions::{Gap, engine, publishing};
use self::table::Table;
use super::*;

const SYSTEM: u64 = 7;
const WINDOW: usize = 16;
const MAX_ATTEMPTS: u32 = 3;

/// How much time passes between two ticks, at most.
const TICK_MILLIS: u64 = 300;

#[derive(Debug, Clone)]
struct Transaction {
    commit_lsn: Lsn,
    end_lsn: Lsn,
    events: Vec<u128>,
}

#[derive(Clone)]
struct World {
    rng: Rng,
    faults: Faults,
    log: Vec<Transaction>,
    table: Table,
    /// Rows from before the slot, which only the scanner brings.
    old_rows: Vec<u128>,
    /// Those that only a later look of the scanner found: their order means nothing.
    late_rows: HashSet<u128>,
    /// Those that the stream had when it went back, and did not have afterwards.
    went_missing: HashSet<u128>,
    /// Those of them behind which a later one of their aggregate may be.
    overtaken: HashSet<u128>,
    /// Those that never passed the log.
    unlogged: HashSet<u128>,
    /// It is written down that the scanner may owe something.
    is_gap_open: bool,
    keys: HashMap<u128, u8>,
    poisoned: HashSet<u128>,
    /// Events of which the log has a row that nothing can be sent of, whatever became of it since.
    unfit: HashSet<u128>,
    /// Events of a subject that the stream takes only now and then.
    picky: HashSet<u128>,
    /// Whether it does not take it now.
    is_picky: bool,
    /// Attempts that the table knows of.
    attempts: HashMap<u128, u32>,
    /// Ever asked to be parked: it may be published all the same if the relay ends before that.
    given_up: HashSet<u128>,
    /// Ever.
    parked: HashSet<u128>,
    /// The dead-letter table: what each waits for, if nothing is wrong with itself.
    dead: BTreeMap<u128, Option<u128>>,
    requeued: HashSet<u128>,
    dropped: HashSet<u128>,
    emitted: Emitted,
    stream: Vec<Message>,
    stored_ids: HashSet<u128>,
    /// One queue for each connection ever made; the last is the relay's present one.
    connections: Vec<VecDeque<Packet>>,
    /// The batches that the broker knows, by relay and number.
    taking: HashMap<(u64, u32), Taking>,
    /// The stream takes none.
    refuses_batches: bool,
    /// Some session worked in keyed mode.
    was_keyed: bool,
    /// The session is over: its successor is to work in keyed mode if there is a reason.
    ends: Option<End>,
    /// The broker's memory of ids begins here in the stream.
    forgotten: usize,
    /// And those of these, which were removed.
    forgotten_ids: HashSet<usize>,
    answers: Vec<(u64, BrokerInput)>,
    slot_confirmed: Lsn,
    /// There is no slot yet.
    awaits_slot: bool,
    kept: Option<Kept>,
    /// Transactions of the log that were seen to be resolved when they were confirmed.
    checked: usize,
    written: Written,
    replays: Vec<Replay>,
    /// The highest sequence that is written down as stored.
    stream_end: u64,
    /// The last event that is written down as stored.
    event: Option<LastEvent>,
    /// Others were stored in the places of what the stream has lost.
    has_grown: bool,
    /// The stream has lost some of that since the whole table was swept.
    lost_end: bool,
    /// Messages of the stream that are gone, by index.
    removed: HashSet<usize>,
    /// Events that may be stored twice: messages were removed while nothing could be counted.
    may_repeat: HashSet<u128>,
    /// A relay said so; or they are the scanner's.
    says_uncounted: bool,
    /// What the engine has asked for, a bit for each effect.
    asked: u64,
    may_rescan: bool,
    lsn: u64,
    next_id: u128,
    now: Duration,
    /// Whose turn it is.
    relay: Relay,
    /// Those beside it. Over the log there is none.
    others: Vec<Relay>,
    claiming: Claiming,
    seen: MarksSeen,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        let old = rng.random_range(0..6);
        let (lsn, mut table) = (100, Table::new(faults.by_watermark));
        table.begin_epoch(Lsn(lsn));
        let written = Written::new(Lsn(lsn));
        let (nothing, tail) = (WrittenDown::nothing(), Tail::default());
        let (dead, tried) = (HashSet::new(), HashMap::new());
        let publishing = publishing(faults, (Lsn::ZERO, Lsn::ZERO), tail, nothing, &dead, &tried);
        let gap = Gap { is_open: true, has_requeued: false, lost_end: false, awaits_slot: false };
        let engine = engine(faults, publishing, &table, gap, written);
        let mut world = Self {
            rng,
            faults,
            log: Vec::new(),
            table,
            old_rows: Vec::new(),
            late_rows: HashSet::new(),
            went_missing: HashSet::new(),
            overtaken: HashSet::new(),
            unlogged: HashSet::new(),
            is_gap_open: true,
            keys: HashMap::new(),
            poisoned: HashSet::new(),
            unfit: HashSet::new(),
            picky: HashSet::new(),
            is_picky: false,
            attempts: HashMap::new(),
            given_up: HashSet::new(),
            parked: HashSet::new(),
            dead: BTreeMap::new(),
            requeued: HashSet::new(),
            dropped: HashSet::new(),
            emitted: Emitted::default(),
            stream: Vec::new(),
            stored_ids: HashSet::new(),
            connections: vec![VecDeque::new()],
            taking: HashMap::new(),
            refuses_batches: false,
            was_keyed: faults.mode == Mode::Keyed,
            ends: None,
            forgotten: 0,
            forgotten_ids: HashSet::new(),
            answers: Vec::new(),
            slot_confirmed: Lsn::ZERO,
            awaits_slot: false,
            kept: None,
            checked: 0,
            written,
            replays: Vec::new(),
            stream_end: 0,
            event: None,
            has_grown: false,
            lost_end: false,
            removed: HashSet::new(),
            may_repeat: HashSet::new(),
            says_uncounted: false,
            asked: 0,
            may_rescan: false,
            lsn,
            next_id: 1,
            now: Duration::ZERO,
            relay: Relay::new(0, engine, Duration::ZERO, 0),
            others: Vec::new(),
            claiming: Claiming::default(),
            seen: MarksSeen::default(),
        };
        world.begin(old);
        world
    }

    /// The slot begins behind these rows, or is yet to be made.
    fn begin(&mut self, old_rows: u32) {
        for _ in 0..old_rows {
            let (id, transaction) = (self.mint(), self.table.begin());
            self.table.insert(id, transaction, true, self.is_filtered(id));
            self.old_rows.push(id);
        }
        self.table.begin_epoch(Lsn(self.lsn));
        if self.faults.waits {
            self.await_slot();
            self.begin_session();
        }
        if self.faults.claims {
            self.begin_nodes();
        }
    }

    /// What the clock of the relay says.
    fn time(&self) -> Duration {
        self.now - self.relay.began
    }

    fn mint(&mut self) -> u128 {
        let id = self.next_id;
        self.next_id += 1;
        let key = self.free_key();
        self.keys.insert(id, key);
        if self.faults.poison && self.rng.random_bool(0.05) {
            self.poisoned.insert(id);
            // Half of the poison is found before sending, the other half by the broker.
            if id.is_multiple_of(2) {
                self.unfit.insert(id);
            }
        }
        if self.faults.picky && self.rng.random_bool(0.1) {
            self.picky.insert(id);
        }
        id
    }

    fn commit(&mut self) {
        let count = *[1, 1, 1, 2, 5].choose(&mut self.rng).expect("not empty");
        let events: Vec<u128> = (0..count).map(|_| self.mint()).collect();
        let transaction = self.table.begin();
        // While there is no log, whoever writes to an aggregate next has seen what was written before.
        let is_visible = self.awaits_slot || !self.faults.hidden || self.rng.random_bool(0.7);
        for id in &events {
            if !self.emits(*id) {
                self.table.insert(*id, transaction, is_visible, self.is_filtered(*id));
            }
        }
        self.log(events);
    }

    /// What a row says by now.
    fn outgoing(&self, id: u128) -> Outgoing {
        self.outgoing_of(id, self.unfit.contains(&id) && self.poisoned.contains(&id))
    }

    /// What the log says for ever.
    fn first_outgoing(&self, id: u128) -> Outgoing {
        self.outgoing_of(id, self.unfit.contains(&id))
    }

    fn outgoing_of(&self, id: u128, is_unfit: bool) -> Outgoing {
        let event = Event {
            id: Uuid::from_u128(id),
            aggregate_type: "t".into(),
            aggregate_id: format!("k{}", self.keys[&id]).into(),
            event_type: "e".into(),
            event_version: 1,
            payload: Bytes::from_static(b"{}"),
            occurred_at: Timestamp::UNIX_EPOCH,
            correlation_id: None,
            causation_id: None,
            headers: None,
        };
        let subject = match is_unfit {
            _ if self.is_filtered(id) => Err(Unpublished::Dropped),
            true => Err(Unpublished::Unfit("illegal".into())),
            false if self.picky.contains(&id) => Ok("picky".into()),
            false => Ok("s".into()),
        };
        let tried = Tried::default();
        Outgoing { event, subject, seq: None, requeued: false, tried, replayed: None }
    }

    fn scanned(&self, id: u128) -> Outgoing {
        let attempts = self.attempts.get(&id).copied().unwrap_or_default();
        let tried = Tried { attempts, pause: Duration::ZERO };
        let requeued = self.table.rows.get(&id).is_some_and(table::Row::is_left_to_scanner);
        Outgoing { requeued, tried, ..self.outgoing(id) }
    }

    fn apply(&mut self, input: impl Into<Input>) {
        self.relay.engine.apply(self.time(), input);
    }

    /// The walsender's next message.
    fn deliver_log(&mut self) {
        let (transaction, part) = self.relay.at;
        let Some(it) = self.log.get(transaction) else { return };
        if !self.relay.engine.wants_log() {
            return;
        }
        if part == 0 && it.end_lsn <= self.slot_confirmed {
            self.relay.at = (transaction + 1, 0);
            return;
        }
        let Transaction { commit_lsn, end_lsn, events } = it.clone();
        self.emit_at_once();
        let input = match part {
            0 => LogInput::Begin { commit_lsn, commit_time_micros: 0 },
            n if n <= events.len() => self.logged(events[n - 1]),
            _ => LogInput::Commit { end_lsn },
        };
        let last = matches!(input, LogInput::Commit { .. });
        self.relay.at = if last { (transaction + 1, 0) } else { (transaction, part + 1) };
        self.apply(input);
    }

    fn keepalive(&mut self) {
        if self.relay.awaits_slot {
            return;
        }
        // The walsender's position: behind everything it has delivered.
        let (transaction, part) = self.relay.at;
        let wal_end = match self.log.get(transaction) {
            Some(it) if part > 0 => it.commit_lsn,
            Some(_) => transaction.checked_sub(1).map_or(Lsn::ZERO, |it| self.log[it].end_lsn),
            None => Lsn(self.lsn), // also what else was written to the log
        };
        self.apply(LogInput::Keepalive { wal_end });
    }

    /// Whether something was handed over.
    fn send(&mut self) -> bool {
        let (generation, time, sent) = (self.relay.generation, self.time(), self.now);
        let packet = if let Some(send) = self.relay.engine.next_send(|| time) {
            if self.is_picky && self.picky.contains(&send.event.id.as_u128()) {
                let index = send.index;
                let refusal = Refusal::Unwelcome("no stream takes it".into());
                self.apply(BrokerInput::Unsendable { index, refusal });
                return true;
            }
            Packet::Message(Flying {
                reply: (generation, send.epoch, send.index),
                id: send.event.id.as_u128(),
                expected: send.expected,
                position: send.position,
                part: send.part,
                sent,
            })
        } else if let Some(end) = self.relay.engine.next_end() {
            Packet::End { generation, end }
        } else {
            return false;
        };
        self.connections[self.relay.connection].push_back(packet);
        true
    }

    fn step(&mut self) {
        if self.faults.claims {
            return self.step_of_nodes();
        }
        if self.faults.waits {
            self.wait_now_and_then();
        }
        match self.rng.random_range(0..100) {
            0..8 => self.commit(),
            8..28 => self.some_times(Self::deliver_log),
            28..46 => self.some_times(|it| _ = it.send()),
            46..62 => self.broker(false),
            62..74 => self.answer(),
            74..86 => self.some_times(|it| it.job(false)),
            86..88 => self.keepalive(),
            88..92 => self.tick(TICK_MILLIS),
            92..94 => self.others(),
            94 => self.break_link(),
            95 if self.faults.slot_loss && self.rng.random_bool(0.2) => self.lose_slot(),
            95 if self.rng.random_bool(0.3) => self.crash(),
            95 => self.taking.clear(), // a change of leader, or ten seconds
            96 if self.foreign_comes() => {
                let taken = self.id_to_take();
                self.stream.push(Message::of_others(taken));
            }
            97 => {
                self.now += Duration::from_secs(3);
                if self.rng.random_bool(0.5) {
                    self.relay.engine.before_sending(self.time()); // it was held up
                }
                self.is_picky = self.rng.random_bool(0.5);
                self.refuses_batches = self.faults.fickle && self.rng.random_bool(0.5);
                self.tick(TICK_MILLIS);
            }
            98 => self.slot_confirmed = self.slot_confirmed.max(self.relay.confirming),
            99 if self.faults.replays && self.rng.random_bool(0.5) => self.replay_now_and_then(),
            99 if self.faults.blocking || self.faults.mends => self.mend_now_and_then(),
            99 => self.unmark_by_hand(),
            _ => {}
        }
        self.effects();
        self.leave_if_drained();
        self.check_confirmed();
    }

    /// In bursts, so that now and then the window is full and much is on its way.
    fn some_times(&mut self, happens: fn(&mut Self)) {
        for _ in 0..*[1, 1, 1, 8].choose(&mut self.rng).expect("not empty") {
            happens(self);
        }
    }

    fn publishing(&self) -> &Publishing {
        self.relay.engine.publishing()
    }

    fn foreign_comes(&mut self) -> bool {
        let sending = !self.publishing().is_idle();
        let quiet = !sending && self.connections.iter().all(VecDeque::is_empty);
        match self.faults.foreign {
            Foreign::Never => false,
            Foreign::BetweenMessages | Foreign::UnderIds => {
                let reads =
                    |it: &Job| matches!(it.effect, Effect::Broker(BrokerEffect::ReadTail { .. }));
                let told = |it: &Input| matches!(it, Input::Broker(BrokerInput::Tail(_)));
                let is_between = quiet
                    && self.answers.is_empty()
                    && !self.relay.jobs.iter().any(reads)
                    && !self.relay.outcomes.iter().any(told);
                // Within a batch nobody could tell what has the id of its next message.
                let is_keyed = self.written.session == Mode::Keyed;
                let sends_none = is_keyed || self.publishing().is_among_others();
                let is_into_none = sends_none && self.old_connections_are_empty();
                let is_under_ids = self.faults.foreign == Foreign::UnderIds;
                is_between || is_into_none && is_under_ids && self.rng.random_bool(0.3)
            }
            Foreign::Always => self.rng.random_bool(0.3),
        }
    }
}
