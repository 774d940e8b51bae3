//! Which events the stream has, where it has lost their messages.
//!
//! In fenced mode nothing but events of the log, in their order, is stored behind the place that is
//! written down. JetStream gives no sequence twice, also after a purge. So as many events behind the
//! place are published as the stream has given out sequences since, whatever became of the messages.
//!
//! An event takes a sequence if it has a subject and is no dead letter: what a route drops, and what
//! can have no subject, is told by the same configuration in the next session. Before anything else
//! takes a sequence, or gives one up, the place loses its own, durably: a scan or a replay begins, the
//! stream has another writer's message, an event that was sent is parked, the mode or the
//! configuration has changed. It gets one again when nothing can be stored late of what was sent then.

use std::collections::HashSet;

use pgoutput::Lsn;

use super::Publishing;
use crate::engine::messages::{Mode, NotedPlace};
use crate::engine::notice::Notice;
use crate::engine::request::Request;
use crate::engine::tail_messages::Tail;
use crate::engine::window::{Origin, Stage};
use crate::engine::written_down::{Place, WrittenDown};
use crate::status::DeadLetterReason;

/// An event that committed so much later than the place was written down, by PostgreSQL's clock, was
/// not published by whoever wrote it: that is done several times a second while events come.
const WRITTEN_WITHIN_MICROS: i64 = 5_000_000;

/// The count at the start of a session, until the log has brought all that may be published.
#[derive(Debug, Clone)]
struct Counting {
    before: Lsn,
    committed_until_micros: i64,
    /// Where the stream ended when the session began, and where messages are that it still has.
    last_seq: u64,
    present: HashSet<u64>,
    /// The sequence that the next event has, if it is stored. `None` if nothing can be counted.
    next: Option<u64>,
    /// Counted events with their sequences: what follows may contradict the count.
    held: Vec<(u64, u64)>,
    counted: u64,
    uncertain: u64,
}

/// What is counted, and what is known by that.
#[derive(Debug, Clone, Default)]
pub(super) struct Counted {
    /// What the stream has of events whose messages it has lost, until that is known.
    counting: Option<Counting>,
    /// What is counted committed before this.
    counted_before: Lsn,
    /// What committed before this and could not be counted may be in the stream already, although its
    /// message is gone: the broker answers with its first sequence as long as it knows the id.
    uncounted_before: Lsn,
    /// Events before this place are resolved, whatever the stream has of them.
    passed_before: Option<(Lsn, u32)>,
}

/// What is known of the place that is written down.
#[derive(Debug, Clone, Default)]
pub(super) struct PlaceWritten {
    /// It may have a sequence.
    has_seq: bool,
    /// It must have none before anything is sent.
    is_void: bool,
    /// The one that is being written has none.
    voids: bool,
    /// The next one has a sequence only from here on.
    seq_from: u64,
}

impl Counting {
    /// `None` if the stream has lost nothing that the log may bring again.
    fn new(written: &WrittenDown, tail: &Tail) -> Option<Self> {
        let seq = written.place.and_then(|it| it.seq);
        if !written.needs_end(tail) {
            return None;
        }
        let is_ours = written.is_same && !written.is_beyond(tail) && !tail.has_markers;
        let seq = seq.filter(|it| *it >= tail.last_foreign && is_ours);
        let stored = tail.stored.iter().map(|it| it.seq);
        Some(Self {
            before: written.before,
            committed_until_micros: written.at_micros.saturating_add(WRITTEN_WITHIN_MICROS),
            last_seq: tail.last_seq,
            present: stored.filter(|it| seq.is_some_and(|seq| *it > seq)).collect(),
            next: seq.map(|it| it + 1),
            held: Vec::new(),
            counted: 0,
            uncertain: 0,
        })
    }

    /// Whether the next event may be stored, by the count.
    fn is_open(&self) -> bool {
        self.next.is_some_and(|next| next <= self.last_seq)
    }

    fn assert_holds(&self) {
        let ascend = |one: &(u64, u64), next: &(u64, u64)| one.0 < next.0 && one.1 < next.1;
        assert!(self.held.is_sorted_by(ascend), "events are counted out of order");
        let held = self.held.last().map(|it| it.1);
        assert!(held < self.next || held.is_none(), "an event is counted twice");
    }

    /// Takes in the next event that takes a sequence. Says whether the count holds.
    fn add(&mut self, index: u64, stored_at: Option<u64>, committed_micros: i64) -> bool {
        let Some(next) = self.next.filter(|next| *next <= self.last_seq) else {
            self.uncertain += u64::from(self.next.is_none() && stored_at.is_none());
            return true;
        };
        let agrees = match stored_at {
            Some(seq) => seq == next,
            None => {
                let is_older = committed_micros <= self.committed_until_micros;
                is_older && !self.present.contains(&next)
            }
        };
        if agrees {
            self.next = Some(next + 1);
            self.held.extend(stored_at.is_none().then_some((index, next)));
        } else {
            self.uncertain += u64::from(stored_at.is_none());
        }
        agrees
    }
}

