//! The back-off table: how long an inbox waits before it tries again.

use std::sync::Arc;
use std::time::Duration;

pub use servers::Backoff;

/// An event whose handler failed, unless configured.
pub(crate) const EVENT: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// A consumer whose handler fails whatever the event waits no longer than twice this, unless already the
/// first pause is longer: those of a single event may be days.
const CONSUMER_MAX: Duration = Duration::from_mins(5);

/// How long an event waits after each attempt that failed, at most: a pause is a random part of it. The
/// last one stands for all further ones. The longest caps what a handler asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pauses(Arc<[Duration]>);

impl Pauses {
    /// Nothing if there are none.
    #[must_use]
    pub fn new(pauses: Vec<Duration>) -> Option<Self> {
        (!pauses.is_empty()).then(|| Self(pauses.into()))
    }

    /// The pause after so many attempts.
    pub(crate) fn after(&self, attempts: u32) -> Duration {
        let at = attempts.saturating_sub(1) as usize;
        self.0[at.min(self.0.len() - 1)]
    }

    pub(crate) fn longest(&self) -> Duration {
        self.0.iter().max().copied().unwrap_or_default()
    }

    /// Of a consumer, between events with which it is found out whether the handler works again.
    pub(crate) fn of_consumer(&self) -> Backoff {
        // A service that is away is never tried without one.
        let first = self.0.iter().find(|it| !it.is_zero()).copied().unwrap_or(EVENT.first);
        Backoff { first, max: self.longest().min(CONSUMER_MAX).max(first) }
    }
}

/// Pauses that double.
impl From<Backoff> for Pauses {
    fn from(backoff: Backoff) -> Self {
        let doubled = (1..32).map(|it| backoff.after(it));
        let mut pauses: Vec<_> = doubled.take_while(|it| *it < backoff.max).collect();
        pauses.push(backoff.max);
        Self(pauses.into())
    }
}

/// A database that cannot be reached.
pub(crate) const DATABASE: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// The consumer's acknowledgement floor does not move, mostly since an event is failing there:
/// what is behind it is looked up.
pub(crate) const FLOOR: Backoff = Backoff::new(Duration::from_secs(20), Duration::from_mins(10));

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(of: &[u64; 3]) -> [Duration; 3] {
        [Duration::from_secs(of[0]), Duration::from_secs(of[1]), Duration::from_secs(of[2])]
    }

    #[test]
    fn the_last_pause_stands_for_all_further_ones() {
        let pauses = Pauses::new(secs(&[5, 300, 60]).into()).expect("some");
        let after = [1, 2, 3, 4, u32::MAX].map(|it| pauses.after(it).as_secs());
        assert_eq!(after, [5, 300, 60, 60, 60]);
        assert_eq!(pauses.longest().as_secs(), 300);
        assert_eq!(Pauses::new(Vec::new()), None);
    }

    #[test]
    fn pauses_that_double_are_those_of_the_backoff() {
        for backoff in [EVENT, Backoff::new(Duration::from_secs(5), Duration::from_secs(5))] {
            let pauses = Pauses::from(backoff);
            for attempts in [1, 2, 3, 8, 9, 10, 100] {
                assert_eq!(pauses.after(attempts), backoff.after(attempts), "{attempts}");
            }
        }
        let none = Pauses::from(Backoff::new(Duration::ZERO, Duration::from_secs(5)));
        assert_eq!(none.after(1), Duration::ZERO);
    }

    /// An event may wait for a day; a service that is back is not kept waiting.
    #[test]
    fn a_consumer_waits_no_longer_than_ten_minutes() {
        let pauses = Pauses::new(secs(&[5, 300, 86_400]).into()).expect("some");
        let of_consumer = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));
        assert_eq!(pauses.of_consumer(), of_consumer);
        let days = Pauses::new(vec![Duration::from_hours(24)]).expect("some");
        assert_eq!(days.of_consumer().max, days.longest(), "unless that is what is wanted");
    }

    #[test]
    fn a_service_that_is_away_is_never_tried_without_a_pause() {
        for (pauses, first) in [([0, 60, 300], 60), ([0, 0, 0], 1)] {
            let of_consumer = Pauses::new(secs(&pauses).into()).expect("some").of_consumer();
            assert_eq!(of_consumer.after(1), Duration::from_secs(first));
        }
    }
}
