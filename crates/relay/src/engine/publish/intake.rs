//! What the log and the scanner bring.

use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use super::{Publishing, ScanBatch};
use crate::engine::messages::Ignored;
use crate::engine::messages::{Mode, Resolved};
use crate::engine::notice::Notice;
use crate::engine::request::Request;
use crate::engine::window::{LastPosition, Origin, Outgoing, Tried, Unpublished};
use crate::status::DeadLetterReason;

impl Publishing {
    pub(super) fn logged(&mut self, outgoing: Outgoing, origin: Origin) {
        let (commit_lsn, commit_time_micros, ordinal) = self.log.next_place();
        let event = outgoing.event.id;
        let is_dead = self.dead.contains(&event);
        if self.passed((commit_lsn, ordinal), !is_dead && outgoing.subject.is_ok()) {
            self.log.skip();
            return; // resolved in an earlier session, and marked by it or by the sweeper
        }
        if is_dead {
            self.log.skip();
            return; // resolved by being parked, in an earlier session
        }
        let position = LastPosition { commit_lsn, ordinal, event };
        self.log.received(position);
        self.copies.pacing.live(self.now);
        self.push(outgoing, origin, (commit_lsn, commit_time_micros), Some(position));
    }

    /// A message of the log is passed over.
    pub(super) fn ignore(&mut self, why: Ignored) {
        self.figures.counts.ignored += 1;
        if self.log.ignore(why) {
            self.output.requests.push_back(Request::Tell(Notice::IgnoringMessages { why }));
        }
    }

    /// A batch of rows that the log does not bring, in the order in which they are to be published.
    /// Its number is told by the [`Origin`] of what is resolved.
    pub(crate) fn scanned(&mut self, now: Duration, number: u32, rows: Vec<Outgoing>) {
        self.now = now;
        let (outstanding, logged_before) = (rows.len(), self.log.logged());
        self.scans.push_back(ScanBatch { number, outstanding, logged_before });
        for outgoing in rows {
            if outgoing.requeued {
                // The log may bring the event's first row again, from before it was parked, and
                // does not wait for this one's acknowledgement.
                self.dead.insert(outgoing.event.id);
            }
            // Not looked up when it is sent: by then the log may have brought more, that waits
            // behind it.
            self.push(outgoing, Origin::Scan(number), (Lsn::ZERO, 0), self.log.last_position());
        }
    }

    pub(super) fn push(
        &mut self,
        outgoing: Outgoing,
        origin: Origin,
        at: (Lsn, i64),
        position: Option<LastPosition>,
    ) {
        let stored_at = self.seen.get(&outgoing.event.id);
        let unpublished = outgoing.subject.as_ref().err().cloned();
        if let (None, Some(Unpublished::Dropped)) = (stored_at, &unpublished) {
            return self.dropped(outgoing.event.id, origin, at);
        }
        let tried = match self.tried.is_empty() {
            true => outgoing.tried,
            false => self.tried.remove(&outgoing.event.id).unwrap_or(outgoing.tried),
        };
        let (index, first_of_key) = self.window.push(outgoing, origin, at, position, self.now);
        if origin.is_logged() && unpublished.is_none() {
            self.count(index, stored_at);
        }
        if first_of_key && self.mode == Mode::Keyed {
            self.sending.ready(index);
        }
        if tried != Tried::default() && stored_at.is_none() {
            self.was_tried(index, tried);
        }
        match (stored_at, unpublished) {
            // Also if a route drops it now that did not when it was published.
            (Some(seq), _) => self.note_stored(index, Some(seq), true),
            // Where parking blocks, everything has to wait for its turn.
            (None, Some(Unpublished::Unfit(reason))) if !self.settings.parking_blocks => {
                self.park(index, reason, DeadLetterReason::Unfit);
            }
            // Nothing waits for it, and it for nothing.
            (None, Some(Unpublished::NoEvent(reason))) => {
                self.park(index, reason, DeadLetterReason::Unfit);
            }
            (None, _) => {}
        }
    }

    /// Resolves an event that is not to be published. It does not enter the window: nothing is sent,
    /// so nothing can be waited for.
    fn dropped(&mut self, id: Uuid, origin: Origin, at: (Lsn, i64)) {
        let (commit_lsn, commit_time_micros) = at;
        let dropped = Resolved::somewhere(id);
        self.output.resolved.push(Resolved { origin, commit_lsn, commit_time_micros, ..dropped });
        self.figures.counts.dropped += 1;
        self.scan_resolved(Some(origin));
    }
}
