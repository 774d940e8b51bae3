//! What a session makes of the role that is lost, or lost and taken again; and how far events have
//! their end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::engine::TroubleKind;
use crate::engine::simulation::{delivered, message};

const LEASE: Duration = Duration::from_secs(3);

fn term(server: i64) -> Term {
    Term { server, ..Term::default() }
}

fn engine(term: Term, now: Instant) -> ConsumerEngine {
    ConsumerEngine::new(start(term), now)
}

fn start(term: Term) -> ConsumerStart {
    ConsumerStart {
        term,
        shares: false,
        lanes: 4,
        batch: 1,
        limits: HoldLimits::of(16),
        unacked_max: None,
        ack_wait: Duration::from_secs(30),
        backoff: Backoff { first: LEASE, max: LEASE },
        rate: None,
        counts: Summary::default(),
    }
}

/// Whether it ends as one that was taken over.
fn is_taken_over(engine: &mut ConsumerEngine, role: Role, now: Instant) -> bool {
    engine.look(Surroundings { role, ..Surroundings::default() });
    engine.turn(now);
    let mut told = false;
    while let Some(effect) = engine.next_effect() {
        told |= matches!(effect, Effect::Tell(Notice::TookOver));
    }
    assert_eq!(told, engine.is_stopping());
    told
}

#[test]
fn a_session_ends_when_another_worker_has_the_role() {
    let now = Instant::now();
    let mut engine = engine(term(1), now);
    let active = Role::Active { term: term(1), until: now + LEASE };
    for role in [active, Role::Unknown, active] {
        assert!(!is_taken_over(&mut engine, role, now), "{role:?}");
    }
    assert!(is_taken_over(&mut engine, Role::Standby, now));
}

#[test]
fn a_session_ends_when_the_role_was_taken_again_before_anybody_looked() {
    let now = Instant::now();
    let mut engine = engine(term(1), now);
    assert!(!is_taken_over(&mut engine, Role::Active { term: term(1), until: now + LEASE }, now));
    assert!(is_taken_over(&mut engine, Role::Active { term: term(2), until: now + LEASE }, now));
}

/// Ending them would end what its worker does in other partitions, too.
#[test]
fn a_session_whose_partition_is_to_be_given_away_waits_for_handlers_that_do_not_end() {
    let began = Instant::now();
    for (becomes, stops) in [(Role::Leaving, true), (Role::Standby, false)] {
        let mut engine = engine(term(1), began);
        engine.delivered(began, delivered(1, 9, None, Path::Careful));
        let mut turn = |role, now, stops| {
            engine.look(Surroundings { role, ..Surroundings::default() });
            if stops {
                engine.stop(now);
            }
            engine.turn(now);
            let effects: Vec<_> = std::iter::from_fn(|| engine.next_effect()).collect();
            let due = engine.next_due(now);
            assert!(due.is_none_or(|it| it > now), "it waits for something");
            (effects.iter().any(|it| matches!(it, Effect::End)), engine.is_told_to_stop())
        };
        turn(Role::Active { term: term(1), until: began + LEASE }, began, false);
        for millis in (0..3_600_000).step_by(1_000) {
            let ended = turn(Role::Leaving, began + Duration::from_millis(millis), false);
            assert_eq!(ended, (false, false), "after {millis} ms");
        }
        let later = began + Duration::from_hours(1);
        let ended = turn(becomes, later, stops);
        assert_eq!(ended, (true, stops), "it is to stop, or another worker has the partition");
    }
}

