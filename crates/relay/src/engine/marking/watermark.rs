//! A watermark's way, and what it leaves open.

use std::time::Duration;

use crate::engine::effect::{Pass, Watermark};
use crate::engine::messages::Resolved;

/// Rows swept at a time.
pub(crate) const SWEPT_AT_ONCE: usize = 5_000;

/// How often a session that ends tries marks again that hit no row, and how long after each other.
const TRIES_AT_THE_END: u32 = 10;
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A watermark's way: taken, reached by the confirmed position, its marks executed, stored.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Resting,
    Taking,
    Waiting(Watermark),
    Flushing { watermark: Watermark, marks: u64 },
    Sweeping(Pass),
}

/// A mark that hits no row is ambiguous: the row is marked already, or gone, or not visible yet,
/// because its commit waits for a synchronous standby. The last kind is for the sweeper, once a
/// snapshot shows it: watermarks go on being taken until one is younger than every transaction
/// that could have been meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    Nothing,
    Something,
    /// The watermark under way was begun after the mark that missed.
    Observing,
    /// Whatever was missed belongs to a transaction before this one.
    Before(u64),
}

impl Missed {
    /// A watermark is taken.
    pub(super) fn observed(self) -> Self {
        if self == Self::Something { Self::Observing } else { self }
    }

    /// A sweep is complete; its watermark was stored by `transaction`, and every transaction before
    /// `oldest_running` had ended when it was taken.
    pub(super) fn swept(self, transaction: u64, oldest_running: u64) -> Self {
        match self {
            Self::Observing => Self::Before(transaction),
            Self::Before(transaction) if oldest_running >= transaction => Self::Nothing,
            missed @ (Self::Nothing | Self::Something | Self::Before(_)) => missed,
        }
    }

    /// The sweep of the watermark under way failed.
    pub(super) fn unswept(self) -> Self {
        if self == Self::Observing { Self::Something } else { self }
    }
}

/// Whether marks were dropped, or their statements failed: before or since the watermark was taken
/// that is under way, or was last.
#[derive(Debug, Default, Clone)]
pub(super) struct LostMarks {
    before: bool,
    since: bool,
}

impl LostMarks {
    pub(super) fn lose(&mut self) {
        self.since = true;
    }

    pub(super) fn any(&self) -> bool {
        self.before || self.since
    }

    /// A watermark is taken. It covers what was lost before it, and perhaps what is lost since.
    pub(super) fn taken(&mut self) {
        self.before = std::mem::take(&mut self.since);
    }

    /// The watermark under way came to nothing.
    pub(super) fn not_covered(&mut self) {
        self.since |= self.before;
    }
}

/// Published events whose rows were not to be seen when they were to be marked. The sweeper marks
/// them. A session that ends has no time for another sweep: it tries their marks again, since a row
/// becomes visible a moment after the log has it.
#[derive(Debug, Default, Clone)]
pub(super) struct Unseen {
    events: Vec<Resolved>,
    tried: u32,
    again_at: Duration,
}

impl Unseen {
    pub(super) fn note(&mut self, events: &[Resolved]) {
        let room = SWEPT_AT_ONCE - self.events.len();
        self.events.extend(events.iter().take(room).cloned());
    }

    pub(super) fn forget(&mut self) {
        self.events = Vec::new();
    }

    /// Whether some are to be tried again by a session that ends.
    pub(super) fn is_awaited(&self) -> bool {
        !self.events.is_empty() && self.tried < TRIES_AT_THE_END
    }

    /// Those that are to be tried now.
    pub(super) fn take(&mut self, now: Duration) -> Vec<Resolved> {
        if !self.is_awaited() || now < self.again_at {
            return Vec::new();
        }
        (self.tried, self.again_at) = (self.tried + 1, now + AGAIN_AFTER);
        std::mem::take(&mut self.events)
    }
}
