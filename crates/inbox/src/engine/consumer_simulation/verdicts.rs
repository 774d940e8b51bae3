//! What handlers say, what is done about it, and the effects that they have.

use std::time::{Duration, Instant};

use rand::RngExt;
use uuid::Uuid;

use super::handling::Tried;
use super::record_model::Status;
use super::{AGGREGATES, ATTEMPTS_MAX, BACKOFF, Fate, Mix, Nature, World, id_of};
use crate::Verdict;
use crate::engine::{Decision, Item, Path, Patience, Pauses, Report, decide};
use crate::record::Cause;

impl World {
    pub(super) fn verdict(&mut self, seq: u64, began: Instant) -> Verdict {
        let verdict = self.answer(seq, began);
        if !matches!(verdict, Verdict::Processed { .. }) {
            self.failing_since.entry(id_of(seq)).or_insert(self.now);
        }
        verdict
    }

    fn answer(&mut self, seq: u64, began: Instant) -> Verdict {
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

    /// `since` is when an attempt failed first.
    pub(super) fn decide(
        &mut self,
        seq: u64,
        verdict: Verdict,
        (attempts, since): Tried,
    ) -> Decision {
        let is_outage = matches!(verdict, Verdict::Outage { .. });
        let pauses = Pauses::from(BACKOFF);
        let give_up_after = self.mix.give_up_after;
        let patience = Patience { max_attempts: ATTEMPTS_MAX, pauses: &pauses, give_up_after };
        let tried = (attempts, since.map_or(Duration::ZERO, |it| self.now - it));
        let decision = decide(verdict, tried, patience, self.random.random());
        let is_given_back = matches!(decision, Decision::GiveBack(_) | Decision::Expire(_));
        assert_eq!(is_outage, is_given_back, "an outage costs no attempt");
        if let Decision::Expire(_) | Decision::Park { cause: Cause::Expired, .. } = decision {
            let failing = self.now - self.failing_since[&id_of(seq)];
            assert!(give_up_after.is_some_and(|it| failing >= it), "{seq} fails for {failing:?}");
            self.expired.insert(id_of(seq));
        }
        let is_last = matches!(decision, Decision::Park { cause: Cause::MaxAttempts, .. });
        assert!(!is_last || attempts >= ATTEMPTS_MAX, "after {attempts}");
        decision
    }

    /// Writes down a verdict that is not `Processed`; `None` if nobody knows whether it is.
    pub(super) fn write_failure(
        &mut self,
        worker: usize,
        item: &Item,
        (token, tried): (Uuid, Tried),
        verdict: Verdict,
    ) -> Option<Report> {
        let (id, now) = (id_of(item.id().seq), self.now);
        let decision = self.decide(item.id().seq, verdict, tried);
        let fate = self.fate(worker);
        if fate == Fate::Refused {
            return None;
        }
        let answered = item.at_fault.is_none();
        let (is_ours, report) = match decision {
            Decision::Complete { .. } => unreachable!("the verdict is a failure"),
            Decision::Expire(trouble) => {
                (self.records.park(id, token), Report::expired(item, trouble))
            }
            Decision::GiveBack(trouble) => {
                self.records.release(id, token, now, true);
                (true, Report::trouble(item, trouble))
            }
            Decision::Park { .. } => {
                let report = Report { answered, ..Report::dead(item) };
                (self.records.park(id, token), report)
            }
            Decision::Fail { delay, .. } => {
                let report = Report { answered, ..Report::retried(item, delay) };
                (self.records.fail(id, token, now, delay), report)
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

    /// Without faults of ours each event has the end that its nature says, and after that many
    /// attempts.
    pub(super) fn check_ends(&self) {
        let Mix { statements, away, crashes, stalls, stops, .. } = *self.mix;
        let is_quiet = statements == 0.0 && !(away || crashes || stalls || stops);
        for (id, row) in &self.records.rows {
            let nature = self.natures[id];
            let dies = matches!(nature, Nature::Poison | Nature::Rejected | Nature::Downer)
                || nature == Nature::Killer;
            assert!(!dies || row.status == Status::Dead, "{id} is {nature:?}: {row:?}");
            if is_quiet && !dies && !self.expired.contains(id) {
                assert_eq!(row.status, Status::Processed, "{id} is {nature:?}: {row:?}");
            }
            // The two messages of an id are in two lanes here, and may take its record from each other.
            let is_single = id_of(id + 1) != *id;
            if is_quiet && is_single && matches!(nature, Nature::Good | Nature::Slow) {
                assert_eq!(row.attempts, 1, "{id} is {nature:?}: {row:?}");
            }
            let effects = self.effects.get(id).copied().unwrap_or(0);
            let is_processed = row.status == Status::Processed;
            assert!(effects > 0 || !is_processed, "{id} has no effect");
            assert!(effects == 0 || is_processed || !self.shares, "{id} is {row:?}");
        }
    }
}
