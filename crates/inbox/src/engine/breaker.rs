//! Whether handlers may be started, and whose fault a failure is.
//!
//! ```text
//!            failed                  time, or another event
//!   closed ─────────▶ open ─────────────────────────────────▶ half-open
//!      ▲               ▲                                        │   │
//!      │               └──────────────── failed ────────────────┘   │
//!      └─────────────────────────── answered ───────────────────────┘
//! ```
//!
//! A failure that says nothing about the event (no connection, no answer, "not now", "not found")
//! may be an outage, or it may be one event that brings the service down each time. One attempt does
//! not tell them apart, so it is not counted, and another event is the probe. If that one fails too,
//! it is an outage: nothing is started but one probe after each pause. If it is answered, and nobody
//! but the first event has failed, the first event is *suspected*. Suspects are tried one at a time.
//! A suspect that fails alone once more, while the next event is answered again, is *at fault*:
//! from then on each such failure counts as an attempt.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::lanes::{Item, Lanes};
use crate::message::MessageId;

/// Failures in a row after which the consumer is paused: the second one may not be an accident.
const OUTAGE_MIN: u32 = 2;

/// The longest pause that is kept because a service asks for it, unless those of the consumer are longer.
const ASKED_MAX: Duration = Duration::from_mins(10);

/// A handler that cannot work at the moment, whatever the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) kind: TroubleKind,
    pub(crate) reason: String,
    /// The pause that the handler asks for.
    pub(crate) after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TroubleKind {
    /// What the handler needs is away.
    Away,
    /// The handler is not set up right.
    Misconfigured,
}

/// Which events may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// All, but one suspect at a time.
    All,
    /// One.
    Probe,
    /// One that has not failed since the handler answered last.
    OtherProbe,
    Nothing,
}

/// An event that failed alone, and how often.
#[derive(Debug, Clone, Copy, Default)]
struct Suspect {
    strikes: u32,
}

#[derive(Debug)]
struct Failure {
    /// Orders failures: who failed longest ago is the next probe.
    turn: u64,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    Open { until: Instant },
    HalfOpen { probe: MessageId },
}

/// Says when to try a handler again that fails whatever the event. Memory is bounded by the events
/// that are held: whoever has its end is forgotten.
#[derive(Debug)]
pub(crate) struct Breaker {
    phase: Phase,
    /// Of the probes.
    backoff: Backoff,
    /// In a row, probes and those that were under way.
    failures: u32,
    trouble: Option<(TroubleKind, String)>,
    /// Events that failed since the handler answered last.
    failing: HashMap<MessageId, Failure>,
    /// How many of them were given up since.
    gone: usize,
    suspects: HashMap<MessageId, Suspect>,
    /// The suspect that is at work.
    trial: Option<MessageId>,
    turns: u64,
    opened: u64,
}

/// An event whose failure counts, and what it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AtFault {
    pub(crate) id: MessageId,
    pub(crate) reason: String,
}

