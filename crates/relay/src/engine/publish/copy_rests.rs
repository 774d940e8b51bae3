//! How copies give way to new events: a replay at full rate leaves their latency alone.
//!
//! A copy in front of a new event delays it little. The processors do, which the servers, the relay
//! and the producers share. So while new events come, copies go in small groups, and behind each
//! group is a rest, the longer the more the group took.

use std::time::Duration;

/// Where an event came so recently, more are expected.
const LIVE_FOR: Duration = Duration::from_secs(1);

/// Copies and their bytes in a group, where the broker answers within a millisecond. Where it is
/// further away more are under way.
const GROUP_COPIES: u32 = 8;
const GROUP_BYTES: usize = 64 * 1024;
const GROUP_COPIES_MAX: u32 = 64;

/// A rest is so many times as long as what the group took beyond the broker's quickest answer.
const RESTS: u32 = 8;

/// A group that met an outage says nothing about the load.
const REST_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Default, Clone)]
pub(super) struct CopyRests {
    /// When the last new event came.
    live_at: Option<Duration>,
    /// The broker's quickest answer of this session.
    quickest: Option<Duration>,
    /// When the present group began, its copies and their bytes.
    group: Option<(Duration, u32, usize)>,
    rests_until: Duration,
}

impl CopyRests {
    pub(super) fn live(&mut self, now: Duration) {
        self.live_at = Some(now);
    }

    pub(super) fn answered(&mut self, took: Duration) {
        self.quickest = Some(self.quickest.map_or(took, |it| it.min(took)));
    }

    /// The broker may be another one now, further away.
    pub(super) fn reconnected(&mut self) {
        self.quickest = None;
    }

    /// When the rest ends behind which copies may go, if there is one.
    pub(super) fn rests_until(&self, now: Duration) -> Option<Duration> {
        (self.rests_until > now).then_some(self.rests_until)
    }

    /// Whether another copy may go.
    pub(super) fn may_go(&self, now: Duration) -> bool {
        let is_live = self.live_at.is_some_and(|it| now.saturating_sub(it) < LIVE_FOR);
        let is_full = self
            .group
            .is_some_and(|(_, copies, bytes)| copies >= self.copies_max() || bytes >= GROUP_BYTES);
        !is_live || (!is_full && self.rests_until <= now)
    }

    fn copies_max(&self) -> u32 {
        let millis = self.quickest.unwrap_or_default().as_millis();
        let copies = u32::try_from(millis).unwrap_or(u32::MAX).saturating_mul(GROUP_COPIES);
        copies.clamp(GROUP_COPIES, GROUP_COPIES_MAX)
    }

    pub(super) fn goes(&mut self, now: Duration, bytes: usize) {
        let (_, copies, sum) = self.group.get_or_insert((now, 0, 0));
        (*copies, *sum) = (*copies + 1, *sum + bytes);
    }

    /// No copy is under way any more.
    pub(super) fn ended(&mut self, now: Duration) {
        let Some((began, ..)) = self.group.take() else { return };
        let took = now.saturating_sub(began).saturating_sub(self.quickest.unwrap_or_default());
        self.rests_until = now + (took * RESTS).min(REST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// How many copies of some size go at once.
    fn hand_over(it: &mut CopyRests, now: Duration, bytes: usize) -> u32 {
        let mut went = 0;
        while it.may_go(now) && went < 1_000 {
            it.goes(now, bytes);
            went += 1;
        }
        went
    }

    #[test]
    fn copies_go_at_full_rate_while_nothing_new_comes() {
        let mut it = CopyRests::default();
        assert_eq!(hand_over(&mut it, millis(5), 1_000), 1_000);
        it.live(millis(10));
        it.ended(millis(50));
        assert!(!it.may_go(millis(60)));
        assert_eq!(hand_over(&mut it, millis(1_010), 1_000), 1_000);
    }

    #[test]
    fn a_rest_is_as_long_as_the_group_was_slow() {
        let mut it = CopyRests::default();
        it.live(millis(0));
        it.answered(millis(1));
        assert_eq!(hand_over(&mut it, millis(0), 1_000), 8);
        it.ended(millis(3));
        assert!(!it.may_go(millis(18)));
        assert_eq!(hand_over(&mut it, millis(19), 1_000), 8);
        it.ended(millis(20)); // as quick as the quickest
        assert_eq!(hand_over(&mut it, millis(20), 50_000), 2);
        it.ended(millis(900)); // an outage
        it.live(millis(1_300));
        assert!(!it.may_go(millis(1_399)));
        assert!(it.may_go(millis(1_400)));
    }

    #[test]
    fn more_are_under_way_to_a_broker_far_away() {
        let mut it = CopyRests::default();
        it.live(millis(0));
        it.answered(millis(4));
        assert_eq!(hand_over(&mut it, millis(0), 1_000), 32);
        it.answered(millis(3));
        it.ended(millis(4));
        assert_eq!(hand_over(&mut it, millis(12), 1_000), 24);
    }
}
