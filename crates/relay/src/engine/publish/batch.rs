//! Fast-ingest batches (ADR-50): one answer for hundreds of messages, and nothing stored behind the
//! first one that is refused or lost.
//!
//! A batch ends with the last message that waits, so that its answer comes at once, or when it is a
//! part of the window, so that the rest is filled meanwhile. The next one begins when all of it is
//! answered: batches that overlap could be stored in part each.
//!
//! A batch skips duplicates, and counts them. Only the sequence of its last message tells that there
//! was none, unless another writer's message under an event's id is in just the place that the event
//! was to have. So a message that has nothing behind it goes by itself, and so do the first one after
//! the stream's tail was read, the first one after a pause, and all while others write to the stream:
//! its answer tells a duplicate.

use super::Publishing;
use crate::engine::input::Refusal;
use crate::engine::messages::{Mode, Part};
use crate::engine::window::Stage;

/// How many batches fill the window.
const PARTS: usize = 4;

/// What was sent under one batch id.
#[derive(Debug, Clone)]
struct Batch {
    number: u32,
    /// The sequence that its first message was to follow.
    base: u64,
    sent: u64,
    /// More may be added.
    is_open: bool,
    /// The first entry that may still be unanswered.
    first: u64,
}

/// Fast-ingest batches. Only fenced mode has them.
#[derive(Debug, Default, Clone)]
pub(super) struct Batching {
    /// The present batch, or the last one.
    present: Option<Batch>,
    begun: u32,
    /// The stream has taken a message since its tail was read, and since there was nothing to send:
    /// until then none goes in a batch.
    is_answered: bool,
}

impl Batching {
    pub(super) fn begun(&self) -> u32 {
        self.begun
    }

    /// What was sent counts no more.
    pub(super) fn resync(&mut self) {
        self.present = None;
    }

    pub(super) fn tail_read(&mut self) {
        self.is_answered = false;
    }

    /// `end` is behind the last entry, and `expected` is the sequence that the next message follows.
    pub(super) fn assert_holds(&self, end: u64, expected: u64) {
        let Some(batch) = &self.present else { return };
        assert_eq!(batch.number, self.begun, "a batch is present, and a later one was begun");
        assert!(batch.first <= end, "a batch ends behind the window");
        let sent_to = batch.base + batch.sent;
        assert!(sent_to <= expected, "{sent_to} is sent in a batch, {expected} is expected");
        assert!(!batch.is_open || sent_to == expected, "a message went beside an open batch");
    }
}

impl Publishing {
    pub(super) fn is_batch_open(&self) -> bool {
        self.batching.present.as_ref().is_some_and(|batch| batch.is_open)
    }

    /// Ends an open batch to which there is nothing to add. Its number is that of a message that
    /// is not stored.
    pub(crate) fn next_end(&mut self) -> Option<Part> {
        if !self.link.is_up() || !self.is_batch_open() || self.waiting().is_some() {
            return None;
        }
        let batch = self.batching.present.as_mut()?;
        batch.is_open = false;
        Some(Part { batch: batch.number, number: batch.sent + 1, last: true })
    }

    /// Where the message that is about to be sent belongs. The entry to send is behind `next`.
    pub(super) fn next_part(&mut self) -> Option<Part> {
        if self.mode != Mode::Fenced {
            return None;
        }
        let more = self.waiting().is_some();
        if !self.is_batch_open() {
            self.batching.present = None;
            if !more || !self.batching.is_answered || self.is_among_others() {
                return None;
            }
            self.batching.begun += 1;
            self.batching.present = Some(Batch {
                number: self.batching.begun,
                base: self.stream.expected(),
                sent: 0,
                is_open: true,
                first: self.window.first(),
            });
        }
        let batch = self.batching.present.as_mut()?;
        batch.sent += 1;
        batch.is_open = more && batch.sent < (self.settings.limits.events / PARTS).max(2) as u64;
        Some(Part { batch: batch.number, number: batch.sent, last: !batch.is_open })
    }

    /// The message added last did not leave.
    pub(super) fn take_out_of_batch(&mut self) {
        if let Some(batch) = &mut self.batching.present {
            batch.sent -= 1;
            // Somebody has to end it, now that its last message may be missing.
            batch.is_open = batch.sent > 0;
        }
    }

    pub(super) fn is_taken(&mut self, batch: u32) {
        if self.is_present(batch) {
            self.link.answered(self.now);
        }
    }

    /// The stream has taken what an answer is about. Where that was all, a batch may follow if something
    /// waits already.
    pub(super) fn answered(&mut self) {
        self.stream.settle();
        self.batching.is_answered = self.stream.in_flight() > 0 || self.waiting().is_some();
    }

    pub(super) fn ended(&mut self, number: u32, count: u64, seq: u64) {
        if !self.is_present(number) {
            return;
        }
        let Some(batch) = &self.batching.present else { return };
        let as_expected = seq == batch.base + count;
        let whole = !batch.is_open && count == batch.sent;
        if as_expected {
            self.link.answered(self.now);
            self.resolve_first(count);
        }
        match as_expected && whole {
            true => self.refusals.batch_stored(),
            false => self.batch_refused(),
        }
    }

    pub(super) fn broken(&mut self, number: u32, message: u64, refusal: Refusal) {
        if !self.is_present(number) {
            return;
        }
        let Some(batch) = &self.batching.present else { return };
        let expected = (batch.base + message).saturating_sub(1);
        let is_meant = |index: &u64| {
            let entry = self.window.get(*index);
            entry.is_some_and(|it| it.stage == Stage::Sent && it.sent.expected == expected)
        };
        let first = batch.first.max(self.window.first());
        match (first..self.window.end()).find(is_meant) {
            Some(index) => self.refused(index, refusal),
            None => self.batch_refused(),
        }
    }

    /// Not all of the batch is stored, somebody says.
    fn batch_refused(&mut self) {
        let mut unresolved = self.window.iter_unresolved();
        let first = unresolved.find(|(_, it)| it.stage == Stage::Sent).map(|(index, _)| index);
        drop(unresolved);
        if let Some(index) = first {
            self.refused(index, Refusal::ExpectedLastSequence);
        }
    }

    /// Whether others have written to the stream not long ago. A relay that has to stay fenced publishes
    /// without ids: nothing is a duplicate.
    pub(crate) fn is_among_others(&self) -> bool {
        !self.settings.stays_fenced && self.link.is_among_others(self.now)
    }

    fn is_present(&self, number: u32) -> bool {
        self.link.is_up()
            && self.batching.present.as_ref().is_some_and(|batch| batch.number == number)
    }

    fn resolve_first(&mut self, count: u64) {
        let Some(batch) = &self.batching.present else { return };
        let end = batch.base + count.min(batch.sent);
        let mut index = batch.first.max(self.window.first());
        while index < self.window.end() {
            if let Some(entry) = self.window.get(index)
                && entry.stage == Stage::Sent
            {
                let (expected, sent_at) = (entry.sent.expected, entry.sent.at);
                if expected >= end {
                    break;
                }
                self.stream.stored(expected + 1);
                self.link.stored(sent_at);
                self.note_stored(index, Some(expected + 1), false);
            } else if index >= self.sending.next() {
                break;
            }
            index += 1;
        }
        if count > 0 {
            self.stream.reached(end);
        }
        if let Some(batch) = &mut self.batching.present {
            batch.first = index;
        }
        if !self.is_batch_open() {
            self.answered(); // a look may have found what somebody stored behind the batch
        }
    }
}
