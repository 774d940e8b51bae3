//! What is sent next.

use pgoutput::Lsn;

use super::blocking::Turn;
use super::{Link, Publishing};
use crate::engine::messages::{Mode, Send};
use crate::engine::window::{LastPosition, Origin, Outgoing, Stage};
use crate::status::BreakerState;

impl Publishing {
    /// Whether [`next_send`](Self::next_send) or [`next_end`](Self::next_end) would give something.
    pub(crate) fn has_send(&mut self) -> bool {
        self.link.state == Link::Up && (self.sendable().is_some() || self.is_batch_open())
    }

    /// The next message to send; it counts as sent.
    pub(crate) fn next_send(&mut self) -> Option<Send<'_>> {
        if self.link.state != Link::Up {
            return None;
        }
        let index = self.sendable()?;
        match self.mode {
            Mode::Fenced => self.sending.next = index + 1,
            Mode::Keyed => _ = self.sending.ready.pop_front(),
        }
        if self.stream.in_flight == 0 {
            self.link.last_answer = self.now;
        }
        self.stream.in_flight += 1;
        let part = self.next_part();
        let expected = (self.mode == Mode::Fenced).then_some(self.stream.expected);
        self.stream.expected += 1;
        let (known_seq, epoch, stored) =
            (self.stream.known_seq, self.link.epoch, self.log.stored_position);
        let now = self.now;
        let entry = self.window.get_mut(index)?;
        entry.stage = Stage::Sent;
        (entry.sent.after, entry.sent.at) = (known_seq, now);
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
        // While there was nothing to send somebody else may have written to the stream. Then the
        // expected sequence is too low: the first message is refused, but one behind it would fit. In a
        // batch it would not.
        let alone = if self.sending.batching.is_possible {
            !self.is_batch_open()
        } else {
            !self.stream.proven
        };
        let is_probe = self.link.breaker.state() == BreakerState::HalfOpen;
        if self.stream.in_flight > 0 && (self.mode == Mode::Fenced && alone || is_probe) {
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
                    if self.is_doubtful(self.sending.next) {
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
                if self.is_doubtful(index) {
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
