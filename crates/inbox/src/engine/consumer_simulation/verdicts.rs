//! What handlers say, what is done about it, and the effects that they have.

use std::time::{Duration, Instant};

use rand::RngExt;
use uuid::Uuid;

use super::{AGGREGATES, ATTEMPTS_MAX, BACKOFF, Fate, Nature, World, id_of};
use crate::Verdict;
use crate::engine::{Decision, Item, Path, Patience, Pauses, Report, decide};
use crate::record::Cause;

impl World {
    pub(super) fn verdict(&mut self, seq: u64, began: Instant) -> Verdict {
        if self.is_service_away(began) || self.is_service_away(self.now) {
            return Verdict::outage("503");
        }
        match self.nature(seq) {
            Nature::Good | Nature::Slow | Nature::Killer => Verdict::processed(),
            Nature::Flaky => {
                let failed = self.failed_calls.entry(id_of(seq)).or_default();
                *failed += 1;
                if *failed <= 2 { Verdict::retry("not yet") } else { Verdict::processed() }
            }
            Nature::Poison => Verdict::retry("never"),
            Nature::Rejected => Verdict::dead("no"),
            Nature::Downer => Verdict::outage("it is down"),
        }
    }

    pub(super) fn decide(&mut self, verdict: Verdict, attempts: u32) -> Decision {
        let is_outage = matches!(verdict, Verdict::Outage { .. });
        let pauses = Pauses::from(BACKOFF);
        let patience =
            Patience { max_attempts: ATTEMPTS_MAX, pauses: &pauses, give_up_after: None };
        let tried = (attempts, Duration::ZERO);
        let decision = decide(verdict, tried, patience, self.random.random());
        let is_given_back = matches!(decision, Decision::GiveBack(_));
        assert_eq!(is_outage, is_given_back, "an outage costs no attempt");
        let is_last = matches!(decision, Decision::Park { cause: Cause::MaxAttempts, .. });
        assert!(!is_last || attempts >= ATTEMPTS_MAX, "after {attempts}");
        decision
    }

    /// Writes down a verdict that is not `Processed`; `None` if nobody knows whether it is.
    pub(super) fn write_failure(
        &mut self,
        worker: usize,
        item: &Item,
        (token, attempts): (Uuid, u32),
        verdict: Verdict,
    ) -> Option<Report> {
        let (id, now) = (id_of(item.id().seq), self.now);
        let decision = self.decide(verdict, attempts);
        let fate = self.fate(worker);
        if fate == Fate::Refused {
            return None;
        }
        let answered = item.at_fault.is_none();
        let (is_ours, report) = match decision {
            Decision::Complete { .. } => unreachable!("the verdict is a failure"),
            Decision::Expire(_) => unreachable!("nothing is given up"),
            Decision::GiveBack(trouble) => {
                self.records.release(id, token, now);
                (true, Report::trouble(item, trouble))
            }
            Decision::Park { .. } => {
                let report = Report { answered, ..Report::dead(item) };
                (self.records.park(id, token), report)
            }
            Decision::Fail { delay, .. } => {
                let report = Report { answered, ..Report::retried(item, delay) };
                (self.records.fail(id, token, now + delay), report)
            }
        };
        let report = if is_ours { report } else { Report::undone(item, Path::Careful) };
        (fate == Fate::Done).then_some(report)
    }

    /// An event has its effect now. Under leases it may have it again, after one of which nobody
    /// knows.
    pub(super) fn effect(&mut self, seq: u64) {
        let effects = self.effects.entry(id_of(seq)).or_default();
        *effects += 1;
        assert!(!self.shares || *effects == 1, "{seq} has its effect again");
        let is_before = |it: &&u64| **it < seq && **it % AGGREGATES == seq % AGGREGATES;
        for before in self.broker.stream.iter().filter(is_before) {
            let is_resolved = self.records.was_resolved(id_of(*before));
            assert!(is_resolved, "{seq} has its effect before {before}");
        }
    }

    pub(super) fn what_is_left(&self) -> String {
        let is_left = |seq: &&u64| !self.records.is_resolved(id_of(**seq));
        let left = self.broker.stream.iter().filter(is_left).take(9);
        let left: Vec<_> =
            left.map(|seq| (seq, self.nature(*seq), self.records.rows.get(&id_of(*seq)))).collect();
        format!("{left:?}, {} unacknowledged", self.broker.unacknowledged())
    }
}
