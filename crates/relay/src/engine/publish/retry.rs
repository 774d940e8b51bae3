//! Events that the stream does not take as it is now.

use std::collections::HashSet;
use std::time::Duration;

use super::{Entry, Publishing, Refusal};
use crate::engine::backoff;
use crate::engine::messages::Mode;
use crate::engine::notice::Notice;
use crate::engine::request::Request;
use crate::engine::window::{Origin, Stage, Tried};
use crate::status::DeadLetterReason;

/// Subjects that were given up on are remembered, so that many events of one subject hold the others
/// up once and not one after the other. Beyond this many the oldest knowledge is not worth keeping.
const GIVEN_UP_MAX: usize = 1_000;

/// How long to wait with an event whose id the stream remembers, and that it does not have.
const DUPLICATE_PAUSE: Duration = Duration::from_secs(2);

/// Events that the stream does not take as it is.
#[derive(Debug, Default, Clone)]
pub(super) struct Retries {
    /// Subjects of which an event ran out of attempts, and none was stored since.
    given_up: HashSet<String>,
    /// When the first deferred event is due.
    next: Option<Duration>,
    /// When the stream's limits were asked for last.
    limits_at: Option<Duration>,
}

impl Retries {
    pub(super) fn next(&self) -> Option<Duration> {
        self.next
    }

    fn are_due(&self, now: Duration) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    fn defer_until(&mut self, due: Duration) {
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }

    fn give_up(&mut self, subject: &str) {
        if self.given_up.len() >= GIVEN_UP_MAX {
            self.given_up.clear();
        }
        self.given_up.insert(subject.to_owned());
    }

    /// The stream takes the event's subject.
    pub(super) fn stored(&mut self, entry: &Entry) {
        if !self.given_up.is_empty()
            && let Ok(subject) = &entry.outgoing.subject
        {
            self.given_up.remove(subject);
        }
    }

    pub(super) fn limits_asked(&mut self, now: Duration) {
        self.limits_at = Some(now);
    }
}

impl Publishing {
    /// The client would not send it. Nothing left.
    pub(super) fn unsendable(&mut self, index: u64, refusal: Refusal) {
        match refusal {
            Refusal::OverLimit(_) if !self.limits_are_newer_than(index) => {
                // An operator may have raised the limit since it was read.
                self.wait_again(index);
                self.resync(Duration::ZERO, "reading the stream's limits anew".into());
            }
            Refusal::Message(reason) | Refusal::OverLimit(reason) => {
                let reason = self.said_of(index).unwrap_or(reason);
                self.park(index, reason, DeadLetterReason::Refused);
            }
            Refusal::Unwelcome(reason) => self.unwelcome(index, reason),
            Refusal::Outage(why) | Refusal::Configuration(why) | Refusal::NoBatches(why) => {
                self.outage(why);
            }
            Refusal::ExpectedLastSequence => {}
        }
    }

    /// Nothing overtakes it meanwhile.
    fn wait_until(&mut self, index: u64, due: Duration) {
        let Some(entry) = self.window.get_mut(index) else { return };
        (entry.stage, entry.not_before) = (Stage::Deferred, due);
        self.sending.back_to(index);
        self.retries.defer_until(due);
    }

    /// The stream does not have the message that an answer called a duplicate. The answer is not the
    /// stream's, or the message was removed and the stream still remembers its id: until it has
    /// forgotten that it does not store the event.
    pub(super) fn lacks_duplicate(&mut self, index: u64, seq: u64) {
        let Some(entry) = self.window.get(index) else { return };
        let (id, attempts) = (entry.outgoing.event.id, entry.attempts);
        self.stream.given_up();
        if self.mode == Mode::Fenced {
            // Everything behind it expects one message too many. It is read from before this message as
            // long as this counts as sent: the answer may be forged, and the message stored.
            self.resync(Duration::ZERO, "a message that is said to be there is not".into());
        }
        self.wait_until(index, self.now + DUPLICATE_PAUSE);
        let reason =
            format!("it is said to be message {seq}, and the stream does not have it there");
        let about = self.about(index, id);
        let notice = Notice::TryingAgain { about, attempts, reason, pause: DUPLICATE_PAUSE };
        self.output.requests.push_back(Request::Tell(notice));
    }

