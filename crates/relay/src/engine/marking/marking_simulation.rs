//! Marking against a simulated table, log and stream, on seeded schedules.
//!
//! A schedule mixes transactions whose commits become visible late, statements that fail before or
//! after they were executed, answers that are late, second connections that break, sessions that
//! end, and rows that never passed the log. A row is marked only if it was published; once faults
//! end, every published row is marked, every other one is left to the scanner, and it grows quiet.
//! Replay one with `REPLAY_SEED=n`.

mod marking_schedules;

use std::collections::{BTreeMap, HashSet, VecDeque};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::*;
use crate::engine::{Age, Origin, Unmarked, Verdict};

/// After so long without faults nothing is left to do.
const HEALED_AFTER: Duration = Duration::from_mins(4);

#[derive(Clone, Copy)]
struct Faults {
    /// Statements fail, and answers are late.
    failing: bool,
    /// Rows come that never passed the log.
    unlogged: bool,
    by_watermark: bool,
    is_indexed: bool,
    /// Marks for which there is room.
    waiting_max: usize,
}

#[derive(Clone)]
struct Row {
    transaction: u64,
    commit_lsn: Lsn,
    is_logged: bool,
    is_visible: bool,
    is_marked: bool,
    is_left_to_scanner: bool,
}

/// What a snapshot saw, by the text that stands for it.
#[derive(Clone)]
struct Snapshot {
    /// Every transaction before had ended, and none from `end` on had begun.
    oldest_running: u64,
    end: u64,
    visible: HashSet<u128>,
}

struct World {
    rng: StdRng,
    faults: Faults,
    /// Statements fail, and answers are late: until the world is healed.
    is_faulty: bool,
    now: Duration,
    next_transaction: u64,
    next_row: u128,
    log_end: u64,
    rows: BTreeMap<u128, Row>,
    /// Events that the log has yet to bring.
    waiting: VecDeque<(u128, Lsn)>,
    /// Published events, in the order of the stream.
    stream: Vec<Stored>,
    published: HashSet<u128>,
    snapshots: Vec<Snapshot>,
    /// What a next session goes by.
    swept: Option<Watermark>,
    marking: Marking,
    session_began: Duration,
    /// Effects that were begun and have not come back.
    under_way: Vec<Effect>,
    watermarks: u64,
}

