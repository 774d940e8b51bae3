//! When a node sends nothing of what it has claimed. Each guard by itself: on schedules one stands in for
//! another.

use std::time::Duration;

use super::World;
use super::claiming::POLL;
use crate::engine::{BrokerEffect, ClaimsEffect, ClaimsInput, Effect, End, Engine, Seen, Tail};

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn effects(engine: &mut Engine, now: Duration) -> Vec<Effect> {
    engine.turn(now);
    std::iter::from_fn(|| engine.next_effect()).collect()
}

/// A node with a row to send. It asked for it `asked` seconds after its session had begun.
fn claimed(asked: u64) -> Engine {
    let mut world = World::new(0, POLL);
    let id = world.mint();
    let rows = vec![world.outgoing(id)];
    let mut engine = *world.relay.engine;
    for second in 0..=asked {
        effects(&mut engine, at(second));
        engine.apply(at(second), ClaimsInput::NotClaimed);
    }
    effects(&mut engine, at(asked + 1));
    engine.apply(at(asked + 1), ClaimsInput::Claimed(rows));
    engine
}

/// Each second until then the node has its turn. With `is_heard` the server answers.
fn passes(engine: &mut Engine, from: u64, to: u64, is_heard: bool) {
    for second in from..to {
        engine.tick(at(second), Seen { silence: Duration::ZERO, has_free: false });
        for effect in effects(engine, at(second)) {
            if let Effect::Claims(ClaimsEffect::Renew { claim }) = effect
                && is_heard
            {
                engine.apply(at(second), ClaimsInput::Renewed { claim });
            }
        }
    }
}

fn looks(effects: &[Effect]) -> bool {
    effects.iter().any(|it| matches!(it, Effect::Claims(ClaimsEffect::LookAtTail { .. })))
}

#[test]
fn a_row_is_sent_while_its_claim_is_renewed() {
    let mut engine = claimed(0);
    passes(&mut engine, 2, 39, true);
    assert!(engine.next_send(|| at(39)).is_some());
}

#[test]
fn a_claim_that_was_not_renewed_in_time_ends_the_session() {
    let mut engine = claimed(0);
    passes(&mut engine, 2, 21, false);
    assert!(engine.has_send());
    assert!(engine.next_send(|| at(21)).is_none());
    let effects = effects(&mut engine, at(21));
    assert!(effects.iter().any(|it| matches!(it, Effect::End(End::ClaimLost))), "{effects:?}");
}

#[test]
fn after_a_pause_of_the_process_the_stream_is_read_first() {
    let mut engine = claimed(0);
    assert!(engine.next_send(|| at(12)).is_none());
    let effects = effects(&mut engine, at(12));
    let reads = |it: &Effect| matches!(it, Effect::Broker(BrokerEffect::ReadTail { .. }));
    assert!(effects.iter().any(reads), "{effects:?}");
}

#[test]
fn a_row_is_not_sent_by_a_reading_that_is_too_old() {
    let mut engine = claimed(0);
    passes(&mut engine, 2, 41, true);
    assert!(engine.next_send(|| at(41)).is_none());
    assert!(looks(&effects(&mut engine, at(41))));
    assert!(!engine.has_send());
    engine.apply(at(41), ClaimsInput::Looked(Tail::ending_at(0)));
    assert!(engine.next_send(|| at(41)).is_some());
}

#[test]
fn what_is_claimed_waits_for_a_look_at_the_stream() {
    let mut engine = claimed(21);
    assert!(looks(&effects(&mut engine, at(22))));
    assert!(!engine.has_send());
    engine.apply(at(22), ClaimsInput::Looked(Tail::ending_at(0)));
    assert!(engine.next_send(|| at(22)).is_some());
}
