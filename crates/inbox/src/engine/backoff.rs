//! The back-off table: how long an inbox waits before it tries again.

use std::time::Duration;

/// How long to wait between attempts: a random time up to `first`, then up to twice that, and so
/// on, but never beyond `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest pause after the first failure: 1 s.
    pub first: Duration,
    /// The longest pause of all: 5 min. Also caps what a handler asks for.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(300) }
    }
}

impl Backoff {
    /// A database that cannot be reached.
    pub(crate) const DATABASE: Self =
        Self { first: Duration::from_millis(100), max: Duration::from_secs(1) };

    /// The consumer's acknowledgement floor does not move, mostly since an event is failing there:
    /// what is behind it is looked up.
    pub(crate) const FLOOR: Self =
        Self { first: Duration::from_secs(20), max: Duration::from_mins(10) };

    /// The delay after so many failures in a row; none after none.
    pub(crate) fn after(self, failures: u32) -> Duration {
        match failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => self.first.saturating_mul(1 << doublings.min(31)).min(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_the_first_to_the_longest() {
        let delays = [0, 1, 2, 5, 6, 7, u32::MAX].map(|it| Backoff::FLOOR.after(it).as_secs());
        assert_eq!(delays, [0, 20, 40, 320, 600, 600, 600]);
    }
}