impl Publishing {
    pub(super) fn begin_counting(&mut self, written: &WrittenDown, tail: &Tail) {
        let seq = written.place.and_then(|it| it.seq);
        self.written.has_seq = seq.is_some();
        self.counted.counting = Counting::new(written, tail);
        if let Some(counting) = &self.counted.counting {
            // A stream that ends earlier lacks what was written down as published.
            let place = written.place.filter(|_| !written.is_beyond(tail));
            self.counted.passed_before = place.map(|it| (it.commit_lsn, it.ordinal));
            match counting.next {
                Some(_) => self.counted.counted_before = counting.before,
                None => self.counted.uncounted_before = counting.before,
            }
        }
        if !written.is_same {
            // What a predecessor sent by other rules may be stored until then.
            self.void_place(tail.last_seq + 1);
        } else if self.mode == Mode::Keyed
            || seq.is_some_and(|it| it < tail.last_foreign || it > tail.last_seq)
        {
            self.void_place(0);
        }
        self.end_counting_if_over(Lsn::ZERO);
    }

    /// From now on the place that is written down says nothing of sequences. It gets one again that
    /// is not below `seq_from`.
    pub(super) fn void_place(&mut self, seq_from: u64) {
        self.written.seq_from = self.written.seq_from.max(seq_from);
        self.written.is_void |= self.written.has_seq;
    }

    /// An event that was sent gets another end. It may be stored all the same, until another is.
    pub(super) fn gives_up_sequence(&mut self, index: u64, of_log: bool) {
        let Some(entry) = self.window.get(index) else { return };
        let seq_from = entry.sent.expected.max(self.stream.known_seq()) + 1;
        match of_log && entry.parked_for != DeadLetterReason::Unfit {
            true => self.void_place(seq_from),
            false => self.written.seq_from = self.written.seq_from.max(seq_from),
        }
    }

    pub(super) fn assert_counted(&self) {
        if let Some(counting) = &self.counted.counting {
            counting.assert_holds();
            assert!(counting.next.is_some() || counting.held.is_empty(), "no count, and some held");
        }
        let is_void = self.written.is_void;
        assert!(!is_void || self.written.has_seq, "a place without a sequence is to lose it");
    }

    /// Whether the place's sequence has to go, before anything else is done.
    pub(crate) fn voids_place(&self) -> bool {
        self.written.is_void
    }

    /// The place is being written down.
    pub(crate) fn writes_place(&mut self, place: NotedPlace) {
        let seq = match place {
            NotedPlace::At(place) => place.seq,
            NotedPlace::Unchanged | NotedPlace::Kept => return self.written.voids = false,
            NotedPlace::Uncounted => None,
        };
        self.written.has_seq |= seq.is_some();
        self.written.voids = seq.is_none();
    }

    /// It is on the disk, or nobody knows.
    pub(crate) fn place_written(&mut self, is_written: bool) {
        if is_written && self.written.voids {
            (self.written.has_seq, self.written.is_void) = (false, false);
        }
        self.written.voids = false;
    }

    /// Whether more has to be known before anything is confirmed.
    pub(crate) fn is_counting(&self) -> bool {
        self.counted.counting.as_ref().is_some_and(Counting::is_open)
    }

    /// Whether an entry waits until the count is believed.
    pub(super) fn is_held(&self, index: u64) -> bool {
        let held = self.counted.counting.as_ref().and_then(|it| it.held.first());
        self.written.is_void || held.is_some_and(|(first, _)| *first <= index)
    }

    /// Whether rows that the log does not bring may be looked for: not before everything is
    /// `confirmed` that the next session would have to count once more.
    pub(crate) fn may_scan(&self, confirmed: Lsn) -> bool {
        confirmed >= self.counted.counted_before
    }

    /// The log brings an event that was resolved in an earlier session. Says whether it is.
    pub(super) fn passed(&mut self, place: (Lsn, u32), takes_sequence: bool) -> bool {
        let is_resolved = place.0 < self.settings.resolved_before;
        let is_passed = place < self.passed_before();
        if let Some(counting) = self.counted.counting.as_mut().filter(|it| it.is_open())
            && is_resolved
            && !is_passed
            && takes_sequence
        {
            counting.next = counting.next.map(|it| it + 1);
            self.end_counting_if_over(Lsn::ZERO);
        }
        is_resolved || is_passed
    }

