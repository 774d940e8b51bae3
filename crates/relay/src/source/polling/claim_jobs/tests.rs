//! Each effect that the engine of poll mode may ask for is given to the shell, and something happens.

use super::*;
use crate::config::{Mode, PollConfig};
use crate::engine::Notice;
use crate::source::tests::Sign::{Brings, Changes, Ends, EndsSpan, IsBug, Logged, Reported};
use crate::source::tests::{
    ATTEMPTS, MARKED, OWED, PARKED, Shell, Sign, dead, notice_after, row, stored,
};

const SAID: &str =
    "SELECT max(query_start) FROM pg_stat_activity WHERE application_name = 'tailpost poll'";

/// An effect, and what shows that it was carried out.
type Step<E> = Option<(E, Sign<Done>)>;

fn end_after(last: Option<&End>) -> Step<End> {
    let reason = || String::from("no batches");
    Some(match last {
        None => (End::Refused(reason()), Ends(|it| matches!(it, Error::Refused(_)))),
        Some(End::Refused(_)) => (End::ClaimLost, Ends(|it| matches!(it, Error::Stalled(_)))),
        Some(End::ClaimLost) => (End::Silence, IsBug),
        Some(End::Silence) => (End::LeaveFence(reason()), IsBug),
        Some(End::LeaveFence(_)) => {
            (End::StreamIsShorter, Ends(|it| matches!(it, Error::Stalled(_))))
        }
        Some(End::StreamIsShorter) => return None,
    })
}

fn notice(last: Option<&Notice>) -> Step<Notice> {
    let notice = notice_after(last)?;
    let is_copy = matches!(notice, Notice::NotReplayed { .. });
    Some((notice, if is_copy { EndsSpan } else { Logged }))
}

/// The first effect, or the one behind this. Names all: one that is added has to get its place.
fn effect_after(last: Option<&ClaimEffect>) -> Step<ClaimEffect> {
    let claim = 1;
    let tell = |last| notice(last).map(|(it, sign)| (ClaimEffect::Tell(it), sign));
    let end = |last| end_after(last).map(|(it, sign)| (ClaimEffect::End(it), sign));
    Some(match last {
        None => {
            let has_rows = |it: &_| matches!(it, Done::Claimed { rows, .. } if !rows.is_empty());
            (ClaimEffect::Claim { claim }, Brings(has_rows))
        }
        Some(ClaimEffect::Claim { .. }) => (ClaimEffect::Renew { claim }, Changes(SAID)),
        Some(ClaimEffect::Renew { .. }) => {
            (ClaimEffect::Mark { claim, published: vec![stored(1)] }, Changes(MARKED))
        }
        Some(ClaimEffect::Mark { .. }) => {
            (ClaimEffect::Park { claim, index: 1, dead: dead(2) }, Changes(PARKED))
        }
        Some(ClaimEffect::Park { .. }) => {
            let (id, reason, pause) = (row(3), "refused".into(), Duration::ZERO);
            (ClaimEffect::NoteFailure { claim, id, reason, pause }, Changes(ATTEMPTS))
        }
        Some(ClaimEffect::NoteFailure { .. }) => {
            (ClaimEffect::GiveBack { claim, published: vec![stored(4)] }, Changes(MARKED))
        }
        Some(ClaimEffect::GiveBack { .. }) => (ClaimEffect::MakeUpForMarks, Changes(OWED)),
        Some(ClaimEffect::MakeUpForMarks) => {
            let is_read = |it: &_| matches!(it, Done::Outcome(ClaimOutcome::Tail(_)));
            (ClaimEffect::ReadTail { from: 1, delay: Duration::ZERO }, Brings(is_read))
        }
        Some(ClaimEffect::ReadTail { .. }) => {
            let is_looked = |it: &_| matches!(it, Done::Outcome(ClaimOutcome::Looked(_)));
            (ClaimEffect::LookAtTail { from: 1 }, Brings(is_looked))
        }
        Some(ClaimEffect::LookAtTail { .. }) => (ClaimEffect::Measure(vec![stored(1)]), Reported),
        Some(ClaimEffect::Measure(_)) => return tell(None),
        Some(ClaimEffect::Tell(it)) => return tell(Some(it)).or_else(|| end(None)),
        Some(ClaimEffect::End(it)) => return end(Some(it)),
    })
}

/// What the session does with what a job brought.
fn keep(source: &mut Polling, done: Option<Done>) {
    match done {
        Some(Done::Claimed { claim, store, .. }) => drop(source.claims.insert(claim, store)),
        Some(
            Done::NotClaimed { store }
            | Done::GaveBack { store, .. }
            | Done::MadeUp { store, .. }
            | Done::Compared { store, .. },
        ) => {
            source.free.push(store);
        }
        Some(Done::Outcome(_) | Done::Nothing) | None => {}
    }
}

fn poll(config: &mut Config) {
    config.mode = Mode::Poll;
    config.poll = PollConfig { batch: 1, ..config.poll };
}

#[tokio::test]
async fn each_effect_of_poll_mode_is_carried_out() {
    let mut shell = Shell::<Polling>::open(poll).await;
    let mut next = effect_after(None);
    let mut carried_out = 0;
    while let Some((effect, sign)) = next {
        next = effect_after(Some(&effect));
        let done = shell.carry_out(effect, sign).await;
        keep(&mut shell.source, done);
        carried_out += 1;
    }
    assert_eq!(carried_out, 35, "the way from the first effect to the last misses some");
    // What is asked for a claim that nobody holds is an error, and not left undone.
    let published = Vec::new;
    let (claim, id, reason, pause) = (2, row(5), String::new(), Duration::ZERO);
    for effect in [
        ClaimEffect::Renew { claim },
        ClaimEffect::Mark { claim, published: published() },
        ClaimEffect::GiveBack { claim, published: published() },
        ClaimEffect::Park { claim, index: 1, dead: dead(5) },
        ClaimEffect::NoteFailure { claim, id, reason, pause },
    ] {
        shell.carry_out(effect, IsBug).await;
    }
}
