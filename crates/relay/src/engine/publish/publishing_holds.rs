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
        let is_settled = in_flight == 0 && !self.is_batch_open();
        if self.mode == Mode::Fenced && self.link.is_up() && is_settled {
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
        let (mut sent, mut copies, mut deferred) = (0, 0, 0);
        for (_, it) in self.window.iter_unresolved() {
            sent += usize::from(it.stage == Stage::Sent);
            copies += usize::from(it.origin == Origin::Replay);
            deferred += usize::from(it.stage == Stage::Deferred);
        }
        assert_eq!(sent, self.stream.in_flight(), "in flight");
        assert_eq!(copies, self.copies.unresolved, "copies");
        for scan in &self.scans {
            let of_scan = |it: &super::Entry| it.origin == Origin::Scan(scan.number);
            let left = self.window.iter_unresolved().filter(|(_, it)| of_scan(it)).count();
            assert_eq!(left, scan.outstanding, "rows of batch {} unresolved", scan.number);
        }
        let is_tried = deferred == 0 || self.retries.next().is_some();
        assert!(is_tried, "an event is deferred, and nothing tries it again");
        if self.link.is_up() && sent > 0 {
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
                let is_waiting = |it: &super::Entry| it.stage == Stage::Waiting;
                let mut rest = self.window.iter_unresolved().skip_while(|it| !is_waiting(it.1));
                let early = rest.find(|(_, it)| it.stage == Stage::Sent).map(|it| it.0);
                assert_eq!(early, None, "sent before an entry that waits");
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
