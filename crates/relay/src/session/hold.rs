//! How far PostgreSQL may be told to forget: never beyond what is written down beside the outbox.
//!
//! Nothing tells one slot from another that was created under its name: before PostgreSQL 17 they
//! look the same. But a slot begins where the log ends when it is created. So the relay writes down
//! where the log ended while it had the slot (`held_lsn`), waits until that is on the disk, and only
//! then confirms up to there. Its own slot is never beyond `held_lsn`, wherever the relay is
//! killed; a slot that was created, or advanced, after the relay lost it always is. (If nothing was
//! written to the log in between, they are equal, and nothing is missing.)
//!
//! The end of the log is ahead of what is resolved, so that one row written every quarter of a
//! second keeps up with any number of events; they are confirmed that much later. A clean stop
//! writes the confirmed position itself, so that nothing at all fits in between.

use std::time::{Duration, Instant};

use pgoutput::Lsn;

use crate::shards::Shards;

/// How often the position is written down while it matters.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// How often while next to nothing happens. Each writing is itself something in the log to be
/// confirmed: without this, an idle relay would keep an idle server busy.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// As much log as writing the position down may cost. The log has what all shards write.
const NEXT_TO_NOTHING_BYTES: u64 = 1_024;

#[derive(Debug)]
pub(super) struct Hold {
    held: Lsn,
    writing: bool,
    written_at: Option<Instant>,
    pause: Duration,
    /// Events resolved when the position was last written down.
    resolved: u64,
    next_to_nothing_bytes: u64,
}

impl Hold {
    /// `held` is what is written down already.
    pub(super) fn new(held: Lsn, shards: Shards) -> Self {
        let next_to_nothing_bytes = NEXT_TO_NOTHING_BYTES * u64::from(shards.count());
        let (pause, resolved) = (PAUSE_MIN, 0);
        Self { held, writing: false, written_at: None, pause, resolved, next_to_nothing_bytes }
    }

    /// What may be confirmed of what is resolved.
    pub(super) fn allowed(&self, resolved_before: Lsn) -> Lsn {
        resolved_before.min(self.held)
    }

    /// Whether the position is to be written down now, `events` having been resolved so far.
    pub(super) fn is_due(&mut self, resolved_before: Lsn, events: u64, now: Instant) -> bool {
        let beyond = resolved_before.0.saturating_sub(self.held.0);
        if self.writing || beyond == 0 {
            return false;
        }
        let matters = events != self.resolved || beyond > self.next_to_nothing_bytes;
        let pause = if matters { PAUSE_MIN } else { self.pause };
        if self.written_at.is_some_and(|at| now.saturating_duration_since(at) < pause) {
            return false;
        }
        self.pause = if matters { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        (self.writing, self.written_at, self.resolved) = (true, Some(now), events);
        true
    }

    /// It is on the disk.
    pub(super) fn written(&mut self, held: Lsn) {
        self.writing = false;
        self.held = self.held.max(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `seconds`, in steps of 10 ms, in which `resolved` says what is resolved and how many
    /// events. Each writing appends as much to the log as it does. Returns how many there were.
    fn writings(seconds: u64, resolved: impl Fn(u64) -> (u64, u64)) -> u32 {
        let (start, mut own, mut count) = (Instant::now(), 0, 0);
        let mut hold = Hold::new(Lsn(1), Shards::default());
        for step in 0..seconds * 100 {
            let (lsn, events) = resolved(step);
            let now = start + Duration::from_millis(10 * step);
            if hold.is_due(Lsn(lsn + own), events, now) {
                let end = Lsn(lsn + own);
                own += 300;
                count += 1;
                hold.written(end);
            }
            assert!(hold.allowed(Lsn(lsn + own)) <= Lsn(lsn + own));
        }
        count
    }

    #[test]
    fn nothing_is_confirmed_that_is_not_written_down() {
        let mut hold = Hold::new(Lsn(10), Shards::default());
        assert_eq!(hold.allowed(Lsn(5)), Lsn(5));
        assert_eq!(hold.allowed(Lsn(50)), Lsn(10));
        assert!(hold.is_due(Lsn(50), 1, Instant::now()));
        assert_eq!(hold.allowed(Lsn(50)), Lsn(10), "not yet on the disk");
        hold.written(Lsn(70));
        assert_eq!(hold.allowed(Lsn(50)), Lsn(50));
        assert_eq!(hold.allowed(Lsn(90)), Lsn(70));
    }

    #[test]
    fn it_is_written_four_times_a_second_under_any_load_and_hardly_ever_without() {
        assert!((35..=41).contains(&writings(10, |step| (1_000 * step, 1_000 * step))));
        assert!((35..=41).contains(&writings(10, |step| (10_000 * step, 0))), "others' log");
        assert!(writings(60, |_| (100, 0)) <= 17, "its own log");
        assert_eq!(writings(60, |_| (1, 0)), 0);
    }

    #[test]
    fn shards_without_work_do_not_keep_each_other_busy() {
        const SHARDS: u32 = 16;
        let start = Instant::now();
        let mut holds: Vec<_> =
            (0..SHARDS).map(|_| Hold::new(Lsn(1), Shards::new(SHARDS))).collect();
        let (mut end, mut count) = (100, 0);
        for step in 0..60 * 100 {
            let now = start + Duration::from_millis(10 * step);
            for hold in &mut holds {
                if hold.is_due(Lsn(end), 0, now) {
                    hold.written(Lsn(end));
                    (end, count) = (end + 300, count + 1);
                }
            }
        }
        assert!(count <= 17 * SHARDS, "{count} writings in a minute");
    }

    #[test]
    fn an_event_on_an_idle_stream_is_confirmed_at_once() {
        let (mut hold, start) = (Hold::new(Lsn(100), Shards::default()), Instant::now());
        assert!(hold.is_due(Lsn(101), 1, start));
        hold.written(Lsn(200));
        let later = start + Duration::from_millis(300);
        assert!(!hold.is_due(Lsn(200), 1, later), "nothing new");
        assert!(hold.is_due(Lsn(300), 2, later));
    }
}
