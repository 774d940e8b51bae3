//! Leaves in the stream what would take the room of others, and reads it when its turn comes.

use std::time::Instant;

use async_nats::Subject;

use super::ConsumerEngine;
use crate::engine::consumer_effect::{Effect, Notice};

/// What is being left, and read.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Where to tell the broker that it is not to deliver again soon.
    pub(super) replies: Vec<Subject>,
    /// Aggregates that are being read.
    pub(super) loading: usize,
    /// More handlers could be at work, and there is nothing for them.
    pub(super) starved: bool,
    /// Operators know that some are left.
    told: bool,
}

impl ConsumerEngine {
    /// Makes room, if there is little, and begins to read what is next.
    pub(super) fn leave(&mut self, now: Instant) {
        let starved = self.is_starved();
        let mut replies = std::mem::take(&mut self.leaving.replies);
        replies.extend(self.capacity.trim(&mut self.lanes, starved, now));
        let left = self.lanes.left();
        let was_full = self.capacity.full().is_some();
        if let Some(full) = self.capacity.measure(&self.lanes).filter(|_| !was_full) {
            self.tell(Notice::Full { full, left });
        }
        if (left > 0) != self.leaving.told {
            self.leaving.told = left > 0;
            self.tell(if left > 0 { Notice::LeftInStream } else { Notice::NothingLeft });
        }
        self.push(replies, Effect::Leave);
        if self.paused_by(now).is_some() {
            return;
        }
        while let Some(load) = self.capacity.next_load(&mut self.lanes, self.leaving.loading) {
            self.leaving.loading += 1;
            self.effects.push_back(Effect::Load(load));
        }
    }

    /// Where all aggregates make no progress it is nobody's fault, as far as other events tell: if
    /// none of them fits into memory they would never come.
    fn is_starved(&self) -> bool {
        let is_paused = || self.breaker.pause().is_some() && self.breaker.has_other(&self.lanes);
        self.leaving.starved && !is_paused()
    }

    pub(super) fn next_trim(&self, now: Instant) -> Option<Instant> {
        self.capacity.next_trim(&self.lanes, self.is_starved(), now)
    }
}
