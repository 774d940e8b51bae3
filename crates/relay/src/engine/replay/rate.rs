//! How many copies a replay publishes in a second.

use std::time::Duration;

/// What is missed is made up for, as far as a tick goes.
const MADE_UP_MAX: Duration = Duration::from_millis(100);

/// The rate that was asked for. Without one, copies go as there is room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate(Option<Paced>);

#[derive(Debug, Clone, Copy)]
struct Paced {
    /// When the next one may go.
    due: Duration,
    step: Duration,
}

impl Rate {
    pub(super) fn new(now: Duration, per_second: Option<u32>) -> Self {
        Self(per_second.map(|it| Paced { due: now, step: Duration::from_secs(1) / it.max(1) }))
    }

    /// Whether another copy may go now.
    pub(super) fn allows(&self, now: Duration) -> bool {
        self.0.is_none_or(|it| it.due <= now)
    }

    /// A copy goes.
    pub(super) fn took(&mut self, now: Duration) {
        if let Some(it) = &mut self.0 {
            it.due = it.due.max(now.saturating_sub(MADE_UP_MAX)) + it.step;
        }
    }
}
