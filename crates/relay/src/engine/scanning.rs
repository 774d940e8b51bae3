//! When rows are scanned that the log does not bring, and what becomes of them.

use std::time::Duration;

use super::backfill::Scene;
use super::core::Core;
use super::input::{ScanMarks, ScanRead};
use super::log_parts::LogParts;

impl LogParts {
    pub(super) fn scan_if_due(&mut self, core: &mut Core, now: Duration) {
        if self.backfill.watch(now, &mut core.effects) {
            core.publishing.scan_ended(false);
        }
        let publishing = &core.publishing;
        // Nothing that is doubted comes before what the log waits for.
        let is_awaited = self.backfill.holds_the_log_back();
        let may_scan = is_awaited || publishing.may_scan(self.checkpoint.confirmed());
        let scene = Scene {
            is_behind: self.marking.is_behind(publishing.confirmed()),
            is_draining: core.is_draining(),
            is_blocking: publishing.is_blocking(),
            is_idle: publishing.is_quiet(),
            may_scan: may_scan && publishing.is_half_empty(),
        };
        self.backfill.begin_if_due(now, scene, &mut core.effects);
    }

    pub(super) fn scan_read(&mut self, core: &mut Core, now: Duration, read: ScanRead) {
        let ScanRead { process, rows, blocked, seen } = read;
        if let Some(blocked) = blocked {
            if core.publishing.is_blocking() && !self.backfill.holds_the_log_back() {
                // An event was parked since the scan was begun: events behind it are in the window
                // by now, and the table may not know it.
                return self.backfill.overtaken(now, &mut core.effects);
            }
            core.publishing.block_these(now, blocked);
        }
        if rows.is_empty() || core.is_draining() {
            return self.backfill.read_to_end(!rows.is_empty(), &mut core.effects);
        }
        let with_tail = seen.is_some();
        if let Some(seen) = seen {
            core.publishing.looked(now, seen);
        }
        let batch = self.backfill.read_batch(now, process, with_tail, &mut core.effects);
        core.publishing.scanned(now, batch, rows);
    }

    pub(super) fn scan_marked(
        &mut self,
        core: &mut Core,
        now: Duration,
        batches: usize,
        marked: ScanMarks,
    ) {
        if marked.owed > 0 {
            self.owed_marks.some(now);
        }
        self.backfill.marked(marked.rows + marked.owed);
        core.publishing.scan_marked(now, batches);
    }
}
