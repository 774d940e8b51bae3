//! How far PostgreSQL may be told to forget: never beyond what is written down beside the outbox.
//!
//! Nothing tells one slot from another that was created under its name: before PostgreSQL 17 they
//! look the same. So the relay writes down up to where everything is resolved (`checkpoint_lsn`), waits
//! until that is on the disk, and only then confirms up to there. Its own slot is never beyond
//! `checkpoint_lsn`, wherever the relay is killed. A slot that was created since begins where the log
//! ended then, and one that was advanced over an event is beyond it too: what is not beyond it lacks
//! nothing.
//!
//! Beside it stands how far everything is resolved (`resolved_lsn` and its companions), for a
//! successor that finds the stream purged. Events are confirmed no further than that: what the slot
//! brings then begins before that place, so that it can be counted from there. So one row written
//! every quarter of a second keeps up with any number of events; they are confirmed that much
//! later. A clean stop writes the confirmed position itself, so that nothing at all fits in between;
//! the place stands if it tells more than that.

use std::time::Duration;

use pgoutput::Lsn;

use crate::engine::backoff;

/// So much log is kept for knowing how far the stream had got, where that cannot be said of now.
const KEPT_BYTES: u64 = 64 << 20;

/// As much log as writing the position down may cost. The log has what all shards write.
const NEXT_TO_NOTHING_BYTES: u64 = 1_024;

#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    /// What is written down, and up to where everything was resolved then.
    at: Lsn,
    resolved_before: Lsn,
    confirmed: Lsn,
    /// What is being written down: up to where everything is resolved, and how many events were.
    writing: Option<(Lsn, u64)>,
    written_at: Option<Duration>,
    /// How often in a row the position was written down while next to nothing had happened.
    idle: u32,
    /// Events resolved when the position was last written down, and when its writing was begun.
    written: u64,
    resolved: u64,
    next_to_nothing_bytes: u64,
}

impl Checkpoint {
    /// `at` is what an earlier session wrote down; the log has what all `shards` write.
    pub(crate) fn new(at: Lsn, shards: u32) -> Self {
        Self {
            at,
            resolved_before: Lsn::ZERO,
            confirmed: Lsn::ZERO,
            writing: None,
            written_at: None,
            idle: 0,
            written: 0,
            resolved: 0,
            next_to_nothing_bytes: NEXT_TO_NOTHING_BYTES * u64::from(shards),
        }
    }

    /// What may be confirmed of what is resolved. `events` is how many of the log's were resolved so
    /// far, in this session or before.
    pub(crate) fn confirmable(&mut self, resolved_before: Lsn, events: u64) -> Lsn {
        self.confirmed = self.confirmed.max(self.written_down(resolved_before, events));
        self.confirmed
    }

    /// `confirmed_flush_lsn`, as far as this session knows.
    pub(crate) fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// Where no event was resolved since, the place that is written down is still the last one.
    fn written_down(&self, resolved_before: Lsn, events: u64) -> Lsn {
        let written = if self.keeps_place(events) { self.at } else { self.resolved_before };
        resolved_before.min(written)
    }

    /// Whether the position is being written down.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether no event was resolved since the place was written down, so that it is still true.
    pub(crate) fn keeps_place(&self, events: u64) -> bool {
        events == self.written
    }

    /// Whether the position is to be written down now, `events` having been resolved so far.
    /// `has_place` says whether there is a place to be written with it: without one, a successor could
    /// not count from where the slot begins.
    pub(crate) fn is_due(
        &mut self,
        resolved_before: Lsn,
        events: u64,
        now: Duration,
        has_place: impl FnOnce() -> bool,
    ) -> bool {
        let allowed = self.written_down(resolved_before, events).max(self.confirmed);
        let beyond = resolved_before.0.saturating_sub(allowed.0);
        if self.is_writing() || beyond == 0 {
            return false;
        }
        let matters = events != self.resolved || beyond > self.next_to_nothing_bytes;
        let idle = if matters { 0 } else { self.idle };
        let pause = backoff::CHECKPOINT.after(idle.saturating_add(1));
        if self.written_at.is_some_and(|at| now.saturating_sub(at) < pause) {
            return false;
        }
        if !self.keeps_place(events) && beyond < KEPT_BYTES && !has_place() {
            return false;
        }
        self.idle = if matters { 0 } else { idle.saturating_add(1) };
        self.begin(resolved_before, events);
        (self.written_at, self.resolved) = (Some(now), events);
        true
    }

    /// The position is being written down whether that is due or not.
    pub(crate) fn begin(&mut self, resolved_before: Lsn, events: u64) {
        self.writing = Some((resolved_before, events));
    }

    /// What is written down next: never less than before, as the slot may be confirmed up to there.
    pub(crate) fn written_next(&self) -> Lsn {
        self.writing.map_or(self.at, |(resolved_before, _)| self.at.max(resolved_before))
    }