    /// The broker's user may not publish on a subject: the one message of it that was sent first
    /// will never be answered.
    pub(super) fn denied(&mut self, subject: &str, reason: String) {
        let of_subject =
            |entry: &super::Entry| entry.outgoing.subject.as_ref().is_ok_and(|it| it == subject);
        let mut unresolved = self.window.iter_unresolved();
        let Some((index, entry)) = unresolved.find(|(_, entry)| of_subject(entry)) else { return };
        let was_sent = entry.stage == Stage::Sent;
        drop(unresolved);
        if was_sent {
            self.stream.given_up();
            self.unwelcome(index, reason);
            if self.mode == Mode::Fenced {
                // Everything behind it expects one message too many.
                self.resync(Duration::ZERO, "an event may not be published".into());
            }
        } else if self.stage(index) == Some(Stage::Waiting) {
            self.unwelcome(index, reason);
        }
    }

    /// Not now: tries again later, up to a number of attempts. Nothing overtakes it meanwhile: in
    /// fenced mode the stream waits, in keyed mode its aggregate.
    pub(super) fn unwelcome(&mut self, index: u64, reason: String) {
        if self.is_replayed(index) {
            return self.replay_failed(index, reason); // nobody waits for it
        }
        let is_fresh = self.limits_are_newer_than(index);
        let Some(entry) = self.window.get_mut(index) else { return };
        entry.attempts = entry.attempts.saturating_add(1);
        let subject = entry.outgoing.subject.as_deref().unwrap_or_default();
        let is_hopeless = is_fresh && self.retries.given_up.contains(subject);
        if entry.attempts >= self.settings.max_attempts || is_hopeless {
            self.retries.give_up(subject);
            self.park(index, reason, DeadLetterReason::MaxAttempts);
            return;
        }
        let attempts = entry.attempts;
        let pause = backoff::EVENT.after(attempts);
        let (id, has_row) = (entry.outgoing.event.id, entry.origin != Origin::Emitted);
        self.wait_until(index, self.now + pause);
        self.figures.counts.deferred += 1;
        self.output.requests.push_back(Request::NoteFailure {
            index,
            id,
            has_row,
            attempts,
            reason,
            pause,
        });
    }

    /// An event came that earlier sessions have tried: it waits for as long as its row says.
    pub(super) fn was_tried(&mut self, index: u64, Tried { attempts, pause }: Tried) {
        let Some(entry) = self.window.get_mut(index) else { return };
        entry.attempts = attempts;
        if pause.is_zero() || entry.stage != Stage::Waiting {
            return;
        }
        let retry = self.now + pause;
        (entry.stage, entry.not_before) = (Stage::Deferred, retry);
        self.retries.defer_until(retry);
    }

    /// Lets events try again whose pause is over, on what the stream is then.
    pub(super) fn retry(&mut self) {
        if !self.link.is_up() || !self.retries.are_due(self.now) {
            return;
        }
        self.retries.next = None;
        let deferred: Vec<(u64, Duration)> = self
            .window
            .iter_unresolved()
            .filter(|(_, entry)| entry.stage == Stage::Deferred)
            .map(|(index, entry)| (index, entry.not_before))
            .collect();
        let mut is_due = false;
        for (index, not_before) in deferred {
            if not_before > self.now {
                self.retries.defer_until(not_before);
            } else if let Some(entry) = self.window.get_mut(index) {
                entry.stage = Stage::Waiting;
                is_due = true;
            }
        }
        if is_due {
            self.resync(Duration::ZERO, "trying an event again".into());
        }
    }

    /// Whether the stream's limits were read after the event came in.
    fn limits_are_newer_than(&self, index: u64) -> bool {
        let received_at = self.window.get(index).map(|entry| entry.received_at);
        received_at.is_some_and(|at| self.retries.limits_at.is_some_and(|limits| limits >= at))
    }

    fn wait_again(&mut self, index: u64) {
        if let Some(entry) = self.window.get_mut(index) {
            entry.stage = Stage::Waiting;
            self.sending.back_to(index);
        }
    }

    fn stage(&self, index: u64) -> Option<Stage> {
        self.window.get(index).map(|entry| entry.stage)
    }
}
