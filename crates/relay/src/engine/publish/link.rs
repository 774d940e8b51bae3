//! The connection to the broker, and whether what is known of the stream may be acted on.

use std::time::Duration;

use crate::engine::breaker::Breaker;

/// Foreign messages further apart than this are accidents, not another writer.
const FOREIGN_RESYNCS_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Up,
    /// The breaker is open: the tail, from this sequence on, is to be read later.
    Waiting {
        from: u64,
    },
    /// Waiting for the tail: nothing is sent, and answers to what was sent no longer count.
    Resyncing {
        from: u64,
    },
}

/// What a reading of the tail is worth.
pub(super) enum Reading {
    Counts,
    /// It was begun before something was known, or over a former connection.
    TooEarly,
    /// The stream ends before what was known when the reading was begun.
    Shorter,
}

#[derive(Debug, Clone)]
pub(super) struct Broker {
    state: Link,
    /// What the link waits for, or last waited for.
    why: String,
    breaker: Breaker,
    /// Numbers the periods between resyncs, so that late answers can be told from current ones.
    epoch: u32,
    last_answer: Duration,
    /// When the latest of the messages that were answered had been sent.
    answered_until: Duration,
    /// Resyncs since the broker last stored something.
    fruitless_resyncs: u32,
    foreign_resyncs: u32,
    last_foreign: Option<Duration>,
    /// What was known to be in the stream when a tail was asked for that came shorter before.
    shorter_than: Option<u64>,
    /// The reading that is under way does not count.
    is_read_too_early: bool,
}

impl Broker {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            state: Link::Up,
            why: String::new(),
            breaker: Breaker::new(seed),
            epoch: 0,
            last_answer: Duration::ZERO,
            answered_until: Duration::ZERO,
            fruitless_resyncs: 0,
            foreign_resyncs: 0,
            last_foreign: None,
            shorter_than: None,
            is_read_too_early: false,
        }
    }

    pub(super) fn state(&self) -> Link {
        self.state
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == Link::Up
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether an answer to what was sent in a period counts.
    pub(super) fn counts(&self, epoch: u32) -> bool {
        self.is_up() && self.epoch == epoch
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    pub(super) fn fruitless_resyncs(&self) -> u32 {
        self.fruitless_resyncs
    }

    /// Since when the broker is silent about what was sent at `sent_at` first of all that is unanswered.
    pub(super) fn silent_since(&self, sent_at: Option<Duration>) -> Duration {
        let overtaken = sent_at.filter(|sent_at| *sent_at < self.answered_until);
        overtaken.unwrap_or(self.last_answer)
    }

    /// The broker answers, or has nothing to answer until now.
    pub(super) fn answered(&mut self, now: Duration) {
        self.last_answer = now;
    }

    /// The broker has stored a message that was sent then.
    pub(super) fn stored(&mut self, sent_at: Duration) {
        self.answered_until = self.answered_until.max(sent_at);
        self.works();
    }

    /// Something that was sent is in the stream.
    pub(super) fn works(&mut self) {
        self.fruitless_resyncs = 0;
        self.breaker.succeeded();
    }

    /// There is nothing to try the broker with.
    pub(super) fn trusted(&mut self) {
        self.breaker.succeeded();
    }

    /// Answers to what was sent count no more.
    pub(super) fn resync(&mut self, from: u64, why: String) {
        self.epoch += 1;
        self.fruitless_resyncs += 1;
        (self.state, self.why) = (Link::Waiting { from }, why);
    }

    pub(super) fn failed(&mut self, now: Duration) {
        self.breaker.failed(now);
    }

    /// The tail could not be read.
    pub(super) fn tail_failed(&mut self, from: u64, now: Duration, why: String) {
        self.is_read_too_early = false;
        self.failed(now);
        (self.state, self.why) = (Link::Waiting { from }, why);
    }

    /// The connection was replaced while the tail is read, perhaps to another server.
    pub(super) fn reads_too_early(&mut self) {
        self.is_read_too_early = true;
    }

    /// What a tail that ends at `last_seq` says, where messages up to `known` are known to be stored.
    pub(super) fn judge(&mut self, last_seq: u64, known: u64) -> Reading {
        let was_known = self.shorter_than.is_some_and(|it| last_seq < it);
        let is_early = std::mem::take(&mut self.is_read_too_early);
        if !is_early && last_seq >= known {
            return Reading::Counts;
        }
        if !is_early && was_known {
            return Reading::Shorter;
        }
        self.shorter_than = Some(known);
        if let Link::Resyncing { from } = self.state {
            self.state = Link::Waiting { from };
        }
        Reading::TooEarly
    }

    /// The breaker forbids nothing before the next failure.
    pub(super) fn attempt(&mut self) {
        self.breaker.attempt();
    }

    /// The tail is to be read, unless the breaker says not yet. Says from where on, and why.
    pub(super) fn ask_for_tail(&mut self, now: Duration) -> Option<(u64, String)> {
        let Link::Waiting { from } = self.state else { return None };
        if self.breaker.forbids(now) {
            return None;
        }
        self.breaker.attempt();
        self.state = Link::Resyncing { from };
        Some((from, self.why.clone()))
    }

    /// The tail is read.
    pub(super) fn up(&mut self) {
        (self.state, self.shorter_than) = (Link::Up, None);
    }

    /// Whether another writer's message was found not long ago.
    pub(super) fn is_among_others(&self, now: Duration) -> bool {
        self.last_foreign.is_some_and(|it| now.saturating_sub(it) <= FOREIGN_RESYNCS_WITHIN)
    }

    /// There were foreign messages.
    pub(super) fn saw_foreign(&mut self, now: Duration) {
        if !self.is_among_others(now) {
            self.foreign_resyncs = 0;
        }
        self.last_foreign = Some(now);
    }

    /// They have cost a resync. Says how often that was so, one soon after the other.
    pub(super) fn was_disturbed(&mut self, now: Duration) -> u32 {
        self.saw_foreign(now);
        self.foreign_resyncs += 1;
        self.foreign_resyncs
    }
}
