use std::time::Duration;

use super::backoff::Pauses;
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
    /// The handler is asked. So many attempts were started, this one included; the first failed so long
    /// ago.
    Handle { attempts: u32, age: Option<Duration> },
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
        ClaimReply::Claimed { attempts, age, .. } => Begin::Handle { attempts, age },
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
    /// What the handler needs is away for longer than the event may wait.
    Expire(Trouble),
    /// As if it had not been begun: this is not about the event.
    GiveBack(Trouble),
}

/// How long an event is tried that fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience<'a> {
    pub(crate) max_attempts: u32,
    pub(crate) pauses: &'a Pauses,
    /// Since its first attempt failed.
    pub(crate) give_up_after: Option<Duration>,
}

/// `attempts` is how many were started, this one included; the first failed `age` ago; `chance` is a
/// random number in `0..1`: the part of the delay that is waited, so that what failed together does not
/// come back together.
pub(crate) fn decide(
    verdict: Verdict,
    (attempts, age): (u32, Duration),
    patience: Patience<'_>,
    chance: f64,
) -> Decision {
    let Patience { max_attempts, pauses, give_up_after } = patience;
    let left = give_up_after.map_or(Duration::MAX, |it| it.saturating_sub(age));
    let (reason, after) = match verdict {
        Verdict::Processed { outcome } => return Decision::Complete { outcome },
        Verdict::Dead { reason } => return Decision::Park { cause: Cause::Dead, reason },
        Verdict::Retry { reason, after } => (reason, after),
        Verdict::Outage { reason, after } => {
            let trouble = Trouble { kind: TroubleKind::Away, reason, after };
            return match left.is_zero() {
                true => Decision::Expire(trouble),
                false => Decision::GiveBack(trouble),
            };
        }
        Verdict::Misconfigured { reason } => {
            let kind = TroubleKind::Misconfigured;
            return Decision::GiveBack(Trouble { kind, reason, after: None });
        }
    };
    if attempts >= max_attempts {
        return Decision::Park { cause: Cause::MaxAttempts, reason };
    }
    if left.is_zero() {
        return Decision::Park { cause: Cause::Expired, reason };
    }
    let delay = after.unwrap_or_else(|| pauses.after(attempts).mul_f64(chance));
    // The last attempt is at the end, not behind it.
    Decision::Fail { reason, delay: delay.min(pauses.longest()).min(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(verdict: Verdict, attempts: u32, chance: f64) -> Decision {
        decided_at(verdict, (attempts, Duration::from_hours(100)), None, chance)
    }

    fn decided_at(
        verdict: Verdict,
        tried: (u32, Duration),
        give_up_after: Option<Duration>,
        chance: f64,
    ) -> Decision {
        let pauses = Pauses::new([1, 2, 4, 8, 10].map(Duration::from_secs).into()).expect("some");
        let patience = Patience { max_attempts: 5, pauses: &pauses, give_up_after };
        decide(verdict, tried, patience, chance)
    }

    fn check(verdict: Verdict, attempts: u32, expect: Decision) {
        assert_eq!(decided(verdict, attempts, 0.5), expect);
    }

    fn fail(reason: &str, millis: u64) -> Decision {
        Decision::Fail { reason: reason.into(), delay: Duration::from_millis(millis) }
    }

    #[test]
    fn pauses_are_a_random_part_of_what_the_list_has() {
        for (attempts, millis) in [(1, 500), (2, 1000), (3, 2000), (4, 4000)] {
            check(Verdict::retry("busy"), attempts, fail("busy", millis));
        }
        let fail = decided(Verdict::retry("busy"), 4, 0.999);
        let delay = Duration::from_millis(7992);
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

    /// The last attempt is made when the time is over. What waits for an operator waits for ever.
    #[test]
    fn an_event_that_fails_for_too_long_is_given_up() {
        let limit = Duration::from_secs(60);
        let at =
            |secs, verdict| decided_at(verdict, (2, Duration::from_secs(secs)), Some(limit), 0.999);
        let retry = || Verdict::retry("busy");
        assert_eq!(at(10, retry()), fail("busy", 1998));
        assert_eq!(at(59, retry()), fail("busy", 1000));
        let expired = Decision::Park { cause: Cause::Expired, reason: "busy".into() };
        assert_eq!(at(60, retry()), expired);
        assert_eq!(
            decided_at(retry(), (5, limit), Some(limit), 0.5),
            Decision::Park { cause: Cause::MaxAttempts, reason: "busy".into() }
        );
        let trouble = |kind| Trouble { kind, reason: "no".into(), after: None };
        let away = trouble(TroubleKind::Away);
        assert_eq!(at(59, Verdict::outage("no")), Decision::GiveBack(away.clone()));
        assert_eq!(at(60, Verdict::outage("no")), Decision::Expire(away));
        let misconfigured = Verdict::Misconfigured { reason: "no".into() };
        let waits = Decision::GiveBack(trouble(TroubleKind::Misconfigured));
        assert_eq!(at(600, misconfigured), waits);
        assert_eq!(at(60, Verdict::processed()), Decision::Complete { outcome: None });
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
