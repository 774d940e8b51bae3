//! Events that are published once more, among those that are published for the first time.
//!
//! They go through the same window, so that the fence holds. None of them holds anything up: few are
//! on their way at a time, and one that the stream does not take is given up at once.

use pgoutput::Lsn;
use uuid::Uuid;

use super::{Link, Publishing};
use crate::engine::messages::Resolved;
use crate::engine::window::{Origin, Outgoing, Stage, Unpublished};

/// Copies on their way at a time. An event that comes in goes behind so many.
const UNDER_WAY_MAX: usize = 64;

#[derive(Debug, Default, Clone)]
pub(super) struct Copies {
    /// Copies that are not resolved.
    unresolved: usize,
    /// Copies that the stream did not take, and why.
    failed: Vec<(Uuid, String)>,
}

impl Publishing {
    /// How many more copies may be brought now: none while the broker is away, or while many events
    /// wait.
    pub(crate) fn room_to_replay(&self) -> usize {
        let live = self.window.unresolved() - self.copies.unresolved;
        let has_room = self.window.has_room(self.settings.limits);
        match self.link.state {
            Link::Up if has_room && live * 2 < self.settings.limits.events => {
                UNDER_WAY_MAX.saturating_sub(self.copies.unresolved)
            }
            _ => 0,
        }
    }

    /// The highest sequence known to be in the stream.
    pub(crate) fn last_seq(&self) -> u64 {
        self.stream.known_seq
    }

    /// Copies that could not be stored, with the reasons, since the last call.
    pub(crate) fn take_unreplayed(&mut self) -> Vec<(Uuid, String)> {
        std::mem::take(&mut self.copies.failed)
    }

    /// Whether every event that was to be published for the first time is resolved.
    pub(crate) fn is_quiet(&self) -> bool {
        self.window.unresolved() == self.copies.unresolved
    }

    pub(super) fn replayed(&mut self, outgoing: Outgoing) {
        if outgoing.subject == Err(Unpublished::Dropped) {
            let reason = "a route drops it".to_owned();
            return self.copies.failed.push((outgoing.event.id, reason));
        }
        // Before it is brought: it may be resolved by that.
        self.copies.unresolved += 1;
        self.push(outgoing, Origin::Replay, (Lsn::ZERO, 0), self.log.last_position);
    }

    pub(super) fn is_replayed(&self, index: u64) -> bool {
        self.window.get(index).is_some_and(|it| it.origin == Origin::Replay)
    }

    pub(super) fn replay_stored(&mut self, index: u64, seq: Option<u64>) {
        let Some(entry) = self.window.get(index) else { return };
        let (id, origin, commit_lsn) = (entry.outgoing.event.id, Origin::Replay, Lsn::ZERO);
        let (commit_time_micros, acked) = (0, true);
        self.resolved.push(Resolved { id, seq, origin, commit_lsn, commit_time_micros, acked });
        self.counts.replayed += 1;
        self.resolve(index);
    }

    pub(super) fn replay_failed(&mut self, index: u64, reason: String) {
        if let Some(entry) = self.window.get(index) {
            self.copies.failed.push((entry.outgoing.event.id, reason));
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
        }
    }
}
