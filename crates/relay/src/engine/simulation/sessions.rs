//! How sessions end and begin: crashes, stops, lost slots, purged streams.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use pgoutput::Lsn;
use rand::RngExt;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::database::Written;
use super::schedules::CALM;
use super::table::Table;
use super::{Faults, MAX_ATTEMPTS, Relay, WINDOW, World};
use crate::engine::*;

const SCAN_INTERVAL: Duration = Duration::from_secs(2);

impl World {
    /// The process dies, or another takes its place; its messages may still arrive, and its
    /// statements may still be executed.
    pub(super) fn crash(&mut self) {
        // Also those whose turn to be parked had not come.
        let given_up: Vec<Uuid> = self.publishing().given_up().collect();
        self.given_up.extend(given_up.into_iter().map(|it| it.as_u128()));
        if self.rng.random_bool(0.5) {
            let rng = &mut self.rng;
            self.connections[self.relay.connection].retain(|_| rng.random_bool(0.5));
        }
        let for_long = self.rng.random_bool(0.3);
        if for_long || self.has_late_rows() {
            self.connections.iter_mut().for_each(VecDeque::clear);
        }
        if for_long {
            self.forgotten = self.stream.len();
        }
        self.connections.push(VecDeque::new());
        self.leave_jobs();
        if self.faults.purges && self.rng.random_bool(0.3) {
            self.stop();
        }
        if self.faults.purges && self.rng.random_bool(0.7) {
            self.remove_messages();
        }
        if self.faults.goes_back && self.rng.random_bool(0.3) {
            self.go_back();
        }
        match self.awaits_slot {
            true => self.finish_epoch(),
            false => self.find_slot(),
        }
        self.begin_session();
    }

    pub(super) fn begin_session(&mut self) {
        self.seen.resolved.clear();
        let watermark = self.table.watermark.as_ref().map_or(Lsn::ZERO, |it| it.lsn);
        let resolved_before =
            if self.awaits_slot { Lsn(u64::MAX) } else { self.slot_confirmed.max(watermark) };
        self.take_back_lost(resolved_before);
        let (tail, stream_is_whole) = self.tail_back(resolved_before, WINDOW);
        let seq = self.written.place.and_then(|it| it.seq).filter(|_| !self.is_gap_open);
        let place = self.written.place.map(|it| Place { seq, ..it });
        let dead = self.dead.keys().chain(&self.requeued).copied().collect();
        let is_left = matches!(self.ends.take(), Some(End::LeaveFence(_)));
        let mut faults = self.faults;
        // As `run.rs`: what needs the fence begins in it again.
        if is_left && !self.faults.by_watermark || self.refuses_batches {
            (faults.mode, self.was_keyed) = (Mode::Keyed, true);
        }
        if self.awaits_slot {
            self.relay = self.session_without_slot(faults);
            return;
        }
        self.written.session = faults.mode;
        let is_same = place.is_some() && self.written.rules == Some(faults.mode);
        if self.is_gap_open {
            self.let_rescan();
        }
        // A scan may have brought what the log brings again: to count on from its place is in vain.
        let is_unsure = seq.is_none() || !is_same || !self.went_missing.is_empty();
        if !stream_is_whole && is_unsure {
            self.let_repeat(place);
        }
        let noted = |place| {
            let rules = self.written.rules.map(|it| it as i64);
            ResolvedPlace { place, at_micros: 0, rules }
        };
        let rules = faults.mode as i64;
        let mut written = WrittenDown::of(place.map(noted), rules, stream_is_whole);
        if written.needs_end(&tail) {
            written.before = Lsn(self.lsn);
        }
        let last_event = LastEvent::later(tail.last, self.event);
        let publishing = publishing(
            faults,
            (resolved_before, Lsn(self.lsn)),
            tail,
            written,
            &dead,
            &self.attempts,
        );
        let has_requeued = self.requeued.iter().any(|id| self.waits_for_scan(*id));
        let (is_open, lost_end) = (self.is_gap_open, self.lost_end);
        let gap = Gap { is_open, has_requeued, lost_end, awaits_slot: false };
        let engine = engine(self.faults, publishing, &self.table, gap, self.written);
        self.relay = Relay { last_event, ..self.next_relay(engine) };
    }

    /// What the relay that ends has under way is executed or not.
    pub(super) fn leave_jobs(&mut self) {
        for job in std::mem::take(&mut self.relay.jobs) {
            if self.faults.failing && self.rng.random_bool(0.5) {
                let _ = self.execute(job.effect);
            }
        }
    }

    /// The session that follows the present one, over the newest connection.
    pub(super) fn next_relay(&self, engine: Engine) -> Relay {
        let generation = self.others.iter().map(|it| it.generation).max().unwrap_or_default();
        let generation = generation.max(self.relay.generation) + 1;
        Relay::new(generation, engine, self.now, self.connections.len() - 1)
    }

