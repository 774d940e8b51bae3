//! Events that are published once more, among those that are published for the first time.
//!
//! They go through the same window, so that expected sequences hold. None of them holds anything up: few are
//! on their way at a time, and one that the stream does not take is given up at once.

use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use super::Publishing;
use super::copy_rests::CopyRests;
use crate::engine::messages::Resolved;
use crate::engine::window::{Origin, Outgoing, Stage, Unpublished, WindowLimits};

/// Copies on their way at a time. An event that comes in goes behind so many.
const UNDER_WAY_MAX: usize = 64;

#[derive(Debug, Default, Clone)]
pub(super) struct Copies {
    /// Copies that are not resolved.
    pub(super) unresolved: usize,
    /// Copies that the stream did not take, and why.
    failed: Vec<(Uuid, String)>,
    pub(super) pacing: CopyRests,
}

impl Publishing {
    /// Whether another copy may be brought now: not while the broker is away, while events or their
    /// bytes take half of the window, while new events have their turn, or while rows of a scan are
    /// unmarked. After a crash a bounded reading of the tail has to find those.
    pub(crate) fn has_room_to_replay(&self, now: Duration) -> bool {
        let WindowLimits { events, bytes } = self.settings.limits;
        let half = WindowLimits { events: events.div_ceil(2), bytes: bytes / 2 };
        let most = UNDER_WAY_MAX.min((events / 4).max(1));
        self.link.is_up()
            && self.scans.is_empty()
            && self.copies.unresolved < most
            && self.copies.pacing.may_go(now)
            && self.window.has_room(half)
    }

    /// When copies may go that rest until then.
    pub(crate) fn copies_rest_until(&self, now: Duration) -> Option<Duration> {
        self.copies.pacing.rests_until(now)
    }

    /// The highest sequence known to be in the stream.
    pub(crate) fn last_seq(&self) -> u64 {
        self.stream.known_seq()
    }

    /// Copies that could not be stored, with the reasons, since the last call.
    pub(crate) fn take_unreplayed(&mut self) -> Vec<(Uuid, String)> {
        std::mem::take(&mut self.copies.failed)
    }

    /// Whether no copy is on its way.
    pub(in crate::engine) fn has_no_copies(&self) -> bool {
        self.copies.unresolved == 0
    }

    /// Whether every event that was to be published for the first time is resolved.
    pub(crate) fn is_quiet(&self) -> bool {
        self.window.unresolved() == self.copies.unresolved
    }

    /// An event that is published once more.
    pub(crate) fn replayed(&mut self, now: Duration, outgoing: Outgoing) {
        self.now = now;
        if outgoing.subject == Err(Unpublished::Dropped) {
            let reason = "a route drops it".to_owned();
            return self.copies.failed.push((outgoing.event.id, reason));
        }
        // Before it is brought: it may be resolved by that.
        self.copies.unresolved += 1;
        self.copies.pacing.goes(self.now, outgoing.event.payload.len());
        self.push(outgoing, Origin::Replay, (Lsn::ZERO, 0), self.log.last_position());
    }

    pub(super) fn is_replayed(&self, index: u64) -> bool {
        self.window.get(index).is_some_and(|it| it.origin == Origin::Replay)
    }

    pub(super) fn replay_stored(&mut self, index: u64, seq: Option<u64>) {
        let Some(entry) = self.window.get(index) else { return };
        let copy = Resolved::somewhere(entry.outgoing.event.id);
        let copy = Resolved { seq, origin: Origin::Replay, acked: true, ..copy };
        self.output.resolved.push(copy);
        self.figures.counts.replayed += 1;
        self.resolve(index);
    }

    pub(super) fn replay_failed(&mut self, index: u64, reason: String) {
        if let Some(entry) = self.window.get(index) {
            self.copies.failed.push((entry.outgoing.event.id, reason));
            self.gives_up_sequence(index, false);
            self.resolve(index);
        }
    }

    /// An entry is about to be resolved.
    pub(super) fn replay_resolved(&mut self, index: u64) {
        if self.copies.unresolved > 0
            && let Some(entry) = self.window.get(index)
            && entry.origin == Origin::Replay
            && entry.stage != Stage::Resolved
        {
            self.copies.unresolved -= 1;
            if self.copies.unresolved == 0 {
                self.copies.pacing.ended(self.now);
            }
        }
    }
}
