//! When to look at the slot, and what to say of it.

use std::time::Duration;

use super::slot_health::{SlotHealth, WalWatch};
use crate::status::SlotStatus;

/// How often the slot is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long before a limit is reached its coming is told.
const WARN_BEFORE: Duration = Duration::from_secs(3600);

/// How often it is told again.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What operators are to know of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotNotice {
    /// The relay's limit is reached.
    OverLimit,
    /// A limit will be reached by then.
    LimitIn(Duration),
    /// Neither any more.
    Recovered,
}

#[derive(Debug, Clone)]
pub(crate) struct SlotWatch {
    wal: WalWatch,
    look: Look,
    /// When it was told last, and whether that was that the limit is reached.
    warned: Option<(Duration, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Look {
    Due(Duration),
    UnderWay { since: Duration },
}

impl SlotWatch {
    /// `limit_bytes` is the relay's own limit.
    pub(crate) fn new(limit_bytes: Option<u64>) -> Self {
        Self { wal: WalWatch::new(limit_bytes), look: Look::Due(Duration::ZERO), warned: None }
    }

    /// Whether the slot is to be looked at now.
    pub(crate) fn look_if_due(&mut self, now: Duration) -> bool {
        let is_due = matches!(self.look, Look::Due(at) if at <= now);
        if is_due {
            self.look = Look::UnderWay { since: now };
        }
        is_due
    }

    /// The slot was looked at.
    pub(crate) fn looked(
        &mut self,
        now: Duration,
        health: SlotHealth,
    ) -> (SlotStatus, Option<SlotNotice>) {
        if let Look::UnderWay { since } = self.look {
            self.look = Look::Due(since + LOOK_EVERY);
        }
        let status = self.wal.look(now, health);
        let notice = self.notice(now, &status);
        (status, notice)
    }

    /// Once in a while for as long as there is cause; that the limit is reached at once.
    fn notice(&mut self, now: Duration, status: &SlotStatus) -> Option<SlotNotice> {
        let is_over = self.wal.is_over(status.retained_bytes);
        let left = status.wal_headroom_seconds.map(Duration::from_secs);
        let soon = left.filter(|left| *left < WARN_BEFORE);
        if soon.is_none() && !is_over {
            return self.warned.take().map(|_| SlotNotice::Recovered);
        }
        let is_known =
            |(at, was_over)| now.saturating_sub(at) < WARN_EVERY && (was_over || !is_over);
        if self.warned.is_some_and(is_known) {
            return None;
        }
        self.warned = Some((now, is_over));
        match soon {
            Some(left) if !is_over => Some(SlotNotice::LimitIn(left)),
            _ => Some(SlotNotice::OverLimit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_slot_is_looked_at_once_a_second_and_by_one_statement_at_a_time() {
        let mut watch = SlotWatch::new(None);
        assert!(watch.look_if_due(seconds(0)));
        assert!(!watch.look_if_due(seconds(9)), "the statement has not answered");
        assert_eq!(watch.looked(seconds(9), SlotHealth::default()).1, None);
        assert!(watch.look_if_due(seconds(9)));
        assert_eq!(watch.looked(seconds(9), SlotHealth::default()).1, None);
        assert!(!watch.look_if_due(seconds(9)));
        assert!(watch.look_if_due(seconds(10)));
    }

    #[test]
    fn that_a_limit_is_reached_is_told_at_once_although_its_coming_was() {
        let mut watch = SlotWatch::new(Some(100));
        let mut told = Vec::new();
        for second in 0..20 {
            let retained_bytes = second * 10;
            let health =
                SlotHealth { retained_bytes, lag_bytes: retained_bytes, ..SlotHealth::default() };
            assert!(watch.look_if_due(seconds(second)));
            told.extend(watch.looked(seconds(second), health).1.map(|notice| (second, notice)));
        }
        assert!(matches!(told[..], [(_, SlotNotice::LimitIn(_)), (10, SlotNotice::OverLimit)]));
    }

    #[test]
    fn a_limit_is_told_once_a_minute_and_its_end_once() {
        let mut watch = SlotWatch::new(Some(100));
        let mut told = Vec::new();
        for second in 0..200 {
            let retained_bytes = if second < 90 { 100 } else { 1 };
            let health = SlotHealth { retained_bytes, ..SlotHealth::default() };
            assert!(watch.look_if_due(seconds(second)));
            told.extend(watch.looked(seconds(second), health).1.map(|notice| (second, notice)));
        }
        let expected =
            [(0, SlotNotice::OverLimit), (60, SlotNotice::OverLimit), (90, SlotNotice::Recovered)];
        assert_eq!(told, expected);
    }
}