    /// The log has brought an event that takes a sequence, and was not resolved for all that is known.
    pub(super) fn count(&mut self, index: u64, stored_at: Option<u64>) {
        let committed_micros = self.log.transaction().1;
        let Some(counting) = &mut self.counted.counting else { return };
        let was_certain = counting.uncertain == 0;
        if !counting.add(index, stored_at, committed_micros) {
            self.distrust_count();
        }
        let is_uncertain = self.counted.counting.as_ref().is_some_and(|it| it.uncertain > 0);
        if was_certain && is_uncertain {
            self.output.requests.push_back(Request::Tell(Notice::Uncounted));
        }
        if !self.window.has_room(self.settings.limits) {
            self.believe_count(); // nothing comes any more that could contradict it
        }
        self.end_counting_if_over(Lsn::ZERO);
    }

    /// The log has come so far.
    pub(super) fn end_counting_if_over(&mut self, received: Lsn) {
        let Some(counting) = &self.counted.counting else { return };
        let (is_open, is_complete) = (counting.is_open(), received >= counting.before);
        if is_open && is_complete {
            self.distrust_count(); // there were more messages than events
        } else if counting.next.is_some() && !is_open {
            self.believe_count();
        } else if !is_complete {
            return;
        }
        if let Some(Counting { counted, uncertain, .. }) = self.counted.counting.take()
            && counted + uncertain > 0
        {
            let notice = Notice::Counted { counted, uncertain };
            self.output.requests.push_back(Request::Tell(notice));
        }
    }

    fn distrust_count(&mut self) {
        let Some(counting) = &mut self.counted.counting else { return };
        counting.uncertain += counting.held.len() as u64;
        (counting.next, counting.held) = (None, Vec::new());
        self.counted.uncounted_before = counting.before;
        self.void_place(0);
    }

    fn believe_count(&mut self) {
        let Some(counting) = &mut self.counted.counting else { return };
        let held = std::mem::take(&mut counting.held);
        counting.counted += held.len() as u64;
        for (index, seq) in held {
            let stage = self.window.get(index).map(|it| it.stage);
            if matches!(stage, Some(Stage::Waiting | Stage::Deferred)) {
                self.note_stored(index, Some(seq), true);
            }
        }
    }

    /// What is to be written down. `None` as long as that tells less than what may stand there.
    pub(crate) fn place(&self) -> Option<Place> {
        let (received, (commit_lsn, _, ordinal)) =
            (self.progress.received(), self.log.transaction());
        let mut unresolved = self.window.iter_unresolved().map(|(_, entry)| entry);
        let first = unresolved.find(|it| it.origin != Origin::Replay);
        let (commit_lsn, ordinal) = match first {
            None => (received, 0).max((commit_lsn, ordinal)).max(self.passed_before()),
            Some(entry) if entry.origin.is_logged() => entry.position?.place(),
            Some(_) => return None,
        };
        if !self.link.is_up() || commit_lsn == Lsn::ZERO {
            return None;
        }
        let is_alone = self.scans.is_empty() && self.has_no_copies() && !self.written.is_void;
        let is_ours = self.mode == Mode::Fenced && self.figures.counts.foreign == 0 && is_alone;
        if !is_ours {
            return Some(Place { commit_lsn, ordinal, seq: None });
        }
        if self.log.has_stored_beyond((commit_lsn, ordinal)) {
            return None; // until the log has repeated what the stream has
        }
        if first.is_none() && self.counted.counting.is_some() {
            return None; // until the log has repeated what the stream may have lost
        }
        let seq = match first.map(|it| (it.stage, it.parked_for)) {
            Some((Stage::Sent, _)) => first.map(|it| it.sent.expected),
            Some((Stage::Parking, why)) if why != DeadLetterReason::Unfit => None,
            Some((Stage::Parking, _)) => return None,
            _ if self.stream.in_flight() > 0 => return None,
            _ => Some(self.stream.expected()),
        };
        let is_known = commit_lsn >= self.counted.uncounted_before;
        let seq = seq.filter(|it| is_known && *it >= self.written.seq_from);
        Some(Place { commit_lsn, ordinal, seq })
    }

    fn passed_before(&self) -> (Lsn, u32) {
        self.counted.passed_before.unwrap_or_default()
    }

    /// Whether the stream has, or may come to have, nothing of the log but what is `confirmed`.
    pub(crate) fn has_nothing_beyond(&self, confirmed: Lsn) -> bool {
        let (commit_lsn, _, brought) = self.log.transaction();
        let is_within = brought > 0 && commit_lsn >= confirmed;
        let has_passed = self.passed_before() <= (confirmed, 0);
        self.is_idle() && !is_within && has_passed && !self.log.has_stored_beyond((confirmed, 0))
    }
}

#[cfg(test)]
mod tests;
