//! How many events are begun in a time: a bucket of tokens, of which each event takes one.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// What may be begun at once is what comes in so long, or one event.
const BURST: Duration = Duration::from_millis(100);

/// The least time between two events: nobody handles more.
const PER_EVENT_MIN: Duration = Duration::from_micros(1);

/// A number of events in a second, a minute or an hour, such as `50/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The time from one event to the next.
    per_event: Duration,
    /// How long after the beginning all of it is there that may be begun at once.
    full_after: Duration,
}

/// Why a text is no rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a number of events in a second, a minute or an hour, such as \"50/s\", \"600/m\" or \"10/h\""
)]
pub struct RateError;

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (events, unit) = text.split_once('/').ok_or(RateError)?;
        let events: u32 = events.trim().parse().map_err(|_| RateError)?;
        let period = match unit.trim() {
            "s" => Duration::from_secs(1),
            "m" => Duration::from_mins(1),
            "h" => Duration::from_hours(1),
            _ => return Err(RateError),
        };
        let per_event = period.checked_div(events).filter(|it| *it >= PER_EVENT_MIN);
        per_event.map(|per_event| Self { per_event, full_after: Duration::ZERO }).ok_or(RateError)
    }
}

impl Rate {
    /// The time from one event to the next.
    #[must_use]
    pub const fn interval(self) -> Duration {
        self.per_event
    }

    /// What one of so many has of it. They begin one after the other, as events of the whole do.
    pub(crate) fn divided(self, number: u32, among: NonZeroU32) -> Self {
        Self {
            per_event: self.per_event.saturating_mul(among.get()),
            full_after: self.per_event.saturating_mul(number),
        }
    }

    /// How many events may be begun at once.
    fn burst(self) -> u32 {
        let events = BURST.as_nanos() / self.per_event.as_nanos();
        u32::try_from(events).unwrap_or(u32::MAX).max(1)
    }
}

/// How much of a rate is left; without a rate there is no end of it.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Option<Rate>,
    /// When it is full again, if nothing is taken.
    full_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Option<Rate>, now: Instant) -> Self {
        Self { rate, full_at: now + rate.map_or(Duration::ZERO, |it| it.full_after) }
    }

    /// How many events may be begun.
    pub(crate) fn tokens(&self, now: Instant) -> usize {
        let Some(rate) = self.rate else { return usize::MAX };
        let lacking = self.full_at.saturating_duration_since(now);
        let lacking = lacking.as_nanos().div_ceil(rate.per_event.as_nanos());
        rate.burst().saturating_sub(u32::try_from(lacking).unwrap_or(u32::MAX)) as usize
    }

    /// Events are begun, no more than there are tokens.
    pub(crate) fn take(&mut self, events: usize, now: Instant) {
        debug_assert!(events <= self.tokens(now), "more events than tokens");
        let Some(rate) = self.rate else { return };
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        self.full_at = self.full_at.max(now) + rate.per_event * events;
    }

    /// When there is a token, while there is none.
    pub(crate) fn next_token(&self, now: Instant) -> Option<Instant> {
        let rate = self.rate.filter(|_| self.tokens(now) == 0)?;
        Some(self.full_at - rate.per_event * (rate.burst() - 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().expect("a rate")
    }

    #[test]
    fn a_rate_is_a_number_and_a_unit() {
        assert_eq!(rate("50/s"), rate("3000/m"));
        assert_eq!(rate("60/h"), rate("1/m"));
        for text in ["", "50", "/s", "0/s", "-1/s", "5/d", "1.5/s", "2000000/s"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError), "{text}");
        }
    }

    #[test]
    fn a_bucket_has_a_tenth_of_a_second_or_one_event() {
        let now = Instant::now();
        assert_eq!(Bucket::new(Some(rate("1/h")), now).tokens(now), 1);
        let mut bucket = Bucket::new(Some(rate("50/s")), now);
        bucket.take(5, now);
        assert_eq!(bucket.tokens(now), 0);
        let next = bucket.next_token(now).expect("none is left");
        assert_eq!(next - now, Duration::from_millis(20));
        assert_eq!((bucket.tokens(next), bucket.next_token(next)), (1, None));
        assert_eq!(bucket.tokens(now + Duration::from_secs(9)), 5, "and no more");
    }

    #[test]
    fn parts_of_a_rate_do_not_begin_together() {
        let (now, parts) = (Instant::now(), NonZeroU32::new(16).expect("not 0"));
        let part = |number| Bucket::new(Some(rate("10/h").divided(number, parts)), now);
        let begin = |at| (0..16).filter(|it| part(*it).tokens(at) > 0).count();
        assert_eq!(begin(now), 1, "as one that is not divided");
        assert_eq!(begin(now + Duration::from_mins(6)), 2);
        assert_eq!(begin(now + Duration::from_mins(90)), 16);
    }

    proptest! {
        #[test]
        fn no_time_has_more_events_than_the_rate_and_a_burst(
            events in 1_u32..2000,
            steps in prop::collection::vec((0_u64..500, 0_usize..300), 1..60),
        ) {
            let rate = rate(&format!("{events}/s"));
            let begin = Instant::now();
            let (mut bucket, mut now, mut begun) = (Bucket::new(Some(rate), begin), begin, 0);
            for (millis, wanted) in steps {
                now += Duration::from_millis(millis);
                let taken = wanted.min(bucket.tokens(now));
                bucket.take(taken, now);
                begun += taken;
                let most = (now - begin).as_nanos() / rate.per_event.as_nanos();
                prop_assert!(begun as u128 <= most + u128::from(rate.burst()));
                let next = bucket.next_token(now);
                prop_assert_eq!(next.is_none(), bucket.tokens(now) > 0);
                prop_assert!(next.is_none_or(|it| it > now && bucket.tokens(it) > 0));
            }
        }
    }
}
