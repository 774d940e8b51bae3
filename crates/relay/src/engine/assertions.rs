//! What holds at the end of each turn: every part's own statements, and those that two parts share.
//!
//! They are checked in debug builds and in every simulation, also where that is built for release.

use pgoutput::Lsn;

use super::{Decides, Engine};

/// Whether statements are checked at all.
pub(super) const ARE_CHECKED: bool = cfg!(any(debug_assertions, test));

/// Whether each of `entries` is looked at. A debug build that is under load would stand still.
pub(super) const fn is_checked_whole(entries: usize) -> bool {
    cfg!(test) || entries <= 64
}

impl Engine {
    pub(super) fn assert_holds(&self) {
        if !ARE_CHECKED {
            return;
        }
        self.publishing.assert_holds();
        self.marking.assert_holds(self.publishing.confirmed());
        self.backfill.assert_holds();
        self.checkpoint.assert_holds();
        self.assert_confirmed();
        self.assert_parts_agree();
    }

    /// Invariant A: `confirmed ≤ resolved ≤ received`.
    fn assert_confirmed(&self) {
        let (confirmed, resolved) = (self.checkpoint.confirmed(), self.publishing.confirmed());
        assert!(confirmed <= resolved, "confirmed {confirmed} beyond what is resolved, {resolved}");
        let received = self.publishing.received();
        assert!(resolved <= received, "resolved {resolved} beyond what was received, {received}");
    }

    /// What one part writes down, another one does too.
    fn assert_parts_agree(&self) {
        let (publishing, backfill) = (&self.publishing, &self.backfill);
        let (ours, theirs) = (publishing.scans_unmarked(), backfill.unmarked());
        assert_eq!(ours, theirs, "batches of scans that the window and the scanner have unmarked");
        assert!(
            ours == 0 || !backfill.is_clear(),
            "rows of a scan are unmarked, and the gap filled"
        );
        if self.replaying.is_clear() {
            assert!(publishing.has_no_copies(), "copies are under way, and no replay is");
        }
        if self.awaits_slot {
            let received = publishing.received();
            assert_eq!(received, Lsn::ZERO, "a log is read, and there is no slot");
        }
        if self.is_draining() || self.awaits_slot {
            assert!(!self.wants_log(), "a session that is to end, or has no slot, reads the log");
        }
        if is_checked_whole(publishing.unresolved()) {
            let (asked, parking) = (self.parking.len(), publishing.parking());
            assert_eq!(
                asked, parking,
                "events that are to be parked, and entries that wait for it"
            );
        }
    }
}
