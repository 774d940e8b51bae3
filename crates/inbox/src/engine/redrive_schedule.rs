//! When an active inbox looks for requeued letters and for events that nobody has, and where each
//! look begins.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use crate::record::Key;

/// How often to look. What is found and at work already is known by its place in the stream.
const LOOK: Duration = Duration::from_secs(1);

/// How often to look for events that nobody has.
const ADOPT: Duration = Duration::from_secs(10);

/// Before all others: some thousand years ago.
const FIRST: Key = Key { id: Uuid::nil(), event_time: Timestamp::constant(-200_000_000_000, 0) };

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Events behind this one that were begun and that nobody has.
    Adopt {
        after: Key,
    },
    /// Requeued letters; of those that are first of their aggregate the ones behind this sequence
    /// before the others.
    Requeued {
        after_seq: i64,
    },
    Wait {
        until: Instant,
    },
}

/// A requeued letter that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) stream_seq: i64,
    /// Whether no other of its aggregate is before it.
    pub(crate) is_first: bool,
}

#[derive(Debug)]
pub(crate) struct RedriveSchedule {
    adopt_at: Instant,
    look_at: Instant,
    after: Key,
    after_seq: i64,
}

impl RedriveSchedule {
    /// What is left of a worker before is adopted a while after `now`: most of it comes by itself.
    pub(crate) fn new(now: Instant) -> Self {
        Self { adopt_at: now + ADOPT, look_at: now, after: FIRST, after_seq: 0 }
    }

    /// What to do now. It is begun by this, and repeated after a while whatever becomes of it.
    pub(crate) fn next(&mut self, now: Instant) -> Task {
        if now < self.look_at {
            return Task::Wait { until: self.look_at };
        }
        if self.adopt_at <= now {
            self.adopt_at = now + ADOPT;
            // Anew from the beginning, unless this look finds some.
            return Task::Adopt { after: std::mem::replace(&mut self.after, FIRST) };
        }
        self.look_at = now + LOOK;
        Task::Requeued { after_seq: self.after_seq }
    }

    /// The database did not answer, or refused.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.look_at = now + LOOK;
    }

    /// There was no connection to do it with.
    pub(crate) fn not_begun(&mut self, task: Task, now: Instant) {
        match task {
            Task::Adopt { after } => (self.adopt_at, self.after) = (now, after),
            Task::Requeued { .. } | Task::Wait { .. } => {}
        }
        self.failed(now);
    }

    /// The next look for events that nobody has begins behind this one.
    pub(crate) fn adopted(&mut self, key: Key) {
        self.after = key;
    }

    /// What a look for up to `most` letters found, in that order. If there may be more, all of them
    /// first of their aggregate, the next look begins behind them.
    pub(crate) fn found(&mut self, due: &[Due], most: usize) {
        let all_fit = due.len() < most || !due.iter().all(|it| it.is_first);
        let last = due.last().map_or(0, |it| it.stream_seq);
        self.after_seq = if all_fit { 0 } else { last };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(now: Instant) -> RedriveSchedule {
        let mut schedule = RedriveSchedule::new(now);
        assert_eq!(schedule.next(now), Task::Requeued { after_seq: 0 });
        assert_eq!(schedule.next(now), Task::Wait { until: now + LOOK });
        schedule
    }

    #[test]
    fn letters_are_looked_for_every_second_and_all_else_now_and_then() {
        let mut now = Instant::now();
        let mut schedule = begun(now);
        let (mut adopted, mut looks) = (0, 0);
        let end = now + Duration::from_hours(1) + LOOK;
        while now < end {
            match schedule.next(now) {
                Task::Adopt { .. } => adopted += 1,
                Task::Requeued { .. } => looks += 1,
                Task::Wait { until } => now = until,
            }
        }
        assert_eq!((adopted, looks), (360, 3600));
    }

    #[test]
    fn each_look_for_events_that_nobody_has_goes_on_behind_the_last_until_none_is_found() {
        let mut now = Instant::now();
        let mut schedule = begun(now);
        let key = Key { id: Uuid::from_u128(7), event_time: Timestamp::UNIX_EPOCH };
        for (after, found) in [(FIRST, Some(key)), (key, None), (FIRST, None)] {
            now += ADOPT;
            assert_eq!(schedule.next(now), Task::Adopt { after });
            found.into_iter().for_each(|key| schedule.adopted(key));
            assert_eq!(schedule.next(now), Task::Requeued { after_seq: 0 });
        }
    }

    #[test]
    fn letters_that_did_not_fit_are_next() {
        let now = Instant::now();
        let mut schedule = begun(now);
        let due = |stream_seq, is_first| Due { stream_seq, is_first };
        schedule.found(&[due(3, true), due(5, true)], 2);
        assert_eq!(schedule.next(now + LOOK), Task::Requeued { after_seq: 5 });
        schedule.found(&[due(3, true), due(4, false)], 2);
        assert_eq!(schedule.next(now + 2 * LOOK), Task::Requeued { after_seq: 0 });
    }

    #[test]
    fn what_there_was_no_connection_for_is_done_when_there_is_one() {
        let now = Instant::now();
        let mut schedule = RedriveSchedule::new(now);
        let now = now + ADOPT;
        let task = schedule.next(now);
        assert_eq!(task, Task::Adopt { after: FIRST });
        schedule.not_begun(task, now);
        assert_eq!(schedule.next(now), Task::Wait { until: now + LOOK });
        assert_eq!(schedule.next(now + LOOK), task);
    }
}
