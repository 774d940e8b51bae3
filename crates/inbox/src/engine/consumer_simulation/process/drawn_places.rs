//! Some sessions share their handlers with others, who have any number of them.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;

use super::{LANES, Session};

impl Session {
    /// How many the session may have at work in this turn, if it has not all of them.
    pub(super) fn draw_places(&mut self, random: &mut StdRng) -> Option<usize> {
        let used = self.engine.used_places();
        let places = self.id.is_multiple_of(3).then(|| random.random_range(used..=LANES));
        self.places = places.unwrap_or(LANES);
        places
    }

    /// When it has a turn without being told anything: another place comes soon, if it wants one.
    pub(super) fn next_due(&self, now: Instant, random: &mut StdRng) -> Option<Instant> {
        let wants = self.engine.wants_place(now);
        let comes = wants.then(|| now + Duration::from_millis(random.random_range(1..50)));
        let due_at = self.engine.next_due(now).map(|at| at.max(now));
        due_at.into_iter().chain(comes).min()
    }
}
