//! How a consumer is, and how far its events have their end.

use std::time::Instant;

use super::ConsumerEngine;
use crate::engine::consumer_effect::Pause;
use crate::engine::report::Outcome;
use crate::{BreakerState, Handler, HeldUp, State, Status, Summary};

impl ConsumerEngine {
    pub(super) fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Processed => self.counts.processed += 1,
            Outcome::Skipped => self.counts.skipped += 1,
            Outcome::Retried => self.counts.retried += 1,
            Outcome::Dead | Outcome::Expired(_) => self.counts.dead += 1,
            Outcome::Trouble(_) | Outcome::Undone => {}
        }
        match outcome {
            Outcome::Processed | Outcome::Retried => {
                self.batch = (self.batch + 1).min(self.start.batch);
            }
            // One that fails undoes its whole batch: with many of them, smaller ones are better.
            Outcome::Undone if self.start.shares => {
                self.batch = (self.batch - self.batch / 8).max(1);
            }
            Outcome::Skipped
            | Outcome::Dead
            | Outcome::Trouble(_)
            | Outcome::Expired(_)
            | Outcome::Undone => {}
        }
    }

    /// How the consumer is; `paused` is [`Self::pause`] in words, and `counted` what others count.
    pub(crate) fn status(&self, paused: Option<String>, counted: Status) -> Status {
        let state = match (self.is_stopping(), &paused) {
            (true, _) => State::Stopping,
            (false, Some(_)) => State::Paused,
            (false, None) => State::Active,
        };
        Status {
            state,
            paused,
            handler: self.handler(),
            busy: if self.start.shares { self.lanes.busy() } else { self.groups.handled() },
            lanes: self.lanes.len(),
            held: self.lanes.held(),
            left: self.lanes.left(),
            counts: self.counts,
            ..counted
        }
    }

    /// Why nothing is started, or only probes are, or nothing is taken in; if it is so.
    pub(crate) fn pause(&self, now: Instant) -> Option<Pause<'_>> {
        let handler = || self.breaker.pause().map(|(kind, reason)| Pause::Handler(kind, reason));
        let broker = || self.surroundings.broker.as_deref().map(Pause::Broker);
        let full =
            || self.capacity.full().map(|full| Pause::Full { full, left: self.lanes.left() });
        self.paused_by(now).or_else(handler).or_else(broker).or_else(full)
    }

    /// The operator who keeps it from working, if nothing else does.
    pub(crate) fn held_by(&self, now: Instant) -> Option<&str> {
        match (self.paused_by(now), &self.surroundings.broker) {
            (Some(Pause::Operator(by)), None) => Some(by),
            _ => None,
        }
    }

    fn handler(&self) -> Handler {
        let breaker = match self.breaker.pause() {
            None => BreakerState::Closed,
            Some(_) if self.breaker.is_half_open() => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        };
        let next_probe_at = self.next_probe_at.filter(|_| breaker == BreakerState::Open);
        Handler { breaker, next_probe_at, opened: self.breaker.opened() }
    }

    /// What waits for another attempt.
    pub(crate) fn held_up(&self) -> Vec<HeldUp> {
        self.lanes.held_up()
    }

    /// Whether no event is held or left.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.len() == 0
    }

    /// Up to which message of the stream all that was delivered has its end.
    pub(crate) fn ended(&self) -> u64 {
        self.lanes.first().map_or(self.newest, |first| self.newest.min(first - 1))
    }

    pub(crate) fn counts(&self) -> Summary {
        self.counts
    }
}
