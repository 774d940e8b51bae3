//! What every engine has, whichever parts it is made with.

use std::time::Duration;

use super::effect::{Effect, Effects, End};
use super::notice::Notice;
use super::publish::Publishing;

/// How long a stop may take to bring in the broker's answers and write the marks.
const DRAIN_MAX: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub(super) struct Core {
    pub(super) publishing: Publishing,
    pub(super) effects: Effects,
    /// Since then nothing new is taken in.
    draining_since: Option<Duration>,
}

impl Core {
    pub(super) fn new(publishing: Publishing) -> Self {
        Self { publishing, effects: Effects::new(), draining_since: None }
    }

    pub(super) fn tell(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Tell(notice));
    }

    /// Ends the session.
    pub(super) fn end(&mut self, end: End) {
        self.effects.push_back(Effect::End(end));
    }

    pub(super) fn stop(&mut self, now: Duration, why: &'static str) {
        self.draining_since = Some(now);
        let unresolved = self.publishing.unresolved();
        self.tell(Notice::Stopping { why, unresolved });
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining_since.is_some()
    }

    /// Whether a stop is over when its parts have done what they had to, which `is_done` says.
    pub(super) fn is_drained(&self, now: Duration, is_done: bool) -> bool {
        self.draining_since.is_some_and(|since| is_done || now.saturating_sub(since) > DRAIN_MAX)
    }
}
