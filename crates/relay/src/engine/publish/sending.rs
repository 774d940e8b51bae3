//! What is sent next.

use std::collections::VecDeque;

use pgoutput::Lsn;

use super::Publishing;
use super::parking::Turn;
use crate::engine::messages::{Mode, Send};
use crate::engine::window::{LastPosition, Origin, Outgoing, Stage};
use crate::status::BreakerState;

/// What is sent next.
#[derive(Debug, Default, Clone)]
pub(super) struct Sending {
    /// Fenced mode: the next entry to send. Keyed mode: unused.
    next: u64,
    /// Keyed mode: entries that no entry of their aggregate precedes.
    ready: VecDeque<u64>,
}

impl Sending {
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// An entry is to be looked at again.
    pub(super) fn back_to(&mut self, index: u64) {
        self.next = self.next.min(index);
    }

    /// No entry of its aggregate precedes the entry any more.
    pub(super) fn ready(&mut self, index: u64) {
        self.ready.push_back(index);
    }

    /// Everything from the entry `first` on is sent again.
    pub(super) fn begin_at(&mut self, first: u64) {
        self.next = first;
    }

    pub(super) fn begin_with(&mut self, ready: Vec<u64>) {
        self.ready = ready.into();
    }
}

impl Publishing {
    /// Whether [`next_send`](Self::next_send) or [`next_end`](Self::next_end) would give something.
    pub(crate) fn has_send(&mut self) -> bool {
        self.link.is_up() && (self.sendable().is_some() || self.is_batch_open())
    }

    /// The next message to send; it counts as sent.
    pub(crate) fn next_send(&mut self) -> Option<Send<'_>> {
        if !self.link.is_up() {
            return None;
        }
        let index = self.sendable()?;
        match self.mode {
            Mode::Fenced => self.sending.next = index + 1,
            Mode::Keyed => _ = self.sending.ready.pop_front(),
        }
        if self.stream.in_flight() == 0 {
            self.link.answered(self.now);
        }
        let part = self.next_part();
        let follows = self.stream.sent();
        let expected = (self.mode == Mode::Fenced).then_some(follows);
        let (known_seq, epoch, stored) =
            (self.stream.known_seq(), self.link.epoch(), self.log.stored_position());
        let now = self.now;
        let entry = self.window.get_mut(index)?;
        entry.stage = Stage::Sent;
        entry.sent.again(known_seq, now);
        entry.sent.expected = expected.unwrap_or_default();
        let position = match entry.origin {
            Origin::Log | Origin::Emitted => entry.position,
            // The stream may have got further since: by what a predecessor had sent.
            Origin::Scan(_) | Origin::Replay => {
                // Without any, one that says nothing: who reads it knows whose message it is.
                let event = entry.outgoing.event.id;
                let nowhere = LastPosition { commit_lsn: Lsn::ZERO, ordinal: 0, event };
                let known = LastPosition::later(entry.position, stored);
                known.or((self.settings.resolved_before < Lsn(u64::MAX)).then_some(nowhere))
            }
        };
        let has_row = entry.origin != Origin::Emitted;
        let Outgoing { event, subject, replayed, .. } = &entry.outgoing;
        let subject = subject.as_ref().map_or("", String::as_str);
        let replayed = replayed.as_deref();
        Some(Send { epoch, index, expected, event, subject, position, part, replayed, has_row })
    }

    /// The first entry that may be sent.
    pub(super) fn sendable(&mut self) -> Option<u64> {
        // Behind a message that is refused another one may fit, unless both are in one batch.
        let is_alone = self.mode == Mode::Fenced && !self.is_batch_open();
        let is_probe = self.link.breaker().state() == BreakerState::HalfOpen;
        if self.stream.in_flight() > 0 && (is_alone || is_probe) {
            return None;
        }
        self.waiting()
    }

    /// The first entry that waits. Forgets those on the way that need no sending any more.
    pub(super) fn waiting(&mut self) -> Option<u64> {
        match self.mode {
            Mode::Fenced => {
                self.sending.next = self.sending.next.max(self.window.first());
                loop {
                    if self.is_held(self.sending.next) {
                        return None;
                    }
                    match self.window.get(self.sending.next)?.stage {
                        Stage::Deferred => return None,
                        Stage::Waiting => match self.may_go(self.sending.next) {
                            Turn::Now => return Some(self.sending.next),
                            Turn::Later => return None,
                            Turn::Over => {}
                        },
                        Stage::Sent | Stage::Parking | Stage::Resolved => {}
                    }
                    self.sending.next += 1;
                }
            }
            Mode::Keyed => loop {
                let index = *self.sending.ready.front()?;
                if self.is_held(index) {
                    return None;
                }
                let is_waiting =
                    self.window.get(index).is_some_and(|it| it.stage == Stage::Waiting);
                if is_waiting && self.may_go(index) == Turn::Now {
                    return Some(index);
                }
                self.sending.ready.pop_front();
            },
        }
    }
}