impl Breaker {
    /// The pauses are drawn from `backoff.first`, doubled with every failed probe, up to twice
    /// `backoff.max`: 1 s to 10 min unless configured otherwise.
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            phase: Phase::Closed,
            backoff: Backoff { max: backoff.max * 2, ..backoff },
            failures: 0,
            trouble: None,
            failing: HashMap::new(),
            gone: 0,
            suspects: HashMap::new(),
            trial: None,
            turns: 0,
            opened: 0,
        }
    }

    /// Takes what may be started, up to `max` events that are handled in the same way.
    pub(crate) fn take(&mut self, lanes: &mut Lanes, max: usize, now: Instant) -> Vec<Item> {
        let one = max.min(1);
        let leave = self.leave(now);
        let mut taken = match leave {
            Leave::Nothing => return Vec::new(),
            Leave::All if self.trial.is_some() || self.suspects.is_empty() => Vec::new(),
            Leave::All => lanes.take(one, |id| self.suspects.contains_key(&id)),
            Leave::Probe | Leave::OtherProbe => lanes.take(one, |id| self.is_other(id)),
        };
        // It may have killed the process: it gets its turn only if the others end first.
        let waits = |id| leave == Leave::All && self.suspects.contains_key(&id);
        if self.trial.is_none() && taken.is_empty() && lanes.has_alone(waits) {
            return taken;
        }
        if taken.is_empty() {
            taken = match leave {
                Leave::All => lanes.take(max, |id| !self.suspects.contains_key(&id)),
                Leave::Probe => {
                    // All have failed: whose failure is the longest ago?
                    let turn = |id: &MessageId| self.failing.get(id).map(|it| it.turn);
                    let next = lanes.ready().min_by_key(turn);
                    lanes.take(one, |id| Some(id) == next)
                }
                Leave::OtherProbe | Leave::Nothing => Vec::new(),
            };
        }
        taken.iter().for_each(|item| self.started(item.id()));
        taken
    }

    /// Whether every event that was taken may still be handed to the handler.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether an event that was taken may still be handed to the handler.
    pub(crate) fn may_begin(&self, id: MessageId) -> bool {
        match self.phase {
            Phase::Closed => true,
            Phase::Open { .. } => false,
            Phase::HalfOpen { probe } => probe == id,
        }
    }

    fn leave(&self, now: Instant) -> Leave {
        match self.phase {
            Phase::Closed => Leave::All,
            Phase::Open { until } if now >= until => Leave::Probe,
            // It may be about this one event.
            Phase::Open { .. } if self.failing.len() + self.gone <= 1 => Leave::OtherProbe,
            Phase::Open { .. } | Phase::HalfOpen { .. } => Leave::Nothing,
        }
    }

    /// Whether there is a probe that has not failed since the handler answered last.
    pub(crate) fn has_other(&self, lanes: &Lanes) -> bool {
        lanes.ready().any(|id| self.is_other(id))
    }

    fn is_other(&self, id: MessageId) -> bool {
        // A suspect proves nothing about another one.
        !self.failing.contains_key(&id) && !self.suspects.contains_key(&id)
    }

    /// An event is handed to the handler.
    fn started(&mut self, id: MessageId) {
        if let Phase::Open { .. } = self.phase {
            self.phase = Phase::HalfOpen { probe: id };
        }
        if self.suspects.contains_key(&id) {
            self.trial = Some(id);
        }
    }

    /// A handler failed in a way that says nothing about the event. `chance` is in `0..1`. Returns
    /// whether the consumer pauses from now on.
    pub(crate) fn failed(
        &mut self,
        id: MessageId,
        trouble: Trouble,
        now: Instant,
        chance: f64,
    ) -> bool {
        let Trouble { kind, reason, after } = trouble;
        let was_open = self.pause().is_some();
        self.trial = self.trial.filter(|trial| *trial != id);
        self.turns += 1;
        self.failing.insert(id, Failure { turn: self.turns, reason: reason.clone() });
        self.trouble = Some((kind, reason));
        match self.phase {
            // Under way when the first failed.
            Phase::HalfOpen { probe } if probe != id => self.failures = self.failures.max(2),
            Phase::Open { .. } => self.failures = self.failures.max(2),
            Phase::Closed | Phase::HalfOpen { .. } => {
                self.failures += 1;
                let bound = self.backoff.after(self.failures.saturating_sub(OUTAGE_MIN) + 1);
                let asked = after.unwrap_or_default().min(ASKED_MAX.max(self.backoff.max));
                let pause = bound.mul_f64(chance).max(asked);
                self.phase = Phase::Open { until: now + pause };
            }
        }
        let opens = !was_open && self.pause().is_some();
        self.opened += u64::from(opens);
        opens
    }

    /// A handler gave an answer that is about the event. Returns whose failure is thereby proven to
    /// be its own.
    pub(crate) fn answered(&mut self, id: MessageId) -> Option<AtFault> {
        self.forget(id);
        match self.phase {
            Phase::HalfOpen { probe } if probe == id => {}
            // It was begun before the failure, and proves nothing about what came after.
            Phase::HalfOpen { .. } | Phase::Open { .. } | Phase::Closed => return None,
        }
        self.phase = Phase::Closed;
        self.failures = 0;
        self.trouble = None;
        let alone = self.failing.len() + std::mem::take(&mut self.gone) == 1;
        let mut at_fault = None;
        for (id, failure) in self.failing.drain() {
            let suspect = self.suspects.entry(id).or_default();
            if alone {
                suspect.strikes += 1;
                at_fault = (suspect.strikes > 1).then_some(AtFault { id, reason: failure.reason });
            }
        }
        at_fault
    }

    /// An event was taken, and the handler was not asked after all.
    pub(crate) fn not_asked(&mut self, id: MessageId, now: Instant) {
        self.trial = self.trial.filter(|trial| *trial != id);
        if self.phase == (Phase::HalfOpen { probe: id }) {
            self.phase = Phase::Open { until: now };
        }
    }

    /// Somebody says that the handler works again: it is taken for one that never failed. A probe that
    /// is at work counts like any other event.
    pub(crate) fn reset(&mut self) {
        self.phase = Phase::Closed;
        self.failures = 0;
        self.trouble = None;
        self.failing.clear();
        self.gone = 0;
    }

    /// What the handler needs has changed: the next probe is due.
    pub(crate) fn probe(&mut self, now: Instant) {
        if let Phase::Open { until } = &mut self.phase {
            *until = now;
        }
    }

    /// An event that failed becomes a dead letter. It counts among those that failed all the same.
    pub(crate) fn given_up(&mut self, id: MessageId) {
        self.gone += usize::from(self.failing.contains_key(&id));
        self.forget(id);
    }

    /// An event has had its end.
    pub(crate) fn forget(&mut self, id: MessageId) {
        if self.failing.is_empty() && self.suspects.is_empty() {
            return; // A suspect is on trial, if anything is.
        }
        self.failing.remove(&id);
        self.suspects.remove(&id);
        self.trial = self.trial.filter(|trial| *trial != id);
    }

    pub(super) fn assert_holds(&self) {
        let is_suspect = |id| self.suspects.contains_key(&id);
        assert!(self.trial.is_none_or(is_suspect), "an event on trial that is no suspect");
        assert!(self.phase != Phase::Closed || self.failures == 0, "closed after a failure");
        assert!(self.failures == 0 || self.trouble.is_some(), "paused, and nobody knows why");
        let turns = self.failing.values().all(|it| it.turn <= self.turns);
        assert!(turns, "a failure that is to come");
    }

    /// Why the consumer is paused, if it is.
    pub(crate) fn pause(&self) -> Option<(TroubleKind, &str)> {
        if self.phase == Phase::Closed || self.failures < OUTAGE_MIN {
            return None;
        }
        self.trouble.as_ref().map(|(kind, reason)| (*kind, reason.as_str()))
    }

    /// When the next probe may be started, while it may not.
    pub(crate) fn next_probe(&self, now: Instant) -> Option<Instant> {
        match self.phase {
            Phase::Open { until } if until > now => Some(until),
            Phase::Open { .. } | Phase::HalfOpen { .. } | Phase::Closed => None,
        }
    }

    pub(crate) fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::HalfOpen { .. })
    }

    /// How often it opened.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lanes::{Ending, Path};
    use crate::engine::simulation::{delivered, id};

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) };

    fn away() -> Trouble {
        Trouble { kind: TroubleKind::Away, reason: "503".into(), after: None }
    }

    #[test]
    fn two_that_fail_are_an_outage_with_pauses_that_double_up_to_ten_minutes() {
        let mut breaker = Breaker::new(BACKOFF);
        let mut now = Instant::now();
        assert!(!breaker.failed(id(1), away(), now, 1.0), "it may be about this one");
        assert_eq!(breaker.leave(now), Leave::OtherProbe);
        breaker.started(id(2));
        assert_eq!(breaker.leave(now), Leave::Nothing);
        assert!(breaker.failed(id(2), away(), now, 1.0));
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            let until = breaker.next_probe(now).expect("a pause");
            assert_eq!(until - now, Duration::from_secs(seconds));
            assert_eq!(breaker.leave(now), Leave::Nothing);
            now = until;
            assert_eq!(breaker.leave(now), Leave::Probe);
            breaker.started(id(1));
            assert!(!breaker.failed(id(1), away(), now, 1.0), "it is open already");
        }
        breaker.not_asked(id(7), now);
        breaker.started(id(2));
        now = breaker.next_probe(now).unwrap_or(now);
        assert_eq!((breaker.answered(id(2)), breaker.opened()), (None, 1));
        assert_eq!((breaker.leave(now), breaker.pause()), (Leave::All, None));
    }

    #[test]
    fn who_fails_alone_twice_between_answers_is_at_fault() {
        let mut breaker = Breaker::new(BACKOFF);
        let now = Instant::now();
        for at_fault in [false, true, true] {
            breaker.started(id(1));
            breaker.failed(id(1), away(), now, 1.0);
            assert_eq!(breaker.pause(), None, "the others go on");
            breaker.started(id(2));
            assert_eq!(breaker.answered(id(2)).map(|it| it.id), at_fault.then_some(id(1)));
            assert!(breaker.suspects.contains_key(&id(1)));
        }
        assert_eq!(breaker.answered(id(1)), None);
        assert!(!breaker.suspects.contains_key(&id(1)), "it was answered");
    }

    #[test]
    fn who_fails_beside_one_that_is_given_up_does_not_fail_alone() {
        let mut breaker = Breaker::new(BACKOFF);
        let now = Instant::now();
        breaker.failed(id(1), away(), now, 1.0);
        breaker.started(id(2));
        breaker.failed(id(2), away(), now, 1.0);
        breaker.given_up(id(2));
        assert_eq!(breaker.leave(now), Leave::Nothing);
        breaker.started(id(3));
        breaker.answered(id(3));
        assert_eq!(breaker.suspects[&id(1)].strikes, 0);
    }

    #[test]
    fn what_was_under_way_before_proves_nothing() {
        let mut breaker = Breaker::new(BACKOFF);
        let now = Instant::now();
        breaker.failed(id(1), away(), now, 1.0);
        assert_eq!(breaker.answered(id(9)), None);
        assert_eq!(breaker.leave(now), Leave::OtherProbe);
        breaker.started(id(2));
        assert!(breaker.failed(id(3), away(), now, 1.0), "a second one: an outage");
        assert_eq!(breaker.answered(id(2)), None, "it may have been one");
        assert_eq!(breaker.leave(now), Leave::All);
    }

    #[test]
    fn a_probe_that_was_not_asked_gives_its_place_to_another() {
        let mut breaker = Breaker::new(BACKOFF);
        let now = Instant::now();
        breaker.failed(id(1), away(), now, 1.0);
        breaker.started(id(2));
        breaker.not_asked(id(2), now);
        assert_eq!(breaker.leave(now), Leave::Probe);
    }

    #[test]
    fn a_suspect_that_has_to_be_alone_gets_its_turn_however_many_others_come() {
        let (mut breaker, mut lanes) = (Breaker::new(BACKOFF), Lanes::default());
        let now = Instant::now();
        breaker.failed(id(1), away(), now, 1.0);
        breaker.started(id(2));
        breaker.answered(id(2));
        for (seq, path) in [(1, Path::Alone), (2, Path::Careful), (3, Path::Careful)] {
            lanes.offer(delivered(seq, 9, None, path), now);
        }
        assert_eq!(lanes.take(1, |it| it == id(2)).len(), 1);
        assert!(breaker.take(&mut lanes, 8, now).is_empty(), "it waits for what is at work");
        lanes.ended(id(2), Ending::Resolved, now);
        let taken: Vec<_> = breaker.take(&mut lanes, 8, now).iter().map(Item::id).collect();
        assert_eq!(taken, [id(1)]);
    }

    #[test]
    fn a_pause_that_the_service_asks_for_is_kept() {
        let mut breaker = Breaker::new(BACKOFF);
        let now = Instant::now();
        let trouble = Trouble { after: Some(Duration::from_secs(30)), ..away() };
        breaker.failed(id(1), trouble.clone(), now, 0.5);
        assert_eq!(breaker.next_probe(now), Some(now + Duration::from_secs(30)));
        let second = Duration::from_secs(1);
        let mut hasty = Breaker::new(Backoff { first: second, max: second });
        hasty.failed(id(1), trouble, now, 0.5);
        assert_eq!(hasty.next_probe(now), Some(now + Duration::from_secs(30)));
    }
}