    /// The relay is asked to stop, and does as `Replication::close`.
    fn stop(&mut self) {
        let (confirmed, place) =
            self.relay.engine.last_position(self.slot_confirmed).expect("a log");
        self.stream_end = self.stream_end.max(self.publishing().last_seq());
        self.note_event(self.relay.last_event);
        self.slot_confirmed = confirmed;
        self.written.note(place);
        self.written.end = confirmed;
    }

    /// Messages go: old ones, as by an operator's hand or by age, those of some subjects, or all but
    /// the newest of each.
    fn remove_messages(&mut self) {
        let kept = *[0, 0, 1, 5].choose(&mut self.rng).expect("not empty");
        let (end, of_keys) = (self.stream.len(), self.rng.random_range(0..16_u8));
        let way = self.rng.random_range(0..3);
        let mut newest = HashSet::new();
        for at in (0..end).rev() {
            let key = self.stream[at].id.and_then(|it| self.keys.get(&it)).copied().unwrap_or(0);
            let goes = match way {
                0 => at + kept < end,
                1 => of_keys & (1 << key) > 0,
                _ => !newest.insert(key),
            };
            if goes {
                self.removed.insert(at);
            }
        }
        // A broker that was started anew knows no ids, and nothing of what old connections carried.
        if self.rng.random_bool(0.5) {
            self.forgotten = end;
            self.connections.iter_mut().for_each(VecDeque::clear);
            self.taking.clear();
        }
    }

    /// Nothing tells what the stream has lost: what may have been published comes again.
    fn let_repeat(&mut self, place: Option<Place>) {
        let from = place.map_or((Lsn::ZERO, 0), |it| (it.commit_lsn, it.ordinal));
        let logged = self.log.iter().filter(|it| it.end_lsn > self.slot_confirmed);
        let logged =
            logged.flat_map(|it| (0..).zip(&it.events).map(|(n, id)| ((it.commit_lsn, n), *id)));
        let behind = logged.filter(|(at, _)| *at >= from).map(|(_, id)| id).collect();
        self.may_repeat.extend(self.removed_of(behind));
    }

    /// The scan of a gap brings what has no mark, and the stream does not say that it was published
    /// where the message was removed, be it long before.
    fn let_rescan(&mut self) {
        let unmarked = self.table.rows.iter().filter(|it| !it.1.is_marked);
        let scanned = self.removed_of(unmarked.map(|it| *it.0).collect());
        self.may_rescan |= !scanned.is_empty();
        self.may_repeat.extend(scanned);
    }

    /// Those of which the stream has lost the message.
    fn removed_of(&self, mut ids: Vec<u128>) -> Vec<u128> {
        let there: HashSet<u128> = self.ids_in_stream().collect();
        ids.retain(|id| self.stored_ids.contains(id) && !there.contains(id));
        ids
    }

    /// The relay ends, and its successor makes the slot anew, where the log ends now or later.
    pub(super) fn lose_slot(&mut self) {
        self.finish_epoch();
        self.relay.jobs.clear();
        match self.faults.waits {
            true => self.await_slot(),
            false => self.begin_epoch(),
        }
        self.crash();
    }

    /// Marks what the stream has, before the scanner is to look.
    pub(super) fn finish_epoch(&mut self) {
        for (id, row) in &mut self.table.rows {
            if row.is_visible && !row.is_marked && self.stored_ids.contains(id) {
                row.is_marked = true;
                row.seq =
                    self.stream.iter().zip(1..).find(|it| it.0.id == Some(*id)).map(|it| it.1);
            }
        }
        let dead = &self.dead;
        self.table.rows.retain(|id, _| !dead.contains_key(id));
        self.stream_end = self.stream_end.max(self.stream.len() as u64); // it was read for that
    }

    /// A slot is there, and begins where the log ends now.
    pub(super) fn begin_epoch(&mut self) {
        let lost = self.log.iter().filter(|it| it.end_lsn > self.slot_confirmed);
        let left = |id: &u128| {
            !self.dead.contains_key(id) && !self.old_rows.contains(id) && !self.is_emitted(*id)
        };
        let rows: Vec<u128> = lost.flat_map(|it| it.events.clone()).filter(left).collect();
        self.old_rows.extend(rows);
        self.lose_emitted();
        self.lsn += 1;
        self.slot_confirmed = Lsn(self.lsn);
        self.written = Written::new(Lsn(self.lsn));
        self.table.begin_epoch(Lsn(self.lsn));
        self.is_gap_open = true;
    }

    /// A row appears that only the scanner can bring, while the log is followed.
    ///
    /// Not while a predecessor's messages may still arrive: its expected sequences hold only as long
    /// as the same events are sent again in the same order.
    pub(super) fn unmark_by_hand(&mut self) {
        if self.old_connections_are_empty() && self.rng.random_bool(0.5) {
            let row = self.mint();
            self.table.come_back(row, self.is_filtered(row));
            self.old_rows.push(row);
            self.late_rows.insert(row);
        }
    }

