//! When to try a broker again that stores nothing.
//!
//! ```text
//!            failed          time, or the connection is back
//!   closed ─────────▶ open ─────────────────────────────────▶ half-open
//!      ▲               ▲                                        │   │
//!      │               └──────────────── failed ────────────────┘   │
//!      └─────────────────────────── succeeded ──────────────────────┘
//! ```

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use crate::engine::backoff;
use crate::status::BreakerState;

/// A failure after this much peace may be an accident: it is tried again at once.
const PEACE: Duration = Duration::from_secs(1);

/// Says when to try again. Pauses are drawn from the whole range up to a bound that doubles ("full
/// jitter"), so that relays that failed together do not come back together.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    state: BreakerState,
    until: Duration,
    /// In a row.
    failures: u32,
    last_failed: Option<Duration>,
    opened: u64,
    random: Rng,
}

impl Breaker {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: BreakerState::Closed,
            until: Duration::ZERO,
            failures: 0,
            last_failed: None,
            opened: 0,
            random: Rng::seed_from_u64(seed),
        }
    }

    /// Something failed that is nobody's fault but the broker's. The first time after a while it
    /// may be tried again at once; otherwise the breaker is open from now on.
    pub(crate) fn failed(&mut self, now: Duration) {
        let in_peace = self.last_failed.is_none_or(|last| now.saturating_sub(last) > PEACE);
        self.last_failed = Some(now);
        if self.failures == 0 && self.state == BreakerState::Closed && in_peace {
            self.failures = 1;
            return;
        }
        let bound = backoff::BROKER.after(self.failures.max(1));
        self.failures += 1;
        self.until = now + bound.mul_f64(self.random.random_range(0.0..=1.0));
        self.opened += u64::from(self.state == BreakerState::Closed);
        self.state = BreakerState::Open;
    }

    /// The broker stored something, or has nothing to store and answers.
    pub(crate) fn succeeded(&mut self) {
        self.state = BreakerState::Closed;
        self.failures = 0;
    }

    /// The next attempt begins. If it follows a failure, it is only one.
    pub(crate) fn attempt(&mut self) {
        if self.state == BreakerState::Open {
            self.state = BreakerState::HalfOpen;
        }
    }

    /// Whether nothing may be tried yet.
    pub(crate) fn forbids(&self, now: Duration) -> bool {
        self.state == BreakerState::Open && now < self.until
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// When the next attempt is due, while the breaker is open.
    pub(crate) fn until(&self) -> Option<Duration> {
        (self.state == BreakerState::Open).then_some(self.until)
    }

    /// How often it opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_accident_is_tried_again_at_once_and_a_second_one_is_not() {
        let mut breaker = Breaker::new(1);
        breaker.failed(at(0));
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.failed(at(0));
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.attempt();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.succeeded();
        assert_eq!((breaker.state(), breaker.opened()), (BreakerState::Closed, 1));
    }

    #[test]
    fn failures_between_successes_do_not_spin() {
        let mut breaker = Breaker::new(1);
        breaker.failed(at(10));
        breaker.succeeded();
        breaker.failed(at(10) + PEACE);
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.succeeded();
        breaker.failed(at(20));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn pauses_spread_over_a_range_that_doubles_up_to_ten_minutes() {
        let mut longest = [Duration::ZERO; 16];
        let mut shortest = [Duration::MAX; 16];
        for seed in 0..500 {
            let mut breaker = Breaker::new(seed);
            breaker.failed(at(0));
            for failure in 0..16 {
                breaker.failed(at(0));
                let pause = breaker.until().expect("open");
                longest[failure] = longest[failure].max(pause);
                shortest[failure] = shortest[failure].min(pause);
                breaker.attempt();
            }
        }
        for (failures, (longest, shortest)) in (1..).zip(longest.into_iter().zip(shortest)) {
            let bound = backoff::BROKER.after(failures);
            assert!(longest <= bound && longest > bound.mul_f64(0.95));
            assert!(shortest < bound.mul_f64(0.05), "no jitter");
        }
    }
}
