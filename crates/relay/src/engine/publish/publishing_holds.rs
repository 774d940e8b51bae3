//! What holds of a publishing session after each turn.

use super::{Mode, Publishing, SCANS_UNMARKED_MAX, Stage};
use crate::engine::assertions::is_checked_whole;
use crate::engine::window::Origin;

impl Publishing {
    pub(in crate::engine) fn assert_holds(&self) {
        let (unresolved, in_flight) = (self.window.unresolved(), self.stream.in_flight());
        assert!(in_flight <= unresolved, "{in_flight} in flight, {unresolved} unresolved");
        assert!(self.copies.unresolved <= unresolved, "more copies than entries");
        assert!(self.scans.len() <= SCANS_UNMARKED_MAX.max(64), "too many scans are unmarked");
        let numbers = self.scans.iter().map(|it| it.number);
        assert!(numbers.is_sorted(), "batches of scans are marked in their order");
        self.progress.assert_holds(self.window.first(), self.window.end());
        let stored = self.log.stored_position();
        let last = self.log.last_position();
        assert!(stored.is_none() || last.is_some(), "the stream has what no log brought");
        if self.mode == Mode::Fenced && self.link.is_up() && in_flight == 0 {
            let (expected, known) = (self.stream.expected(), self.stream.known_seq());
            assert!(expected >= known, "{expected} is expected, and {known} is in the stream");
        }
        self.assert_counted();
        if self.link.is_up() {
            self.batching.assert_holds(self.window.end(), self.stream.expected());
        }
        if is_checked_whole(unresolved) {
            self.window.assert_holds();
            self.assert_entries();
        }
    }

    fn assert_entries(&self) {
        let count = |is: fn(&super::Entry) -> bool| {
            self.window.iter_unresolved().filter(|(_, it)| is(it)).count()
        };
        assert_eq!(count(|it| it.stage == Stage::Sent), self.stream.in_flight(), "in flight");
        assert_eq!(count(|it| it.origin == Origin::Replay), self.copies.unresolved, "copies");
        for scan in &self.scans {
            let of_scan = |it: &super::Entry| it.origin == Origin::Scan(scan.number);
            let left = self.window.iter_unresolved().filter(|(_, it)| of_scan(it)).count();
            assert_eq!(left, scan.outstanding, "rows of batch {} unresolved", scan.number);
        }
        if count(|it| it.stage == Stage::Deferred) > 0 {
            assert!(
                self.retries.next().is_some(),
                "an event is deferred, and nothing tries it again"
            );
        }
        if self.link.is_up() {
            self.assert_order();
        }
    }

    /// Invariant B, as far as the window goes.
    fn assert_order(&self) {
        let sent = || self.window.iter_unresolved().filter(|(_, it)| it.stage == Stage::Sent);
        match self.mode {
            Mode::Fenced => {
                let expected = sent().map(|(_, it)| it.sent.expected);
                assert!(expected.is_sorted_by(|one, next| one < next), "sent out of order");
                let mut waiting = self.window.iter_unresolved();
                let first = waiting.find(|(_, it)| it.stage == Stage::Waiting).map(|it| it.0);
                let last = sent().last().map(|it| it.0);
                let is_kept = first.is_none_or(|first| last.is_none_or(|last| last < first));
                assert!(is_kept, "entry {last:?} was sent before {first:?}");
            }
            Mode::Keyed => {
                let is_behind = sent().find(|(_, it)| !it.is_head).map(|it| it.0);
                assert_eq!(is_behind, None, "sent before an earlier event of its aggregate");
            }
        }
    }

    /// Batches of scans that are not marked.
    pub(in crate::engine) fn scans_unmarked(&self) -> usize {
        self.scans.len()
    }

    /// Entries that are to be parked, and are not yet.
    pub(in crate::engine) fn parking(&self) -> usize {
        self.window.iter_unresolved().filter(|(_, it)| it.stage == Stage::Parking).count()
    }
}