    /// A row with a number of its own, of which the log knows nothing.
    pub(super) fn insert_unlogged(&mut self) {
        if self.old_connections_are_empty() {
            let (row, transaction) = (self.mint(), self.table.begin());
            self.table.insert(row, transaction, true, self.is_filtered(row));
            self.unlogged.insert(row);
            self.old_rows.push(row);
            self.late_rows.insert(row);
        }
    }

    pub(super) fn old_connections_are_empty(&self) -> bool {
        self.connections.iter().rev().skip(1).all(VecDeque::is_empty)
    }

    /// Whether the event was requeued, and has no mark yet.
    fn waits_for_scan(&self, id: u128) -> bool {
        let is_unmarked = self.table.rows.get(&id).is_some_and(|it| !it.is_marked);
        self.requeued.contains(&id) && is_unmarked
    }

    fn has_late_rows(&self) -> bool {
        let mut late = self.late_rows.iter().chain(&self.requeued);
        late.any(|id| self.table.rows.get(id).is_some_and(|it| !it.is_marked))
    }
}

pub(super) fn publishing(
    faults: Faults,
    (resolved_before, log_end): (Lsn, Lsn),
    tail: Tail,
    written: WrittenDown,
    dead: &HashSet<u128>,
    attempts: &HashMap<u128, u32>,
) -> Publishing {
    let tried = |(id, attempts): (&u128, &u32)| {
        (Uuid::from_u128(*id), Tried { attempts: *attempts, pause: Duration::ZERO })
    };
    // So that claims wait for room, too.
    let events = if faults.claims { WINDOW / 2 - 2 } else { WINDOW };
    Publishing::new(Start {
        written,
        mode: faults.mode,
        tail,
        dead: dead.iter().map(|id| Uuid::from_u128(*id)).collect(),
        tried: attempts.iter().map(tried).collect(),
        seed: 1,
        settings: Settings {
            limits: WindowLimits { events, bytes: 1 << 20 },
            ack_timeout: Duration::from_secs(2),
            resolved_before,
            log_end,
            stays_fenced: faults.by_watermark,
            parking_blocks: faults.blocking,
            max_attempts: MAX_ATTEMPTS,
        },
    })
}

/// What the scanner owes when a session begins.
pub(super) struct Gap {
    pub(super) is_open: bool,
    pub(super) has_requeued: bool,
    pub(super) lost_end: bool,
    pub(super) awaits_slot: bool,
}

/// As `Replication::open` builds it.
pub(super) fn engine(
    faults: Faults,
    publishing: Publishing,
    table: &Table,
    gap: Gap,
    written: Written,
) -> Engine {
    let ranges = ScanRanges::new(faults.is_indexed, gap.is_open, None);
    let scan_first = gap.is_open || faults.blocking || gap.has_requeued;
    Engine::of_log(LogStart {
        publishing,
        marking: Marking::new(MarkingStart {
            batching: Batching {
                marks: 5,
                interval: Duration::from_millis(50),
                waiting_max: faults.marks_waiting_max,
            },
            by_watermark: faults.by_watermark,
            swept: table.swept.clone(),
            whole_swept: None,
            is_indexed: faults.is_indexed,
            lost_end: gap.lost_end,
        }),
        backfill: match gap.awaits_slot {
            true => Backfill::without_slot(),
            false => Backfill::new(scan_first, ranges, gap.is_open, SCAN_INTERVAL),
        },
        replaying: Replaying::new(faults.replays && !gap.awaits_slot),
        checkpoint: Checkpoint::new(written.end, 1),
        awaits_slot: gap.awaits_slot,
        wal_limit: None,
        until: None,
    })
}

/// The stream may have events that the session has not come to: the earlier place tells more.
#[test]
fn a_stop_before_the_count_is_complete_keeps_the_place() {
    let world = World::new(0, CALM);
    let stop = |stream_is_whole| {
        let written = WrittenDown {
            place: Some(Place { commit_lsn: Lsn(10), ordinal: 0, seq: Some(5) }),
            at_micros: 0,
            is_same: true,
            stream_is_whole,
            before: Lsn(1_000),
        };
        let (none, tail) = (HashSet::new(), Tail::ending_at(7));
        let publishing =
            publishing(CALM, (Lsn(10), Lsn(u64::MAX)), tail, written, &none, &HashMap::new());
        let gap = Gap { is_open: false, has_requeued: false, lost_end: false, awaits_slot: false };
        let engine = engine(CALM, publishing, &world.table, gap, Written::new(Lsn(20)));
        engine.last_position(Lsn(10)).expect("a log")
    };
    assert_eq!(stop(false), (Lsn(10), NotedPlace::Kept), "two events may be stored");
    let told = NotedPlace::At(Place { commit_lsn: Lsn(10), ordinal: 0, seq: None });
    assert_eq!(stop(true), (Lsn(10), told), "the stream has all that it had");
}
