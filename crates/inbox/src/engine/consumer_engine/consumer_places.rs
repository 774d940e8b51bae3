//! How many handlers may be at work, where a session shares them with others of its process.

use std::time::Instant;

use super::{ConsumerEngine, Phase};

impl ConsumerEngine {
    /// How many jobs may be at work, or handlers where the events of a job share no place.
    pub(super) fn places(&self) -> usize {
        self.surroundings.places.map_or(self.start.lanes, |it| it.min(self.start.lanes))
    }

    /// How many are.
    pub(crate) fn used_places(&self) -> usize {
        if self.start.shares { self.jobs } else { self.groups.handled() }
    }

    /// Whether there is something to do with another place.
    pub(crate) fn wants_place(&self, now: Instant) -> bool {
        let places = self.places();
        let may_want = self.phase == Phase::Running && places < self.start.lanes;
        if !may_want || self.used_places() < places || self.paused_by(now).is_some() {
            return false;
        }
        if self.start.shares {
            self.bucket.tokens(now) > 0 && self.lanes.ready().next().is_some()
        } else {
            self.groups.has_waiting()
        }
    }
}
