//! When a session ends, and how. See the engine's module for its phases.

use std::time::Instant;

use super::{ConsumerEngine, Phase, STOP_DEADLINE};
use crate::engine::consumer_effect::Effect;
use crate::engine::role_lease::Role;

impl ConsumerEngine {
    /// Whether handlers that do not end are waited for. Only the worker that gets the partition could
    /// end them, and with them all that this one has begun in others.
    pub(super) fn is_patient(&self) -> bool {
        self.surroundings.role == Role::Leaving && !self.is_told_to_stop
    }

    /// Lets what was started finish, and gives the rest back.
    pub(crate) fn stop(&mut self, now: Instant) {
        self.is_told_to_stop = true;
        self.wind_up(now);
    }

    pub(super) fn wind_up(&mut self, now: Instant) {
        if self.is_stopping() {
            return;
        }
        self.phase = Phase::Finishing { until: now + STOP_DEADLINE };
        self.request(0);
        self.effects.push_back(Effect::Close);
        self.in_progress_at = now;
    }

    /// Whether all jobs have ended, and only the source has not.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    pub(crate) fn is_told_to_stop(&self) -> bool {
        self.is_told_to_stop
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.phase != Phase::Running
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.give_back(now);
        self.phase = Phase::Ended;
        self.effects.push_back(Effect::End);
    }
}
