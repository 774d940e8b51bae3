//! What is believed of what is said to be refused.

use super::*;
use crate::engine::{Dead, Notice};

fn refuse(state: &mut Publishing, index: u64, refusal: Refusal) {
    let epoch = state.link.epoch();
    state.heard(state.now, BrokerInput::Refused { epoch, index, refusal });
}

fn acknowledge(state: &mut Publishing, index: u64, seq: u64) {
    let epoch = state.link.epoch();
    state.heard(state.now, BrokerInput::Acked { epoch, index, seq, is_duplicate: false });
}

/// The stream is read, late enough, and is empty.
fn lacks_all(state: &mut Publishing) {
    state.tick(state.now + Duration::from_millis(100));
    reads_of_the_tail(state);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
}

fn parked(state: &mut Publishing) -> Vec<Dead> {
    let requests = std::iter::from_fn(|| state.next_request());
    let parks = requests
        .filter_map(|it| if let Request::Park { dead, .. } = it { Some(dead) } else { None });
    parks.collect()
}

/// What the stream has, and what it lacks.
#[test]
fn a_message_is_refused_once_the_stream_lacks_it_twice() {
    let mut state = fenced();
    log(&mut state, 2);
    for parked in [false, true] {
        send_all(&mut state);
        refuse(&mut state, 0, Refusal::Message("too large".into()));
        lacks_all(&mut state);
        let is_parked = matches!(state.next_request(), Some(Request::Park { .. }));
        assert_eq!(is_parked, parked);
    }
    let say_sealed = |state: &mut Publishing| {
        send_all(state);
        refuse(state, 1, Refusal::Configuration("sealed".into()));
    };
    say_sealed(&mut state);
    assert_eq!(reads_of_the_tail(&mut state), 1);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
    say_sealed(&mut state);
    assert_eq!(reads_of_the_tail(&mut state), 0, "the stream may still answer");
    let epoch = state.link.epoch();
    state.heard(state.now, BrokerInput::Acked { epoch, index: 1, seq: 1, is_duplicate: false });
    assert_eq!((state.counts().strangers, state.counts().acked), (1, 1));
    let request = state.next_request();
    assert!(matches!(request, Some(Request::Tell(Notice::Stranger { .. }))), "{request:?}");
}

/// One of the two is forged, whichever comes first.
#[test]
fn a_message_that_is_said_to_be_stored_and_refused_is_sought_in_the_stream() {
    for refused_first in [true, false] {
        let mut state = fenced();
        log(&mut state, 1);
        send_all(&mut state);
        let refusal = || Refusal::Message("too large".into());
        if refused_first {
            refuse(&mut state, 0, refusal());
            lacks_all(&mut state);
            send_all(&mut state);
            refuse(&mut state, 0, refusal());
            acknowledge(&mut state, 0, 1);
        } else {
            acknowledge(&mut state, 0, 1);
            refuse(&mut state, 0, refusal());
        }
        assert_eq!((state.counts().acked, state.counts().strangers), (1, 1));
        lacks_all(&mut state); // the reading may have been begun before it was stored
        assert_eq!(reads_of_the_tail(&mut state), 1, "refused first: {refused_first}");
        state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
        let request = state.next_request();
        assert!(matches!(request, Some(Request::End(End::StreamIsShorter))), "{request:?}");
    }
}

/// Seed 40034981: it was stored late, before what is read of the stream, and somebody says each time
/// that the stream refuses it.
#[test]
fn a_message_that_is_said_to_be_there_is_looked_for_before_a_refusal_counts() {
    let mut state = Publishing::new(Start { mode: Mode::Keyed, ..start(Tail::ending_at(5)) });
    log(&mut state, 1);
    let (index, seq) = (0, 3);
    for _ in 0..3 {
        assert_eq!(send_all(&mut state), 1);
        let epoch = state.link.epoch();
        state.heard(state.now, BrokerInput::Acked { epoch, index, seq, is_duplicate: true });
        refuse(&mut state, index, Refusal::Configuration("so they say".into()));
        state.tick(state.now + Duration::from_millis(100));
        assert_eq!(reads_of_the_tail(&mut state), 1);
        state.heard(state.now, BrokerInput::Tail(Tail::ending_at(5)));
        let ends = std::iter::from_fn(|| state.next_request()).collect::<Vec<_>>();
        assert!(!ends.iter().any(|it| matches!(it, Request::End(_))), "{ends:?}");
    }
    // Seed 40045544: that it was there once says nothing of now.
    state.heard(state.now, BrokerInput::LookedUp { epoch: 0, index, seq, is_there: true });
    assert_eq!((resolved(&mut state), send_all(&mut state)), (vec![], 1));
    is_duplicate(&mut state, index, seq, true);
    assert_eq!(resolved(&mut state), [3]);
}

