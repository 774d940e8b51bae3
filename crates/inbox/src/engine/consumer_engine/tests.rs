//! What a session makes of the role that is lost, or lost and taken again.

use std::time::{Duration, Instant};

use super::*;

const LEASE: Duration = Duration::from_secs(3);

fn term(server: i64) -> Term {
    Term { server, ..Term::default() }
}

fn engine(term: Term, now: Instant) -> ConsumerEngine {
    let start = ConsumerStart {
        term,
        shares: false,
        lanes: 4,
        batch: 1,
        held_max: 16,
        unacked_max: None,
        ack_wait: Duration::from_secs(30),
        backoff: Backoff { first: LEASE, max: LEASE },
        counts: Summary::default(),
    };
    ConsumerEngine::new(start, now)
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