/// Nothing else may happen meanwhile.
#[test]
fn what_the_rate_keeps_is_begun_as_soon_as_it_may() {
    let now = Instant::now();
    let rate = Some("10/s".parse().expect("a rate"));
    let mut engine = ConsumerEngine::new(ConsumerStart { rate, ..start(term(1)) }, now);
    for seq in [1, 2] {
        engine.delivered(now, delivered(seq, 9, None, Path::Careful));
    }
    let role = Role::Active { term: term(1), until: now + LEASE };
    engine.look(Surroundings { role, ..Surroundings::default() });
    let begun = |engine: &mut ConsumerEngine, now| {
        engine.turn(now);
        let effects = std::iter::from_fn(|| engine.next_effect());
        effects.map(|it| if let Effect::Start(items) = it { items.len() } else { 0 }).sum::<usize>()
    };
    assert_eq!(begun(&mut engine, now), 1);
    let next = now + Duration::from_millis(100);
    assert_eq!(engine.next_due(now), Some(next));
    assert_eq!(begun(&mut engine, next), 1);
    assert!(engine.next_due(next).is_some_and(|it| it > next + LEASE), "nothing is kept");
}

/// The event is a dead letter, and the service is away all the same.
#[test]
fn an_event_that_is_given_up_in_an_outage_does_not_end_the_pause() {
    let now = Instant::now();
    let mut engine = engine(term(1), now);
    for seq in [1, 2, 3] {
        engine.delivered(now, delivered(seq, 9, None, Path::Careful));
    }
    let role = Role::Active { term: term(1), until: now + LEASE };
    engine.look(Surroundings { role, ..Surroundings::default() });
    engine.turn(now);
    let away = || Trouble { kind: TroubleKind::Away, reason: "503".into(), after: None };
    let tell = |engine: &mut ConsumerEngine, seq, outcome| {
        let ending = if let Outcome::Expired(_) = outcome {
            Ending::Resolved
        } else {
            Ending::Again { after: Duration::ZERO, path: Path::Careful }
        };
        let id = message(seq, 9).id();
        engine.reported(
            now,
            Timestamp::UNIX_EPOCH,
            Report { id, ending, outcome, answered: false },
            0.5,
        );
    };
    tell(&mut engine, 1, Outcome::Trouble(away()));
    tell(&mut engine, 2, Outcome::Expired(away()));
    while engine.next_effect().is_some() {}
    engine.delivered(now, delivered(4, 9, None, Path::Careful));
    engine.turn(now);
    let mut effects = std::iter::from_fn(|| engine.next_effect());
    assert!(!effects.any(|it| matches!(it, Effect::Start(_))), "two have failed");
    assert!(engine.breaker.pause().is_some());
    assert!(engine.breaker.next_probe(now).is_some(), "nothing is tried at once");
    assert_eq!(engine.counts.dead, 1);
}

/// A letter that is handled once more has its place before all of them, or in another stream.
#[test]
fn nothing_behind_an_event_without_an_end_counts_as_ended() {
    let now = Instant::now();
    let mut engine = engine(term(1), now);
    assert_eq!(engine.ended(), 0);
    let mut letter = delivered(1, 9, None, Path::Careful);
    let of_letter = Arc::get_mut(&mut letter.message).expect("nobody has it");
    of_letter.whence = Whence::Letter;
    engine.delivered(now, letter);
    for seq in [4, 5, 6, 8] {
        engine.delivered(now, delivered(seq, 9, None, Path::Careful));
    }
    assert_eq!(engine.ended(), 3);
    engine.look(Surroundings {
        role: Role::Active { term: term(1), until: now + LEASE },
        ..Surroundings::default()
    });
    engine.turn(now);
    let (time, answered) = (Timestamp::UNIX_EPOCH, true);
    let end = |engine: &mut ConsumerEngine, seq| {
        let (id, ending, outcome) = (message(seq, 9).id(), Ending::Resolved, Outcome::Processed);
        engine.reported(now, time, Report { id, ending, outcome, answered }, 0.5);
        engine.ended()
    };
    assert_eq!(end(&mut engine, 5), 3);
    assert_eq!(end(&mut engine, 4), 5);
    engine.stop(now);
    engine.turn(now);
    assert_eq!(end(&mut engine, 6), 7, "the last one is given back without an end");
}