/// Seed 42062912: what was sent over an earlier connection is stored after the reading that lacked it, and
/// before what the stream was known to have when it was sent again.
#[test]
fn a_refusal_is_judged_by_all_that_came_since_the_last_reading() {
    let mut state = Publishing::new(Start { mode: Mode::Keyed, ..start(Tail::ending_at(0)) });
    log(&mut state, 1);
    send_all(&mut state);
    state.heard(state.now, BrokerInput::LinkLost);
    assert_eq!(reads_of_the_tail(&mut state), 1);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(1)));
    state.looked(state.now, Tail::ending_at(5));
    assert_eq!(send_all(&mut state), 1);
    refuse(&mut state, 0, Refusal::Configuration("so they say".into()));
    state.tick(state.now + Duration::from_millis(100));
    let reads = std::iter::from_fn(|| state.next_request())
        .find_map(|it| if let Request::ReadTail { from, .. } = it { Some(from) } else { None });
    assert_eq!(reads, Some(2));
}

#[test]
fn what_is_refused_and_may_not_be_published_is_parked_once() {
    let mut start = start(Tail::ending_at(0));
    start.settings.max_attempts = 1;
    let mut state = Publishing::new(start);
    log(&mut state, 1);
    send_all(&mut state);
    refuse(&mut state, 0, Refusal::Message("too large".into()));
    lacks_all(&mut state);
    send_all(&mut state);
    refuse(&mut state, 0, Refusal::Message("too large".into()));
    state.heard(state.now, BrokerInput::Denied { subject: "s".into(), reason: "no".into() });
    assert_eq!(parked(&mut state).len(), 1);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
    assert_eq!(parked(&mut state).len(), 0);
}

/// The broker refused it by a limit that the client learned of by that.
#[test]
fn a_dead_letter_says_what_the_broker_said() {
    let mut state = fenced();
    log(&mut state, 1);
    send_all(&mut state);
    refuse(&mut state, 0, Refusal::Message("message size exceeds maximum (10054)".into()));
    lacks_all(&mut state);
    send_all(&mut state);
    let refusal = Refusal::OverLimit("5000 bytes, and max_msg_size is 4096".into());
    state.heard(state.now, BrokerInput::Unsendable { index: 0, refusal });
    let parked = parked(&mut state);
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0].reason, "message size exceeds maximum (10054)");
}

/// What is behind a message that the fence refuses is refused with it: that proves nothing.
#[test]
fn a_message_behind_one_that_is_refused_is_not_parked_for_what_others_say() {
    let mut state = fenced();
    log(&mut state, 1);
    send_all(&mut state);
    log(&mut state, 3);
    acknowledge(&mut state, 0, 1);
    assert_eq!(send_all(&mut state), 3, "in a batch");
    let refusal = || Refusal::Message("too large".into());
    state.heard(state.now, BrokerInput::Broken { batch: 1, number: 3, refusal: refusal() });
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(1)));
    send_all(&mut state);
    acknowledge(&mut state, 1, 2);
    assert_eq!(send_all(&mut state), 2, "in a batch");
    state.heard(state.now, BrokerInput::Broken { batch: 2, number: 2, refusal: refusal() });
    let moved = Refusal::ExpectedLastSequence; // by somebody else's message
    state.heard(state.now, BrokerInput::Broken { batch: 2, number: 1, refusal: moved });
    state.heard(state.now, BrokerInput::Tail(Tail { foreign: 1, ..Tail::ending_at(3) }));
    assert_eq!(parked(&mut state).len(), 0);
    assert_eq!(state.unresolved(), 2);
}

#[test]
fn the_stream_has_time_to_take_what_others_say_is_refused() {
    let mut state = fenced();
    log(&mut state, 1);
    send_all(&mut state);
    refuse(&mut state, 0, Refusal::Message("too large".into()));
    lacks_all(&mut state);
    send_all(&mut state);
    refuse(&mut state, 0, Refusal::Message("too large".into()));
    state.heard(state.now, BrokerInput::LinkLost);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
    assert_eq!(parked(&mut state).len(), 0);
}
