//! What holds of a consumer's session after each turn.

use super::{ConsumerEngine, Phase};
use crate::engine::assertions::ARE_CHECKED;
use crate::engine::capacity::LOADS_MAX;

impl ConsumerEngine {
    pub(super) fn assert_holds(&self) {
        if !ARE_CHECKED {
            return;
        }
        self.lanes.assert_holds();
        self.breaker.assert_holds();
        assert!(self.used_places() <= self.places(), "{} at work, too many", self.used_places());
        self.groups.assert_holds(self.lanes.busy());
        assert!(self.leaving.loading <= LOADS_MAX, "too many aggregates are read at a time");
        assert!((1..=self.start.batch).contains(&self.batch), "a batch of {}", self.batch);
        if self.phase != Phase::Running {
            assert_eq!(self.requested, 0, "a session that is to end asks for deliveries");
        }
        if self.phase == Phase::Draining {
            assert_eq!(self.lanes.held(), 0, "a session without jobs keeps deliveries");
        }
    }
}
