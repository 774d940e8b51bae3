//! When rows are scanned that the log does not bring, and what becomes of them.

use std::time::Duration;

use super::backfill::Scene;
use super::messages::Input;
use super::outcome::{ScanMarks, ScanRead};
use super::{Decides, Engine};

impl Engine {
    pub(super) fn scan_if_due(&mut self, now: Duration) {
        if self.backfill.watch(now, &mut self.effects) {
            self.publishing.scan_ended(false);
        }
        let publishing = &self.publishing;
        // Nothing that is doubted comes before what the log waits for.
        let is_awaited = self.backfill.holds_the_log_back();
        let may_scan = is_awaited || publishing.may_scan(self.checkpoint.confirmed());
        let scene = Scene {
            is_behind: self.marking.is_behind(publishing.confirmed()),
            is_draining: self.is_draining(),
            is_blocking: publishing.is_blocking(),
            is_idle: publishing.is_quiet(),
            may_scan: may_scan && publishing.is_half_empty(),
        };
        self.backfill.begin_if_due(now, scene, &mut self.effects);
    }

    pub(super) fn scan_read(&mut self, now: Duration, read: ScanRead) {
        let ScanRead { process, rows, blocked, seen } = read;
        if let Some(blocked) = blocked {
            if self.publishing.is_blocking() && !self.backfill.holds_the_log_back() {
                // An event was parked since the scan was begun: events behind it are in the window
                // by now, and the table may not know it.
                return self.backfill.overtaken(now, &mut self.effects);
            }
            self.publishing.apply(now, Input::Blocked(blocked));
        }
        if rows.is_empty() || self.is_draining() {
            return self.backfill.read_to_end(!rows.is_empty(), &mut self.effects);
        }
        let with_tail = seen.is_some();
        if let Some(seen) = seen {
            self.publishing.apply(now, Input::Seen(seen));
        }
        let (batch, notice) = self.backfill.read_batch(now, process, with_tail);
        self.tell_scan(notice);
        self.publishing.apply(now, Input::Scanned { batch, rows });
    }

    pub(super) fn scan_marked(&mut self, now: Duration, batches: usize, marked: ScanMarks) {
        if marked.owed > 0 {
            self.owed_marks.some(now);
        }
        self.backfill.marked(marked.rows + marked.owed);
        self.publishing.apply(now, Input::ScanMarked { batches });
    }
}
