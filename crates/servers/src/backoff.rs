//! How long to wait before trying again.

use std::time::Duration;

/// Delays that double with every failure in a row, from `first` to at most `max`. The caller adds
/// chance, so that processes that failed together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// The longest of all.
    pub max: Duration,
}

impl Backoff {
    /// A connection to a NATS server, from the second attempt on.
    pub const NATS: Self = Self::new(Duration::from_millis(25), Duration::from_secs(1));

    /// A credential that is read anew for each connection, and refused: who renews it wants it used.
    pub const RENEWAL: Self = Self::new(Duration::from_millis(100), Duration::from_secs(1));

    /// A program that is to give a password, and failed: a run may cost a request to somebody's API.
    pub const PROGRAM: Self = Self::new(Duration::from_secs(1), Duration::from_secs(30));

    /// Delays from `first` to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The delay after so many failures in a row; none after none.
    pub fn after(self, failures: u32) -> Duration {
        match failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => self.first.saturating_mul(1 << doublings.min(31)).min(self.max),
        }
    }
}

/// After a statement that nobody waits for there is a pause that is so many times as long, within
/// bounds: what the relay, the inbox and the producers do goes first.
const PAUSE_TIMES: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Lets others work after a statement that took so long.
pub async fn pause_after(took: Duration) {
    tokio::time::sleep((took * PAUSE_TIMES).clamp(PAUSE_MIN, PAUSE_MAX)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_the_first_to_the_longest() {
        let delays = [0, 1, 2, 3, 5, 6, 7, u32::MAX].map(|it| Backoff::PROGRAM.after(it).as_secs());
        assert_eq!(delays, [0, 1, 2, 4, 16, 30, 30, 30]);
    }
}
