//! The consumer's acknowledgement floor.

use std::time::{Duration, Instant};

/// After so long without a later acknowledgement floor those behind it are looked up; then after
/// twice as long, and so on: mostly an event is failing there.
const FLOOR_PAUSE_MIN: Duration = Duration::from_secs(20);
const FLOOR_PAUSE_MAX: Duration = Duration::from_secs(600);

/// Up to where the broker has every acknowledgement.
pub(super) struct Floor {
    seq: u64,
    /// Since it was there, or what is behind it was looked up.
    since: Instant,
    pause: Duration,
}

impl Floor {
    pub(super) fn new(seq: u64) -> Self {
        Self { seq, since: Instant::now(), pause: FLOOR_PAUSE_MIN }
    }

    /// Whether it has been there for so long that what is behind it is to be looked up now.
    pub(super) fn is_stuck(&mut self, seq: u64) -> bool {
        if self.seq != seq {
            *self = Self::new(seq);
        }
        let is_stuck = self.since.elapsed() >= self.pause;
        if is_stuck {
            let pause = (self.pause * 2).min(FLOOR_PAUSE_MAX);
            *self = Self { pause, ..Self::new(seq) };
        }
        is_stuck
    }
}