fn marking(faults: Faults, swept: Option<Watermark>) -> Marking {
    Marking::new(MarkingStart {
        batching: Batching {
            marks: 5,
            interval: Duration::from_millis(50),
            waiting_max: faults.waiting_max,
        },
        by_watermark: faults.by_watermark,
        swept,
        whole_swept: None,
        is_indexed: faults.is_indexed,
    })
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        // What was there when the slot was created is the scanner's.
        let empty = Snapshot { oldest_running: 10, end: 10, visible: HashSet::new() };
        let swept = Some(Watermark { snapshot: "0".to_owned(), lsn: Lsn(100) });
        Self {
            rng: StdRng::seed_from_u64(seed),
            faults,
            is_faulty: faults.failing,
            now: Duration::ZERO,
            next_transaction: 10,
            next_row: 1,
            log_end: 100,
            rows: BTreeMap::new(),
            waiting: VecDeque::new(),
            stream: Vec::new(),
            published: HashSet::new(),
            snapshots: vec![empty],
            marking: marking(faults, swept.clone()),
            swept,
            session_began: Duration::ZERO,
            under_way: Vec::new(),
            watermarks: 0,
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => self.commit(),
            25..45 => self.publish(),
            45..55 => self.become_visible(),
            55..85 => self.finish_one(),
            85..98 => self.pass_time(Duration::from_millis(300)),
            98 if self.faults.failing => self.begin_session(),
            _ => self.pass_time(Duration::from_secs(3)),
        }
        self.turn();
    }

    /// A transaction commits: the log has it. It becomes visible later where it waits for a standby.
    fn commit(&mut self) {
        let (transaction, count) = (self.next_transaction, self.rng.random_range(1..4));
        self.next_transaction += 1;
        self.log_end += 10;
        let is_logged = !self.faults.unlogged || self.rng.random_bool(0.9);
        // Of a row that is not visible for a while nobody can tell whether the log had it.
        let is_visible = !is_logged || self.rng.random_bool(0.7);
        for _ in 0..count {
            let row = Row {
                transaction,
                commit_lsn: Lsn(self.log_end),
                is_logged,
                is_visible,
                is_marked: false,
                is_left_to_scanner: false,
            };
            if is_logged {
                self.waiting.push_back((self.next_row, row.commit_lsn));
            }
            self.rows.insert(self.next_row, row);
            self.next_row += 1;
        }
    }

    fn become_visible(&mut self) {
        let hidden: Vec<u128> =
            self.rows.iter().filter(|(_, it)| !it.is_visible).map(|(id, _)| *id).collect();
        if hidden.is_empty() {
            return;
        }
        let id = hidden[self.rng.random_range(0..hidden.len())];
        let transaction = self.rows[&id].transaction;
        for row in self.rows.values_mut().filter(|it| it.transaction == transaction) {
            row.is_visible = true;
        }
    }

    /// The next events of the log are published.
    fn publish(&mut self) {
        for _ in 0..self.rng.random_range(1..8) {
            let Some((id, commit_lsn)) = self.waiting.pop_front() else { return };
            self.published.insert(id);
            let (id, seq) = (Uuid::from_u128(id), self.stream.len() as u64 + 1);
            self.stream.push(Stored { id, seq, commit_lsn });
            let settled = Settled {
                id,
                seq: Some(seq),
                origin: Origin::Log,
                commit_lsn,
                commit_time_micros: 0,
                acked: true,
            };
            self.marking.queue(self.now(), &settled);
        }
    }

    /// Up to where every logged event is published.
    fn confirmed(&self) -> Lsn {
        let next = self.waiting.front().map_or(self.log_end + 1, |(_, commit_lsn)| commit_lsn.0);
        Lsn(next - 1)
    }

    /// Since the session began.
    fn now(&self) -> Duration {
        self.now.saturating_sub(self.session_began)
    }

    fn pass_time(&mut self, most: Duration) {
        self.now += most.mul_f64(self.rng.random_range(0.0..1.0));
    }

    /// Whatever was under way is executed or not, and nobody hears of it.
    fn begin_session(&mut self) {
        for effect in std::mem::take(&mut self.under_way) {
            if self.rng.random_bool(0.5) {
                let _ = self.execute(effect);
            }
        }
        self.session_began = self.now;
        self.marking = marking(self.faults, self.swept.clone());
    }

    fn turn(&mut self) {
        let (now, confirmed) = (self.now(), self.confirmed());
        let mut effects = Effects::new();
        self.marking.advance(now, confirmed, false, &mut effects);
        self.marking.observe_if_due(now, self.stream.len() as u64, &mut effects);
        self.begin(effects);
    }

    fn begin(&mut self, effects: Effects) {
        for effect in effects {
            let is_calm = !self.faults.failing && !self.faults.unlogged;
            assert!(!is_calm || !matches!(effect, Effect::Seek { .. }), "sought in vain");
            match effect {
                Effect::CloseSecondWriter | Effect::NoteSweep => {}
                Effect::TakeWatermark => {
                    self.watermarks += 1;
                    self.under_way.push(effect);
                }
                _ => self.under_way.push(effect),
            }
        }
        let is_sweep = |it: &&Effect| !matches!(it, Effect::Mark { .. } | Effect::OpenSecondWriter);
        assert!(self.under_way.iter().filter(is_sweep).count() <= 1, "one watermark at a time");
        let marks = self.under_way.iter().filter(|it| matches!(it, Effect::Mark { .. })).count();
        assert!(marks <= 3, "two statements on the first connection, one on the second");
    }

    /// One effect that is under way comes back.
    fn finish_one(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let at = if self.is_faulty { self.rng.random_range(0..self.under_way.len()) } else { 0 };
        let effect = self.under_way.remove(at);
        let fails = self.is_faulty && self.rng.random_bool(0.2);
        let is_executed = !fails || self.rng.random_bool(0.5);
        let failure = failure(&effect);
        let outcome = is_executed.then(|| self.execute(effect));
        match outcome {
            Some(outcome) if !fails => self.tell(outcome),
            _ => self.tell(failure),
        }
    }

    fn tell(&mut self, outcome: Outcome) {
        let (mut effects, now) = (Effects::new(), self.now());
        match outcome {
            Outcome::Marked(statement, marked) => {
                let marked = marked.as_ref().map(|(rows, without)| (*rows, without.as_slice()));
                self.marking.marked(now, statement, marked);
            }
            Outcome::Second(is_open) => self.marking.second_opened(now, is_open),
            Outcome::Watermark(watermark) => self.marking.observed(watermark),
            Outcome::Found(found) => self.marking.found(now, found, &mut effects),
            Outcome::Stream(found, stored, is_whole) => {
                self.marking.stream_read(now, found, &stored, is_whole, &mut effects);
            }
            Outcome::Swept(swept) => {
                self.marking.swept(now, swept, &mut effects);
            }
        }
        self.begin(effects);
    }

    fn execute(&mut self, effect: Effect) -> Outcome {
        match effect {
            Effect::Mark { statement, marks } => {
                let (mut rows, mut without_row) = (0, Vec::new());
                for settled in marks {
                    match self.rows.get_mut(&settled.id.as_u128()) {
                        Some(row) if row.is_visible => {
                            rows += u64::from(!row.is_marked);
                            row.is_marked = true;
                        }
                        _ => without_row.push(settled),
                    }
                }
                Outcome::Marked(statement, Some((rows, without_row)))
            }
            Effect::OpenSecondWriter => Outcome::Second(true),
            Effect::TakeWatermark => Outcome::Watermark(Some(self.snapshot())),
            Effect::StoreWatermark(pass) => {
                let transaction = self.next_transaction;
                self.next_transaction += 1;
                self.swept.clone_from(&pass.swept);
                Outcome::Found(Some(self.look(&pass, transaction)))
            }
            Effect::SweepOn { pass, found } => {
                let rows = self.look(&pass, found.transaction).rows;
                Outcome::Found(Some(Found { rows, ..found }))
            }
            Effect::ReadStreamBack { found, resolved_before } => {
                let stored = self.stream.iter();
                let stored =
                    stored.filter(|it| resolved_before.is_none_or(|lsn| it.commit_lsn >= lsn));
                let stored = stored.map(copy).collect();
                Outcome::Stream(found, stored, resolved_before.is_some())
            }
            Effect::Seek { found, verdict, .. } => self.carry_out(found, &verdict, true),
            Effect::MarkSwept { found, verdict } => self.carry_out(found, &verdict, false),
            _ => unreachable!("not under way"),
        }
    }

    fn snapshot(&mut self) -> Watermark {
        let hidden = self.rows.values().filter(|it| !it.is_visible).map(|it| it.transaction);
        let snapshot = Snapshot {
            oldest_running: hidden.min().unwrap_or(self.next_transaction),
            end: self.next_transaction,
            visible: self.rows.iter().filter(|(_, it)| it.is_visible).map(|(id, _)| *id).collect(),
        };
        self.snapshots.push(snapshot);
        Watermark { snapshot: (self.snapshots.len() - 1).to_string(), lsn: Lsn(self.log_end) }
    }

    fn seen_by(&self, watermark: &Watermark) -> &Snapshot {
        &self.snapshots[watermark.snapshot.parse::<usize>().expect("a number")]
    }

    fn look(&self, pass: &Pass, transaction: u64) -> Found {
        let snapshot = self.seen_by(&pass.watermark);
        let swept = pass.swept.as_ref().map(|it| self.seen_by(it));
        let age = |row: &Row, id: &u128| match swept {
            Some(it) if it.visible.contains(id) && row.transaction < it.oldest_running => {
                Age::Swept
            }
            Some(it) if row.transaction >= it.end => Age::Later,
            _ => Age::Unknown,
        };
        let is_open = |(id, it): &(&u128, &Row)| {
            let is_young = swept.is_none_or(|swept| it.transaction >= swept.oldest_running);
            let is_in_range = pass.range == SweepRange::Whole || is_young;
            let is_open = !it.is_marked && !it.is_left_to_scanner && it.is_visible;
            is_open && is_in_range && snapshot.visible.contains(id)
        };
        let unmarked = |(id, row): (&u128, &Row)| Unmarked {
            id: Uuid::from_u128(*id),
            is_dropped: false,
            age: age(row, id),
        };
        let rows = match self.faults.by_watermark {
            true => Vec::new(),
            false => self.rows.iter().filter(is_open).map(unmarked).collect(),
        };
        Found { rows, transaction, oldest_running: snapshot.oldest_running }
    }

    fn carry_out(&mut self, found: Found, verdict: &Verdict, seeks: bool) -> Outcome {
        assert!(seeks || verdict.unlogged.is_empty(), "published without the stream being read");
        let (mut marked, mut unlogged) = (0, 0);
        let settled = verdict.settled.iter().map(|it| it.id);
        for id in settled.chain(verdict.trusted.iter().copied()) {
            marked += self.mark(id);
        }
        for id in &verdict.unlogged {
            if self.published.contains(&id.as_u128()) {
                marked += self.mark(*id);
            } else if let Some(row) = self.rows.get_mut(&id.as_u128()) {
                row.is_left_to_scanner = true;
                unlogged += 1;
            }
        }
        Outcome::Swept(Some(Swept { found, marked, unlogged, suspected: verdict.suspected }))
    }

    fn mark(&mut self, id: Uuid) -> u64 {
        let id = id.as_u128();
        assert!(self.published.contains(&id), "row {id} is marked and not published");
        self.rows
            .get_mut(&id)
            .map_or(0, |row| u64::from(!std::mem::replace(&mut row.is_marked, true)))
    }

    /// Faults end; everything that can be done is done.
    fn heal(&mut self) {
        self.is_faulty = false;
        for row in self.rows.values_mut() {
            row.is_visible = true;
        }
        let healed_at = self.now;
        while self.now < healed_at + HEALED_AFTER {
            self.now += Duration::from_millis(300);
            self.publish();
            self.turn();
            self.finish_one();
        }
    }

    fn check_end(&mut self) {
        if !self.faults.by_watermark {
            for (id, row) in &self.rows {
                assert!(
                    row.is_marked || row.is_left_to_scanner,
                    "row {id} is forgotten: {}",
                    row.is_logged
                );
            }
        }
        let (watermarks, from) = (self.watermarks, self.now);
        while self.now < from + Duration::from_mins(10) {
            self.now += Duration::from_millis(900);
            self.turn();
            self.finish_one();
        }
        let idle = self.watermarks - watermarks;
        assert!(idle <= 11, "{idle} watermarks in ten minutes of nothing");
    }
}

/// What came of an effect.
enum Outcome {
    Marked(Statement, Option<(u64, Vec<Settled>)>),
    Second(bool),
    Watermark(Option<Watermark>),
    Found(Option<Found>),
    Stream(Found, Vec<Stored>, bool),
    Swept(Option<Swept>),
}

fn failure(effect: &Effect) -> Outcome {
    match effect {
        Effect::Mark { statement, .. } => Outcome::Marked(*statement, None),
        Effect::OpenSecondWriter => Outcome::Second(false),
        Effect::TakeWatermark => Outcome::Watermark(None),
        Effect::StoreWatermark(_) | Effect::SweepOn { .. } | Effect::ReadStreamBack { .. } => {
            Outcome::Found(None)
        }
        _ => Outcome::Swept(None),
    }
}

fn copy(stored: &Stored) -> Stored {
    Stored { id: stored.id, seq: stored.seq, commit_lsn: stored.commit_lsn }
}
