//! Marks that wait to be written, and what a watermark waits for.

use std::collections::VecDeque;

use pgoutput::Lsn;
use uuid::Uuid;

use crate::engine::messages::Resolved;

/// Marks that may wait.
pub(crate) const MARKS_WAITING_MAX: usize = 200_000;

/// Rows marked by one statement, at most.
pub(crate) const MARKS_AT_ONCE: usize = 5_000;

/// Published events whose rows are to be marked, numbered in the order in which they came.
///
/// They are handed out in that order as well. But statements that run side by side do not end in it,
/// and what a later one has done says nothing of an earlier one's rows.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    waiting_max: usize,
    /// In batches, all but the last of them full: a queue in one piece would take twice its memory,
    /// and once more while it grows.
    waiting: VecDeque<Vec<Mark>>,
    /// Batches that were handed out and have not ended, by the numbers of their first marks.
    running: Vec<u64>,
    /// Marks that ever came.
    queued: u64,
}

/// What is needed of an event whose row is to be marked: there may be very many.
#[derive(Debug, Clone)]
struct Mark {
    id: Uuid,
    /// In the stream; 0 if a route dropped the event.
    seq: u64,
    commit_lsn: Lsn,
}

impl Mark {
    fn resolved(self) -> Resolved {
        let Self { id, seq, commit_lsn } = self;
        let seq = (seq > 0).then_some(seq);
        Resolved { seq, commit_lsn, acked: true, ..Resolved::somewhere(id) }
    }
}

impl Marks {
    /// Beyond `waiting_max` marks that wait, more are dropped and their rows left to the sweeper.
    pub(crate) fn new(waiting_max: usize) -> Self {
        Self { waiting_max, waiting: VecDeque::new(), running: Vec::new(), queued: 0 }
    }

    /// False if too many wait: then the row is the sweeper's.
    #[must_use]
    pub(crate) fn push(&mut self, resolved: &Resolved) -> bool {
        if self.waiting() >= self.waiting_max {
            return false;
        }
        let Resolved { id, seq, commit_lsn, .. } = *resolved;
        let mark = Mark { id, seq: seq.unwrap_or(0), commit_lsn };
        match self.waiting.back_mut().filter(|batch| batch.len() < MARKS_AT_ONCE) {
            Some(batch) => batch.push(mark),
            None => self.waiting.push_back(vec![mark]),
        }
        self.queued += 1;
        true
    }

    /// A published event's row needs no mark: it only counts.
    pub(crate) fn skip(&mut self) {
        self.queued += 1;
    }

    pub(crate) fn waiting(&self) -> usize {
        let full = self.waiting.len().saturating_sub(1) * MARKS_AT_ONCE;
        full + self.waiting.back().map_or(0, Vec::len)
    }

    /// Batches that were handed out and have not ended.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether batches run.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Hands the oldest batch out, with the number by which its end is to be told.
    pub(crate) fn take(&mut self) -> Option<(u64, Vec<Resolved>)> {
        let number = self.begun();
        let batch = self.waiting.pop_front()?;
        self.running.push(number);
        Some((number, batch.into_iter().map(Mark::resolved).collect()))
    }

    /// Marks that were handed out, or needed none.
    fn begun(&self) -> u64 {
        self.queued - self.waiting() as u64
    }

    /// A batch was executed, or has failed.
    pub(crate) fn ended(&mut self, number: u64) {
        self.running.retain(|it| *it != number);
    }

    /// Marks that ever came.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether the first `marks` that ever came were executed, or have failed.
    pub(crate) fn has_ended(&self, marks: u64) -> bool {
        self.running.iter().copied().fold(self.begun(), u64::min) >= marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::window::Origin;

    fn resolved(n: u128) -> Resolved {
        Resolved {
            id: Uuid::from_u128(n),
            seq: None,
            origin: Origin::Log,
            commit_lsn: Lsn::ZERO,
            commit_time_micros: 0,
            acked: true,
        }
    }

    fn marks(count: u64) -> Marks {
        let mut marks = Marks::new(MARKS_WAITING_MAX);
        assert!((0..count).all(|n| marks.push(&resolved(u128::from(n)))));
        marks
    }

    #[test]
    fn a_later_batch_that_ends_first_says_nothing_of_an_earlier_one() {
        let size = MARKS_AT_ONCE as u64;
        let mut marks = marks(2 * size + 2);
        let (first, batch) = marks.take().expect("a batch");
        assert_eq!(batch.len(), MARKS_AT_ONCE);
        let (second, batch) = marks.take().expect("a batch");
        assert_eq!(batch[0].id, Uuid::from_u128(u128::from(size)), "in their order");
        marks.ended(second);
        assert!(!marks.has_ended(1), "the first batch has not ended");
        marks.ended(first);
        assert!(marks.has_ended(2 * size) && !marks.has_ended(2 * size + 1), "two wait");
        let (third, batch) = marks.take().expect("a batch");
        assert_eq!((batch.len(), marks.waiting()), (2, 0));
        assert!(marks.is_running() && !marks.has_ended(2 * size + 1));
        marks.ended(third);
        assert!(!marks.is_running() && marks.has_ended(2 * size + 2));
        assert!(marks.take().is_none());
    }

    #[test]
    fn what_needs_no_mark_has_ended() {
        let mut marks = Marks::new(MARKS_WAITING_MAX);
        marks.skip();
        assert!(marks.has_ended(1));
        assert_eq!((marks.queued(), marks.waiting()), (1, 0));
    }

    #[test]
    fn what_finds_no_room_is_not_counted() {
        let mut marks = marks(MARKS_WAITING_MAX as u64);
        assert!(!marks.push(&resolved(1)));
        assert_eq!(marks.queued(), MARKS_WAITING_MAX as u64);
    }
}
