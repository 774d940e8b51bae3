//! How long the log can be kept for the slot.

use std::collections::VecDeque;
use std::time::Duration;

use crate::status::SlotStatus;

/// What the slot makes the server keep, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlotHealth {
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` if there is no slot.
    pub(crate) wal_status: Option<String>,
    /// Bytes of log that the slot keeps.
    pub(crate) retained_bytes: u64,
    /// Bytes of log behind what is confirmed.
    pub(crate) lag_bytes: u64,
    /// Bytes that may still be written before the server gives the slot up; `None` if unlimited.
    pub(crate) safe_bytes: Option<i64>,
}

/// Looks that a prediction is made from, at most this far apart.
const LOOK_BACK: Duration = Duration::from_secs(60);

/// Even a slot that keeps up is let go of in steps, as the server logs what is running.
const STEPS: Duration = Duration::from_secs(25);

/// Log that is not confirmed for this long is held, not in a step.
const HELD_FOR: Duration = Duration::from_secs(1);

/// Extrapolates what the slot keeps.
#[derive(Debug, Clone)]
pub(crate) struct WalWatch {
    limit_bytes: Option<u64>,
    looks: VecDeque<(Duration, SlotHealth)>,
}

impl WalWatch {
    /// `limit_bytes` is the relay's own; the server's comes with each look.
    pub(crate) fn new(limit_bytes: Option<u64>) -> Self {
        Self { limit_bytes, looks: VecDeque::new() }
    }

    /// Takes in a look at the slot, at `now` since the session began.
    pub(crate) fn look(&mut self, now: Duration, health: SlotHealth) -> SlotStatus {
        let (wal_status, retained_bytes) = (health.wal_status.clone(), health.retained_bytes);
        let own_left = self.limit_bytes.map(|limit| limit.saturating_sub(retained_bytes));
        let safe = health.safe_bytes.map(|safe| u64::try_from(safe).unwrap_or(0));
        let wal_headroom_bytes = [own_left, safe].into_iter().flatten().min();
        while self.looks.front().is_some_and(|(at, _)| now.saturating_sub(*at) > LOOK_BACK) {
            self.looks.pop_front();
        }
        self.looks.push_back((now, health));
        let wal_headroom_seconds =
            wal_headroom_bytes.and_then(|left| Some(left / self.growth(left)?.max(1)));
        SlotStatus { wal_status, retained_bytes, wal_headroom_bytes, wal_headroom_seconds }
    }

    /// Whether the limit that is set for the relay is reached.
    pub(crate) fn is_over(&self, retained_bytes: u64) -> bool {
        self.limit_bytes.is_some_and(|it| retained_bytes >= it)
    }

    /// Bytes a second, if what is kept grows.
    fn growth(&self, wal_headroom_bytes: u64) -> Option<u64> {
        let (last_at, last) = self.looks.back()?;
        // While nothing is confirmed, what is kept grows by what is written.
        let held = |health: &SlotHealth| health.lag_bytes > health.retained_bytes / 2;
        let since = self.looks.iter().rev().take_while(|(_, it)| held(it)).last();
        if let Some((at, first)) = since.filter(|(at, _)| *last_at - *at >= HELD_FOR) {
            return rate(first.retained_bytes, last.retained_bytes, *last_at - *at);
        }
        // Otherwise it grows in steps: what counts is where they end.
        let (first_at, _) = self.looks.front()?;
        let half = (*last_at - *first_at) / 2;
        if half < STEPS {
            return None;
        }
        let lowest = |newer: bool| {
            let looks = self.looks.iter().filter(|(at, _)| (*at - *first_at >= half) == newer);
            looks.map(|(_, it)| it.retained_bytes).min()
        };
        let (older, newer) = (lowest(false)?, lowest(true)?);
        // Steps are uneven: while most of the room is free, nothing is to be read into them.
        let is_much = newer > wal_headroom_bytes / 3;
        is_much.then(|| rate(older, newer, half)).flatten()
    }
}

fn rate(from: u64, to: u64, over: Duration) -> Option<u64> {
    let millis = u64::try_from(over.as_millis()).ok().filter(|it| *it > 0)?;
    let rate = to.checked_sub(from)?.saturating_mul(1_000) / millis;
    (rate > 0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn kept(retained_bytes: u64, lag_bytes: u64) -> SlotHealth {
        SlotHealth { retained_bytes, lag_bytes, ..SlotHealth::default() }
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_held_slot_is_predicted_within_seconds() {
        let mut watch = WalWatch::new(Some(1000 * MIB));
        let mut outlook = SlotStatus::default();
        for second in 0..4 {
            let bytes = 100 * MIB + second * 10 * MIB;
            outlook = watch.look(seconds(second), kept(bytes, bytes));
        }
        assert_eq!(outlook.wal_headroom_bytes, Some(870 * MIB));
        assert_eq!(outlook.wal_headroom_seconds, Some(87));
        assert!(!watch.is_over(outlook.retained_bytes));
        assert!(watch.is_over(1000 * MIB));
    }

    #[test]
    fn a_slot_that_keeps_up_in_steps_is_no_cause_for_alarm() {
        let mut watch = WalWatch::new(Some(1000 * MIB));
        for second in 0..300 {
            // Lets go every fifteen seconds, as running transactions are logged.
            let outlook = watch.look(seconds(second), kept((second % 15 + 1) * 50 * MIB, 0));
            assert_eq!(outlook.wal_headroom_seconds, None, "{second}");
        }
    }

    #[test]
    fn what_an_old_transaction_holds_is_predicted_within_a_minute() {
        let mut watch = WalWatch::new(Some(1000 * MIB));
        let looks = (0..301).map(|second| watch.look(seconds(second), kept(second * MIB, 0)));
        let outlook = looks.last().expect("some");
        assert_eq!(outlook.wal_headroom_seconds, Some(700));
    }

    #[test]
    fn the_nearer_limit_counts_and_without_one_nothing_is_predicted() {
        let safe = |safe_bytes| SlotHealth { safe_bytes, ..kept(100, 100) };
        let mut watch = WalWatch::new(Some(1_000));
        assert_eq!(watch.look(seconds(0), safe(Some(50))).wal_headroom_bytes, Some(50));
        assert_eq!(watch.look(seconds(0), safe(Some(-7))).wal_headroom_bytes, Some(0));
        assert_eq!(watch.look(seconds(0), safe(None)).wal_headroom_bytes, Some(900));
        let unlimited = WalWatch::new(None).look(seconds(0), safe(None));
        assert_eq!(unlimited, SlotStatus { retained_bytes: 100, ..SlotStatus::default() });
    }
}
