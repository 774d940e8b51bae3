//! Fast-ingest batches (ADR-50): one answer for hundreds of messages, and nothing stored behind the
//! first one that is refused or lost.
//!
//! A batch lasts as long as there is something to send and ends with the last message that waits,
//! so that its answer comes at once. The next one begins when all of it is answered: batches that
//! overlap could be stored in part each. A message that has nothing behind it goes by itself, and
//! so does the first one after the stream's tail was read: its answer tells a duplicate, which a
//! batch swallows.

use super::Publishing;
use crate::engine::input::Refusal;
use crate::engine::messages::{Mode, Part};
use crate::engine::window::Stage;

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
    /// The stream has taken a message since its tail was read: until then none goes in a batch.
    is_answered: bool,
}

impl Batching {
    pub(super) fn begun(&self) -> u32 {
        self.begun
    }

    /// The stream has taken a message.
    pub(super) fn answered(&mut self) {
        self.is_answered = true;
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
            if !more || !self.batching.is_answered {
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
        batch.is_open = more;
        Some(Part { batch: batch.number, number: batch.sent, last: !more })
    }

    /// The message added last did not leave.
    pub(super) fn take_out_of_batch(&mut self) {
        if let Some(batch) = &mut self.batching.present {
            batch.sent -= 1;
            // Somebody has to end it, now that its last message may be missing.
            batch.is_open = batch.sent > 0;
        }
    }

    pub(super) fn stored(&mut self, batch: u32, count: u64) {
        if !self.is_present(batch) {
            return;
        }
        self.link.answered(self.now);
        self.resolve_first(count);
    }

    pub(super) fn ended(&mut self, number: u32, count: u64, seq: u64) {
        if !self.is_present(number) {
            return;
        }
        let Some(batch) = &self.batching.present else { return };
        let as_expected = seq == batch.base + count;
        let whole = !batch.is_open && count == batch.sent;
        if as_expected {
            self.stored(number, count);
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
        if !self.is_batch_open() {
            self.stream.settle(); // a look may have found what somebody stored behind the batch
        }
        if let Some(batch) = &mut self.batching.present {
            batch.first = index;
        }
    }
}
