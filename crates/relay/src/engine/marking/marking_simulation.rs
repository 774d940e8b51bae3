//! Marking against a simulated table, log and stream, on seeded schedules.
//!
//! A schedule mixes transactions whose commits become visible late, statements that fail before or
//! after they were executed, answers that are late, second connections that break, sessions that
//! end, and rows that never passed the log. A row is marked only if it was published; once faults
//! end, every published row is marked, every other one is left to the scanner, and it grows quiet.
//! Replay one with `REPLAY_SEED=n`.

mod marking_schedules;

use std::collections::{HashSet, VecDeque};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::*;
use crate::engine::simulation::{Table, marking_failure};
use crate::engine::{Marked, Origin, Outcome, Verdict};

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

struct World {
    rng: Rng,
    faults: Faults,
    /// Statements fail, and answers are late: until the world is healed.
    is_faulty: bool,
    now: Duration,
    next_row: u128,
    log_end: u64,
    table: Table,
    unlogged: HashSet<u128>,
    /// Events that the log has yet to bring.
    waiting: VecDeque<(u128, Lsn)>,
    /// Published events, in the order of the stream.
    stream: Vec<Stored>,
    published: HashSet<u128>,
    marking: Marking,
    session_began: Duration,
    /// Effects that were begun and have not come back.
    under_way: Vec<MarkingEffect>,
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
        lost_end: false,
    })
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let (log_end, mut table) = (100, Table::new(faults.by_watermark));
        table.begin_epoch(Lsn(log_end));
        Self {
            rng: Rng::seed_from_u64(seed),
            faults,
            is_faulty: faults.failing,
            now: Duration::ZERO,
            next_row: 1,
            log_end,
            unlogged: HashSet::new(),
            waiting: VecDeque::new(),
            stream: Vec::new(),
            published: HashSet::new(),
            marking: marking(faults, table.swept.clone()),
            table,
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
        let (transaction, count) = (self.table.begin(), self.rng.random_range(1..4));
        self.log_end += 10;
        let is_logged = !self.faults.unlogged || self.rng.random_bool(0.9);
        // Of a row that is not visible for a while nobody can tell whether the log had it.
        let is_visible = !is_logged || self.rng.random_bool(0.7);
        for _ in 0..count {
            self.table.insert(self.next_row, transaction, is_visible, false);
            match is_logged {
                true => self.waiting.push_back((self.next_row, Lsn(self.log_end))),
                false => _ = self.unlogged.insert(self.next_row),
            }
            self.next_row += 1;
        }
    }

    fn become_visible(&mut self) {
        let hidden: Vec<u64> = self.table.hidden().collect();
        if let Some(transaction) = hidden.choose(&mut self.rng) {
            self.table.show(Some(*transaction));
        }
    }

    /// The next events of the log are published.
    fn publish(&mut self) {
        for _ in 0..self.rng.random_range(1..8) {
            let Some((id, commit_lsn)) = self.waiting.pop_front() else { return };
            self.published.insert(id);
            let (id, seq) = (Uuid::from_u128(id), self.stream.len() as u64 + 1);
            self.stream.push(Stored { id, seq, commit_lsn });
            let resolved = Resolved {
                id,
                seq: Some(seq),
                origin: Origin::Log,
                commit_lsn,
                commit_time_micros: 0,
                acked: true,
            };
            self.marking.queue(self.now(), &resolved);
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
        self.marking = marking(self.faults, self.table.swept.clone());
    }

    fn turn(&mut self) {
        let (now, confirmed) = (self.now(), self.confirmed());
        let mut effects = Effects::new();
        self.marking.advance(now, confirmed, 0, false, &mut effects);
        self.marking.observe_if_due(now, self.stream.len() as u64, &mut effects);
        self.begin(effects);
    }

    fn begin(&mut self, effects: Effects) {
        for effect in effects {
            let Effect::Marking(effect) = effect else { panic!("not of marking: {effect:?}") };
            let is_calm = !self.faults.failing && !self.faults.unlogged;
            assert!(!is_calm || !matches!(effect, MarkingEffect::Seek { .. }), "sought in vain");
            match effect {
                MarkingEffect::CloseSecondWriter | MarkingEffect::NoteSweep => {}
                MarkingEffect::TakeWatermark => {
                    self.watermarks += 1;
                    self.under_way.push(effect);
                }
                MarkingEffect::Mark { .. }
                | MarkingEffect::OpenSecondWriter
                | MarkingEffect::StoreWatermark(_)
                | MarkingEffect::SweepOn { .. }
                | MarkingEffect::ReadStreamBack { .. }
                | MarkingEffect::Seek { .. }
                | MarkingEffect::MarkSwept { .. } => self.under_way.push(effect),
            }
        }
        let is_sweep = |it: &&MarkingEffect| {
            !matches!(it, MarkingEffect::Mark { .. } | MarkingEffect::OpenSecondWriter)
        };
        assert!(self.under_way.iter().filter(is_sweep).count() <= 1, "one watermark at a time");
        let marks =
            self.under_way.iter().filter(|it| matches!(it, MarkingEffect::Mark { .. })).count();
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
        let failed = marking_failure(&effect);
        let outcome = is_executed.then(|| self.execute(effect));
        self.tell(outcome.filter(|_| !fails).unwrap_or(failed));
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "other parts' outcomes end the test")]
    fn tell(&mut self, outcome: Outcome) {
        let (mut effects, now) = (Effects::new(), self.now());
        match outcome {
            Outcome::Marked { statement, marked } => {
                let marked = marked.as_ref().map(|it| (it.rows, &*it.without_row));
                self.marking.marked(now, statement, marked);
            }
            Outcome::SecondWriter(is_open) => self.marking.second_opened(now, is_open),
            Outcome::Watermark(watermark) => self.marking.observed(watermark),
            Outcome::Unmarked(found) => self.marking.found(now, found, &mut effects),
            Outcome::StreamBack { found, stored, is_whole } => {
                self.marking.stream_read(now, found, &stored, is_whole, &mut effects);
            }
            Outcome::Swept(swept) => _ = self.marking.swept(now, swept, &mut effects),
            outcome => panic!("not of marking: {outcome:?}"),
        }
        self.begin(effects);
    }

    fn execute(&mut self, effect: MarkingEffect) -> Outcome {
        match effect {
            MarkingEffect::Mark { statement, marks } => {
                let (rows, _, without_row) = self.table.mark(&marks);
                Outcome::Marked { statement, marked: Some(Marked { rows, without_row }) }
            }
            MarkingEffect::OpenSecondWriter => Outcome::SecondWriter(true),
            MarkingEffect::TakeWatermark => {
                Outcome::Watermark(Some(self.table.take_watermark(self.log_end)))
            }
            MarkingEffect::StoreWatermark(pass) => Outcome::Unmarked(Some(self.table.store(&pass))),
            MarkingEffect::SweepOn { pass, found } => {
                let rows = self.table.unmarked(&pass);
                Outcome::Unmarked(Some(Found { rows, ..found }))
            }
            MarkingEffect::ReadStreamBack { found, resolved_before } => {
                let from = resolved_before.unwrap_or_default();
                let stored = self.stream.iter().filter(|it| it.commit_lsn >= from).copied();
                let (stored, is_whole) = (stored.collect(), resolved_before.is_some());
                Outcome::StreamBack { found, stored, is_whole }
            }
            MarkingEffect::Seek { found, verdict, .. } => self.carry_out(found, &verdict, true),
            MarkingEffect::MarkSwept { found, verdict } => self.carry_out(found, &verdict, false),
            MarkingEffect::CloseSecondWriter | MarkingEffect::NoteSweep => {
                panic!("not under way: {effect:?}")
            }
        }
    }

    fn carry_out(&mut self, found: Found, verdict: &Verdict, seeks: bool) -> Outcome {
        assert!(seeks || verdict.unlogged.is_empty(), "published without the stream being read");
        let published = &self.published;
        let is_published = |id: u128| published.contains(&id);
        Outcome::Swept(Some(self.table.carry_out(found, verdict, is_published, is_published)))
    }

    /// Everything is visible, and the session ends.
    fn stop(&mut self) {
        self.table.show(None);
        loop {
            let mut effects = Effects::new();
            self.marking.finish(self.now());
            self.marking.advance(self.now(), self.confirmed(), 0, true, &mut effects);
            self.begin(effects);
            if self.marking.is_idle() {
                break;
            }
            self.finish_one();
        }
    }

    /// Faults end; everything that can be done is done.
    fn heal(&mut self) {
        self.is_faulty = false;
        self.table.show(None);
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
            for (id, row) in &self.table.rows {
                let is_left = self.unlogged.contains(id) && row.is_left_to_scanner();
                assert!(row.is_marked || is_left, "row {id} is forgotten");
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
