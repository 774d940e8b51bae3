use std::time::Duration;

use super::backoff::Backoff;
use super::breaker::{Trouble, TroubleKind};
use super::lanes::{Item, Path};
use super::report::Report;
use crate::Verdict;
use crate::record::{Cause, ClaimReply, UNFINISHED_MAX};

/// The longest wait for somebody else's lease before looking again.
const LEASED_WAIT_MAX: Duration = Duration::from_secs(30);

/// What waits for the same lease does not look at the instant at which it expires, but up to so
/// much later.
const LEASED_JITTER: Duration = Duration::from_millis(200);

const CONTENDED_WAIT: Duration = Duration::from_millis(100);

/// What is done about the answer to a claim.
#[derive(Debug)]
pub(crate) enum Begin {
    /// The handler is asked. So many attempts were started, this one included.
    Handle { attempts: u32 },
    /// As if it had not been claimed: it has to be alone.
    Alone,
    /// It becomes a dead letter: so many attempts were started, and the last ones never ended.
    Crashed { attempts: u32 },
    /// It becomes a dead letter.
    Forgotten,
    /// Nothing.
    Nothing(Report),
}

/// `chance` is a random number in `0..1`.
pub(crate) fn begin(item: &Item, reply: ClaimReply, chance: f64) -> Begin {
    let wait = |after| Begin::Nothing(Report::waits(item, after, item.path.after_fast()));
    match reply {
        // One more end that does not come, and it is parked: make sure that it is its own.
        ClaimReply::Claimed { unfinished, .. }
            if unfinished >= UNFINISHED_MAX.unsigned_abs() && item.path != Path::Alone =>
        {
            Begin::Alone
        }
        ClaimReply::Claimed { attempts, .. } => Begin::Handle { attempts },
        ClaimReply::Resolved => Begin::Nothing(Report::skipped(item)),
        ClaimReply::Leased { remaining } => {
            wait(remaining.min(LEASED_WAIT_MAX) + LEASED_JITTER.mul_f64(chance))
        }
        ClaimReply::Early { remaining } => wait(remaining),
        ClaimReply::Contended => wait(CONTENDED_WAIT),
        ClaimReply::Forgotten => Begin::Forgotten,
        ClaimReply::Crashed { attempts } => Begin::Crashed { attempts },
    }
}

/// What is done about a verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Complete {
        outcome: Option<String>,
    },
    Fail {
        reason: String,
        delay: Duration,
    },
    Park {
        cause: Cause,
        reason: String,
    },
    /// As if it had not been begun: this is not about the event.
    GiveBack(Trouble),
}

/// `attempts` is how many were started, this one included; `chance` is a random number in `0..1`:
/// the part of the delay that is waited, so that what failed together does not come back together.
pub(crate) fn decide(
    verdict: Verdict,
    attempts: u32,
    max_attempts: u32,
    backoff: Backoff,
    chance: f64,
) -> Decision {
    let (reason, after) = match verdict {
        Verdict::Processed { outcome } => return Decision::Complete { outcome },
        Verdict::Dead { reason } => return Decision::Park { cause: Cause::Dead, reason },
        Verdict::Retry { reason, after } => (reason, after),
        Verdict::Outage { reason, after } => {
            return Decision::GiveBack(Trouble { kind: TroubleKind::Away, reason, after });
        }
        Verdict::Misconfigured { reason } => {
            let kind = TroubleKind::Misconfigured;
            return Decision::GiveBack(Trouble { kind, reason, after: None });
        }
    };
    if attempts >= max_attempts {
        return Decision::Park { cause: Cause::MaxAttempts, reason };
    }
    let delay = after.unwrap_or_else(|| backoff.after(attempts).mul_f64(chance)).min(backoff.max);
    Decision::Fail { reason, delay }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(10) };

    fn check(verdict: Verdict, attempts: u32, expect: Decision) {
        assert_eq!(decide(verdict, attempts, 5, BACKOFF, 0.5), expect);
    }

    fn fail(reason: &str, millis: u64) -> Decision {
        Decision::Fail { reason: reason.into(), delay: Duration::from_millis(millis) }
    }

    #[test]
    fn pauses_double_up_to_the_limit_and_are_a_random_part_of_it() {
        for (attempts, millis) in [(1, 500), (2, 1000), (3, 2000), (4, 4000)] {
            check(Verdict::retry("busy"), attempts, fail("busy", millis));
        }
        let fail = decide(Verdict::retry("busy"), 5, 6, BACKOFF, 0.999);
        let delay = Duration::from_millis(9990);
        assert_eq!(fail, Decision::Fail { reason: "busy".into(), delay });
    }

    #[test]
    fn what_the_handler_asks_for_is_done_within_the_limit() {
        let asked =
            |secs| Verdict::Retry { reason: "busy".into(), after: Some(Duration::from_secs(secs)) };
        check(asked(3), 1, fail("busy", 3000));
        check(asked(3600), 1, fail("busy", 10_000));
    }

    #[test]
    fn the_last_attempt_makes_a_dead_letter() {
        let park = |cause| Decision::Park { cause, reason: "no".into() };
        check(Verdict::retry("no"), 5, park(Cause::MaxAttempts));
        check(Verdict::dead("no"), 1, park(Cause::Dead));
        check(Verdict::processed(), 5, Decision::Complete { outcome: None });
    }

    #[test]
    fn what_is_not_about_the_event_makes_no_dead_letter() {
        let after = Some(Duration::from_secs(7));
        let trouble = |kind, after| Trouble { kind, reason: "no".into(), after };
        let outage = Verdict::Outage { reason: "no".into(), after };
        check(outage, 5, Decision::GiveBack(trouble(TroubleKind::Away, after)));
        let misconfigured = Verdict::Misconfigured { reason: "no".into() };
        check(misconfigured, 5, Decision::GiveBack(trouble(TroubleKind::Misconfigured, None)));
    }
}
