//! How many messages may be on their way, and what they predict.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use outbox::Event;
use pgoutput::Lsn;

use super::State;
use crate::core::{Input, Limits, Mode, Outgoing, Request, Start, Tail};

fn fenced() -> State {
    State::new(Start {
        mode: Mode::Fenced,
        limits: Limits { events: 100, bytes: 1 << 20 },
        ack_timeout: Duration::from_secs(1),
        system_id: 1,
        resolved_before: Lsn::ZERO,
        tail: Tail { last_seq: 0, messages: Vec::new() },
        dead: HashSet::new(),
        parking_blocks: false,
        max_attempts: 10,
        seed: 1,
    })
}

fn log(state: &mut State, events: usize) {
    for _ in 0..events {
        let mut event = Event::new("t", "a", "e", &0).expect("valid");
        event.payload = Bytes::from_static(b"{}");
        state.apply(
            Duration::ZERO,
            Input::Logged(Outgoing { event, subject: Ok("s".into()), seq: None, requeued: false }),
        );
    }
}

fn send_all(state: &mut State) -> usize {
    std::iter::from_fn(|| state.next_send().map(drop)).count()
}

fn ack(state: &mut State, index: u64) {
    ack_at(state, Duration::ZERO, index);
}

fn ack_at(state: &mut State, now: Duration, index: u64) {
    state.apply(now, Input::Acked { epoch: 0, index, seq: index + 1 });
}

#[test]
fn one_message_proves_the_prediction_and_the_rest_follow_at_once() {
    let mut state = fenced();
    log(&mut state, 20);
    assert_eq!(send_all(&mut state), 1, "somebody else may have written");
    ack(&mut state, 0);
    assert_eq!(send_all(&mut state), 19, "nobody has");
    log(&mut state, 5);
    assert_eq!(send_all(&mut state), 5, "while messages are on their way");
}

#[test]
fn a_pause_asks_for_another_proof() {
    let mut state = fenced();
    log(&mut state, 2);
    for index in 0..2 {
        send_all(&mut state);
        ack(&mut state, index);
    }
    log(&mut state, 3);
    assert_eq!(send_all(&mut state), 1);
}

#[test]
fn a_later_look_of_the_scanner_does_not_disturb_what_is_on_its_way() {
    let mut state = fenced();
    log(&mut state, 20);
    send_all(&mut state);
    ack(&mut state, 0);
    assert_eq!(send_all(&mut state), 19);
    // Read while the stream had ten messages; the twentieth is on its way.
    state.apply(Duration::ZERO, Input::Seen(Tail { last_seq: 10, messages: Vec::new() }));
    log(&mut state, 1);
    assert_eq!(state.next_send().and_then(|send| send.expected), Some(20));
    (1..21).for_each(|index| ack(&mut state, index));

    // Read before these, applied when they had been answered.
    state.apply(Duration::ZERO, Input::Seen(Tail { last_seq: 10, messages: Vec::new() }));
    log(&mut state, 1);
    assert_eq!(state.next_send().and_then(|send| send.expected), Some(21));
}

#[test]
fn one_lost_answer_is_missed_although_others_come() {
    let mut state = fenced();
    log(&mut state, 2);
    send_all(&mut state);
    ack(&mut state, 0);
    send_all(&mut state);
    for index in 2..50 {
        let now = Duration::from_millis(100 * index);
        log(&mut state, 1);
        state.apply(now, Input::Tick);
        if let Some(request) = state.next_request() {
            assert!(matches!(request, Request::ReadTail { .. }), "{request:?}");
            assert!(now >= Duration::from_secs(1), "asked too early: {now:?}");
            return;
        }
        send_all(&mut state);
        ack_at(&mut state, now, index);
    }
    panic!("the transaction of the second message is never confirmed");
}
