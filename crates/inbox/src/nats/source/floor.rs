//! The consumer's acknowledgement floor.

use std::time::Instant;

use crate::engine::backoff;

/// Up to where the broker has every acknowledgement.
pub(super) struct Floor {
    seq: u64,
    /// Since it was there, or what is behind it was looked up.
    since: Instant,
    /// How often it was looked up, and this once.
    looks: u32,
}

impl Floor {
    pub(super) fn new(seq: u64) -> Self {
        Self { seq, since: Instant::now(), looks: 1 }
    }

    /// Whether it has been there for so long that what is behind it is to be looked up now.
    pub(super) fn is_stuck(&mut self, seq: u64) -> bool {
        if self.seq != seq {
            *self = Self::new(seq);
        }
        let is_stuck = self.since.elapsed() >= backoff::FLOOR.after(self.looks);
        if is_stuck {
            *self = Self { looks: self.looks.saturating_add(1), ..Self::new(seq) };
        }
        is_stuck
    }
}
