//! How many events a session with a rate begins.

use std::time::{Duration, Instant};

use super::Session;
use crate::engine::Rate;
use crate::engine::consumer_simulation::World;

/// Of half of the sessions.
const RATE: &str = "20/s";
/// In any second, with the burst of a tenth.
const IN_A_SECOND_MAX: usize = 22;

impl World {
    pub(super) fn is_paused(&self) -> bool {
        self.paused.0 <= self.now && self.now < self.paused.1
    }

    /// The number of a session that begins, and the rate that it may have.
    pub(super) fn rated(&mut self) -> (u64, Option<Rate>) {
        let id = self.number();
        (id, id.is_multiple_of(2).then(|| RATE.parse().expect("a rate")))
    }

    pub(super) fn check_rate(&self, session: &Session, count: usize) {
        let is_late = |it: &&(Instant, usize)| self.now - it.0 < Duration::from_secs(1);
        let before: usize = session.begun.iter().rev().take_while(is_late).map(|it| it.1).sum();
        let is_rated = session.id.is_multiple_of(2);
        assert!(!is_rated || before + count <= IN_A_SECOND_MAX, "{before} and {count} in a second");
    }
}
