//! What holds at the end of each turn: every part's own statements, and those that two parts share.
//!
//! They are checked in debug builds and in every simulation, also where that is built for release.

use pgoutput::Lsn;

use super::core::Core;
use super::log_parts::LogParts;
use super::{Engine, Parts};

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
        self.core.publishing.assert_holds();
        match &self.parts {
            Parts::Log(log) => log.assert_holds(&self.core),
            Parts::Claims(claims) => claims.assert_holds(&self.core.publishing),
        }
    }
}

impl LogParts {
    fn assert_holds(&self, core: &Core) {
        self.marking.assert_holds(core.publishing.confirmed());
        self.backfill.assert_holds();
        self.checkpoint.assert_holds();
        self.assert_confirmed(core);
        self.assert_parts_agree(core);
    }

    /// Invariant A: `confirmed ≤ resolved ≤ received`.
    fn assert_confirmed(&self, core: &Core) {
        let (confirmed, resolved) = (self.checkpoint.confirmed(), core.publishing.confirmed());
        assert!(confirmed <= resolved, "confirmed {confirmed} beyond what is resolved, {resolved}");
        let received = core.publishing.received();
        assert!(resolved <= received, "resolved {resolved} beyond what was received, {received}");
    }

    /// What one part writes down, another one does too.
    fn assert_parts_agree(&self, core: &Core) {
        let (publishing, backfill) = (&core.publishing, &self.backfill);
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
        if core.is_draining() || self.awaits_slot {
            assert!(
                !self.wants_log(core),
                "a session that is to end, or has no slot, reads the log"
            );
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
