//! How much is held in memory, left in the stream, or not taken in at all: so that aggregates that
//! make no progress take nobody's room.

use std::time::{Duration, Instant};

use async_nats::Subject;

use super::hold_limits::HoldLimits;
use super::lanes::{Lanes, Load};

/// Events of an aggregate without progress that stay in memory.
const KEPT: usize = 16;

/// How often to look for aggregates without progress, while there is little room.
const TRIM_PAUSE: Duration = Duration::from_millis(100);

/// Aggregates whose events are read at the same time.
pub(super) const LOADS_MAX: usize = 4;

/// Why nothing more is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// No more may be left in the stream.
    Left { max: usize },
    /// The broker delivers nothing more until something is acknowledged.
    Unacknowledged { max: usize },
}

#[derive(Debug)]
pub(crate) struct Capacity {
    /// How much may be held.
    limits: HoldLimits,
    /// How many events the broker lets be without an acknowledgement, if that is limited.
    unacked_max: Option<usize>,
    trimmed_at: Option<Instant>,
    full: Option<Full>,
}

impl Capacity {
    pub(crate) fn new(limits: HoldLimits, unacked_max: Option<usize>) -> Self {
        Self { limits, unacked_max, trimmed_at: None, full: None }
    }

    /// For how many more events there is room.
    pub(crate) fn room(&self, lanes: &Lanes) -> usize {
        let has_room = self.holds_less_than(1, lanes) && lanes.left() < self.limits.left;
        if has_room { self.limits.events - lanes.held() } else { 0 }
    }

    /// Whether what is held takes less than so many times what it may take.
    fn holds_less_than(&self, times: usize, lanes: &Lanes) -> bool {
        lanes.held() < times * self.limits.events && lanes.bytes() < times * self.limits.bytes
    }

    fn is_crowded(&self, lanes: &Lanes) -> bool {
        lanes.held() > self.limits.events / 2 || lanes.bytes() > self.limits.bytes / 2
    }

    /// When to look for aggregates without progress. `starved` says that more handlers could be at
    /// work, and there is nothing for them: where all are at work others would wait all the same.
    pub(crate) fn next_trim(&self, lanes: &Lanes, starved: bool, now: Instant) -> Option<Instant> {
        let is_due = starved && self.is_crowded(lanes);
        is_due.then(|| self.trimmed_at.map_or(now, |at| at + TRIM_PAUSE))
    }

    /// Leaves in the stream what they hold, if it is time to. Returns where it was to be
    /// acknowledged.
    pub(crate) fn trim(&mut self, lanes: &mut Lanes, starved: bool, now: Instant) -> Vec<Subject> {
        if self.next_trim(lanes, starved, now).is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.trimmed_at = Some(now);
        let mut replies = lanes.trim(KEPT, now);
        if self.is_crowded(lanes) {
            replies.extend(lanes.trim(1, now));
        }
        replies
    }

    /// Looks whether anything more can be taken in. Where the broker is what delivers nothing more,
    /// that is so once nothing else goes on, and until there is room there.
    pub(crate) fn measure(&mut self, lanes: &Lanes) -> Option<Full> {
        let left = lanes.left();
        let stands_still = || lanes.busy() == 0 && lanes.ready().next().is_none();
        let unacked = self.unacked_max.filter(|max| left > 0 && lanes.held() + left >= *max);
        self.full = match unacked {
            _ if left >= self.limits.left => Some(Full::Left { max: self.limits.left }),
            Some(max) if self.full.is_some() || stands_still() => {
                Some(Full::Unacknowledged { max })
            }
            _ => None,
        };
        self.full
    }

    pub(crate) fn full(&self) -> Option<Full> {
        self.full
    }

    /// What to read from the stream, where so many aggregates are being read. What is left is older
    /// than what is new, which must not keep it from being read.
    pub(crate) fn next_load(&self, lanes: &mut Lanes, loading: usize) -> Option<Load> {
        let may_load = loading < LOADS_MAX && self.holds_less_than(2, lanes);
        may_load.then(|| lanes.next_load()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lanes::{Ending, Path};
    use crate::engine::simulation::{delivered, id};

    /// Events of one aggregate, of which the first waits for a minute.
    fn stalled(count: u64, now: Instant) -> Lanes {
        let mut lanes = Lanes::default();
        for seq in 1..=count {
            lanes.offer(delivered(seq, 1, Some(format!("ack.{seq}").into()), Path::Careful), now);
        }
        lanes.take(1, |_| true);
        let after = Duration::from_secs(60);
        lanes.ended(id(1), Ending::Again { after, path: Path::Careful }, now);
        lanes
    }

    #[test]
    fn an_aggregate_without_progress_gives_room_when_others_have_nothing_to_do() {
        let (now, mut capacity) = (Instant::now(), Capacity::new(HoldLimits::of(100), None));
        let mut lanes = stalled(100, now);
        assert_eq!(capacity.room(&lanes), 0);
        assert!(capacity.trim(&mut lanes, false, now).is_empty(), "all handlers are at work");
        assert_eq!(capacity.trim(&mut lanes, true, now).len(), 84);
        assert_eq!(capacity.room(&lanes), 84);
        assert_eq!(capacity.next_trim(&lanes, true, now), None, "there is room");
    }

    #[test]
    fn a_look_for_room_is_not_repeated_at_once() {
        let (now, mut capacity) = (Instant::now(), Capacity::new(HoldLimits::of(10), None));
        let mut lanes = stalled(10, now);
        assert_eq!(capacity.next_trim(&lanes, true, now), Some(now));
        assert_eq!(capacity.trim(&mut lanes, true, now).len(), 9, "all but the first: few fit");
        for seq in 11..=19 {
            lanes.offer(delivered(seq, 3, None, Path::Careful), now);
        }
        assert_eq!(capacity.next_trim(&lanes, true, now), Some(now + TRIM_PAUSE));
    }

    #[test]
    fn the_brokers_limit_is_full_once_nothing_goes_on_and_until_there_is_room() {
        let (now, mut capacity) = (Instant::now(), Capacity::new(HoldLimits::of(10), Some(10)));
        let mut lanes = stalled(10, now);
        assert_eq!(capacity.measure(&lanes), None, "nothing is left in the stream");
        capacity.trim(&mut lanes, true, now);
        let full = Some(Full::Unacknowledged { max: 10 });
        assert_eq!(capacity.measure(&lanes), full);
        lanes.advance(now + Duration::from_secs(60));
        assert_eq!(capacity.measure(&lanes), full, "it goes on, and nothing is acknowledged yet");
        lanes.take(1, |_| true);
        lanes.ended(id(1), Ending::Resolved, now + Duration::from_secs(60));
        assert_eq!(capacity.measure(&lanes), None);
    }
}