    pub(crate) fn assert_holds(&self) {
        assert!(self.resolved_before <= self.at, "less is written down than is resolved");
        assert!(self.confirmed <= self.at, "confirmed beyond what is written down");
    }

    /// It is on the disk; or it could not be written, and nothing more may be confirmed.
    pub(crate) fn written(&mut self, at: Option<Lsn>) {
        let (Some((resolved_before, events)), Some(at)) = (self.writing.take(), at) else {
            return;
        };
        (self.resolved_before, self.written) = (resolved_before, events);
        self.at = self.at.max(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `seconds`, in steps of 10 ms, in which `resolved` says what is resolved and how many
    /// events. Each writing appends as much to the log as it does. Returns how many there were.
    fn writings(seconds: u64, resolved: impl Fn(u64) -> (u64, u64)) -> u32 {
        let (mut own, mut count) = (0, 0);
        let mut checkpoint = Checkpoint::new(Lsn(1), 1);
        for step in 0..seconds * 100 {
            let (lsn, events) = resolved(step);
            let now = Duration::from_millis(10 * step);
            if checkpoint.is_due(Lsn(lsn + own), events, now, || true) {
                let end = Lsn(lsn + own);
                own += 300;
                count += 1;
                checkpoint.written(Some(end));
            }
            assert!(checkpoint.confirmable(Lsn(lsn + own), events) <= Lsn(lsn + own));
        }
        count
    }

    #[test]
    fn nothing_is_confirmed_that_is_not_written_down() {
        let mut checkpoint = Checkpoint::new(Lsn(1), 1);
        assert_eq!(checkpoint.confirmable(Lsn(5), 1), Lsn::ZERO);
        assert!(checkpoint.is_due(Lsn(50), 1, Duration::ZERO, || true));
        assert_eq!(checkpoint.confirmable(Lsn(50), 1), Lsn::ZERO, "not yet on the disk");
        checkpoint.written(Some(Lsn(70)));
        assert_eq!(checkpoint.confirmable(Lsn(50), 1), Lsn(50));
        assert_eq!(
            checkpoint.confirmable(Lsn(60), 2),
            Lsn(50),
            "beyond the place that is written down"
        );
        assert_eq!(checkpoint.confirmable(Lsn(60), 1), Lsn(60), "no event is in between");
        assert_eq!(checkpoint.confirmable(Lsn(90), 1), Lsn(70), "beyond where the log ended");
        assert_eq!(checkpoint.confirmable(Lsn(90), 2), Lsn(70), "never less than before");
    }

    #[test]
    fn what_could_not_be_written_down_allows_nothing() {
        let mut checkpoint = Checkpoint::new(Lsn(1), 1);
        assert!(checkpoint.is_due(Lsn(50), 1, Duration::ZERO, || true));
        checkpoint.written(None);
        assert_eq!(checkpoint.confirmable(Lsn(60), 2), Lsn::ZERO);
        assert_eq!(checkpoint.confirmable(Lsn(60), 1), Lsn::ZERO);
    }

    #[test]
    fn a_place_is_not_given_up_for_a_little_log() {
        let mut checkpoint = Checkpoint::new(Lsn(1), 1);
        assert!(
            !checkpoint.is_due(Lsn(50), 1, Duration::ZERO, || false),
            "events were resolved since"
        );
        assert!(checkpoint.is_due(Lsn(50), 1, Duration::ZERO, || true));
        checkpoint.written(Some(Lsn(70)));
        let later = Duration::from_mins(1);
        assert!(!checkpoint.is_due(Lsn(9_000), 2, later, || false));
        assert!(checkpoint.is_due(Lsn(9_000), 1, later, || false), "it is still true");
        checkpoint.written(Some(Lsn(9_100)));
        assert!(
            checkpoint.is_due(Lsn(9_100 + KEPT_BYTES), 2, later + Duration::from_mins(1), || false),
            "too much log"
        );
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
        let mut checkpoints: Vec<_> =
            (0..SHARDS).map(|_| Checkpoint::new(Lsn(1), SHARDS)).collect();
        let (mut end, mut count) = (100, 0);
        for step in 0..60 * 100 {
            let now = Duration::from_millis(10 * step);
            for checkpoint in &mut checkpoints {
                if checkpoint.is_due(Lsn(end), 0, now, || true) {
                    checkpoint.written(Some(Lsn(end)));
                    (end, count) = (end + 300, count + 1);
                }
            }
        }
        assert!(count <= 17 * SHARDS, "{count} writings in a minute");
    }

    #[test]
    fn an_event_on_an_idle_stream_is_confirmed_at_once() {
        let mut checkpoint = Checkpoint::new(Lsn(1), 1);
        assert!(checkpoint.is_due(Lsn(101), 1, Duration::ZERO, || true));
        checkpoint.written(Some(Lsn(200)));
        let later = Duration::from_millis(300);
        assert!(!checkpoint.is_due(Lsn(200), 1, later, || true), "nothing new");
        assert!(checkpoint.is_due(Lsn(300), 2, later, || true));
    }
}
