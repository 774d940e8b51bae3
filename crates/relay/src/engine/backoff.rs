//! The back-off table: how long the relay waits before it tries again.

use std::time::Duration;

/// Delays that double with every failure in a row, from `first` to at most `max`. Who waits adds
/// chance, so that relays that failed together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    /// An event that the stream refuses. Ten attempts take 21 s: in fenced mode all others wait for
    /// it, since nothing may overtake. That is less than it takes to be called unready (30 s), and
    /// enough for whoever is just changing the stream.
    pub(crate) const EVENT: Self = Self::new(Duration::from_millis(100), Duration::from_secs(5));

    /// A broker that stores nothing: the breaker's longest pause.
    pub(crate) const BROKER: Self = Self::new(Duration::from_secs(1), Duration::from_mins(10));

    /// A connection to a NATS server, from the second attempt on.
    pub(crate) const NATS: Self = Self::new(Duration::from_millis(25), Duration::from_secs(1));

    /// A session that ended with an error.
    pub(crate) const SESSION: Self = Self::new(Duration::from_millis(100), Duration::from_secs(10));

    /// A credential that is read anew for each connection, and refused: who renews it wants it used.
    pub(crate) const RENEWAL: Self = Self::new(Duration::from_millis(100), Duration::from_secs(1));

    /// A program that is to give a password, and failed: a run may cost a request to somebody's API.
    pub(crate) const PROGRAM: Self = Self::new(Duration::from_secs(1), Duration::from_secs(30));

    /// The checkpoint of a relay that has no events: it writes to the log that it confirms, and
    /// would keep an idle server busy.
    pub(crate) const CHECKPOINT: Self =
        Self::new(Duration::from_millis(250), Duration::from_secs(5));

    /// Reading what is to be replayed, which holds up nothing but its replay.
    pub(crate) const REPLAY: Self = Self::new(Duration::from_millis(250), Duration::from_secs(10));

    /// A rewind slot that PostgreSQL gives up again and again.
    pub(crate) const REWIND: Self = Self::new(Duration::from_secs(30), Duration::from_mins(10));

    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

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
        let delays = [0, 1, 2, 3, 7, 8, u32::MAX].map(|it| Backoff::SESSION.after(it).as_millis());
        assert_eq!(delays, [0, 100, 200, 400, 6_400, 10_000, 10_000]);
    }

    #[test]
    fn ten_attempts_of_an_event_take_less_than_half_a_minute() {
        let waited: Duration = (1..10).map(|it| Backoff::EVENT.after(it)).sum();
        assert_eq!(waited, Duration::from_millis(21_300));
    }
}
