//! How many messages may be on their way, and which sequence they expect.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use outbox::Event;
use pgoutput::Lsn;

use super::Publishing;
use crate::engine::window::Tried;
use crate::engine::{
    BrokerInput, End, LogInput, Mode, Outgoing, Part, Refusal, Request, Settings, Start, Stored,
    Tail, TailMessage, Unpublished, WindowLimits,
};

fn fenced() -> Publishing {
    start_on(Tail::ending_at(0))
}

fn start_on(tail: Tail) -> Publishing {
    Publishing::new(start(tail))
}

fn start(tail: Tail) -> Start {
    Start {
        written: crate::engine::WrittenDown::nothing(),
        mode: Mode::Fenced,
        tail,
        dead: HashSet::new(),
        tried: HashMap::new(),
        seed: 1,
        settings: Settings {
            limits: WindowLimits { events: 100, bytes: 1 << 20 },
            ack_timeout: Duration::from_secs(1),
            resolved_before: Lsn::ZERO,
            log_end: Lsn(u64::MAX),
            stays_fenced: false,
            parking_blocks: false,
            max_attempts: 10,
        },
    }
}

fn log(state: &mut Publishing, events: usize) {
    for _ in 0..events {
        let mut event = Event::new("t", "a", "e", &0).expect("valid");
        event.payload = Bytes::from_static(b"{}");
        log_event(state, event);
    }
}

fn log_event(state: &mut Publishing, event: Event) {
    state.read(Duration::ZERO, LogInput::Logged(outgoing(event)));
}

/// As the log brings it.
pub(super) fn outgoing(event: Event) -> Outgoing {
    Outgoing {
        event,
        subject: Ok("s".into()),
        seq: None,
        requeued: false,
        tried: Tried::default(),
        replayed: None,
    }
}

/// Seed 43001386: a scan brought back what a stream had lost, and the log brings it once more.
#[test]
fn what_a_scan_published_is_known_until_the_log_is_where_it_ended_at_the_start() {
    for (log_end, sent) in [(200, 0), (50, 1)] {
        let event = Event::new("t", "a", "e", &0).expect("valid");
        let stored = vec![Stored { id: event.id, seq: 3, commit_lsn: Lsn::ZERO }];
        let mut start = start(Tail { stored, ..Tail::ending_at(3) });
        start.settings.log_end = Lsn(log_end);
        let mut state = Publishing::new(start);
        let begin = LogInput::Begin { commit_lsn: Lsn(100), commit_time_micros: 0 };
        state.read(Duration::ZERO, begin);
        log_event(&mut state, event);
        assert_eq!(send_all(&mut state), sent);
    }
}

fn send_all(state: &mut Publishing) -> usize {
    std::iter::from_fn(|| state.next_send().map(drop)).count()
}

fn ack(state: &mut Publishing, index: u64) {
    ack_at(state, Duration::ZERO, index);
}

fn ack_at(state: &mut Publishing, now: Duration, index: u64) {
    state.heard(now, BrokerInput::Acked { epoch: 0, index, seq: index + 1, is_duplicate: false });
}

/// The stream says that it has the event there, and `is_there` whether it does.
fn is_duplicate(state: &mut Publishing, index: u64, seq: u64, is_there: bool) {
    let epoch = state.link.epoch();
    state.heard(state.now, BrokerInput::Acked { epoch, index, seq, is_duplicate: true });
    let asked = std::iter::from_fn(|| state.next_request()).last();
    assert!(matches!(asked, Some(Request::LookUp { seq: at, .. }) if at == seq), "{asked:?}");
    state.heard(state.now, BrokerInput::LookedUp { epoch, index, seq, is_there });
}

#[test]
fn a_duplicate_that_the_stream_does_not_have_is_sent_again_until_it_takes_it() {
    for mode in [Mode::Fenced, Mode::Keyed] {
        let mut state = Publishing::new(Start { mode, ..start(Tail::ending_at(0)) });
        log(&mut state, 1);
        send_all(&mut state);
        for _ in 0..20 {
            is_duplicate(&mut state, 0, 1, false);
            assert_eq!((resolved(&mut state), send_all(&mut state)), (vec![], 0), "it waits");
            for _ in 0..2 {
                state.tick(state.now + Duration::from_secs(3));
                if reads_of_the_tail(&mut state) > 0 {
                    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(2)));
                }
            }
            assert_eq!(send_all(&mut state), 1);
        }
        let epoch = state.link.epoch();
        state.heard(state.now, BrokerInput::Acked { epoch, index: 0, seq: 3, is_duplicate: false });
        assert_eq!(resolved(&mut state), [3], "however often, no attempt was counted");
    }
}

/// Seed 20002537: the stream has the message, somebody looked at its end meanwhile, and a forged answer
/// says that it is elsewhere.
#[test]
fn a_message_that_is_said_to_be_elsewhere_is_looked_for_from_where_it_was_sent() {
    let mut state = fenced();
    log(&mut state, 1);
    send_all(&mut state);
    state.looked(Duration::ZERO, Tail::ending_at(1));
    is_duplicate(&mut state, 0, 7, false);
    let is_right = |it: &Request| matches!(it, Request::ReadTail { from: 1, .. });
    assert_eq!(std::iter::from_fn(|| state.next_request()).filter(is_right).count(), 1);
}

/// The stream has come back without its end, and nobody has looked since.
#[test]
fn a_sequence_that_was_given_out_before_leads_to_a_reading_of_the_tail() {
    for (seq, is_duplicate, resyncs) in [(3, true, 0), (6, true, 0), (3, false, 1)] {
        let mut state = start_on(Tail::ending_at(5));
        log(&mut state, 1);
        send_all(&mut state);
        match is_duplicate {
            true => self::is_duplicate(&mut state, 0, seq, true),
            false => state.heard(
                Duration::ZERO,
                BrokerInput::Acked { epoch: 0, index: 0, seq, is_duplicate },
            ),
        }
        assert_eq!(state.counts().resyncs, resyncs, "duplicate: {is_duplicate}");
        assert_eq!(state.counts().duplicates, u64::from(is_duplicate), "sequence {seq}");
        assert_eq!(state.unresolved(), usize::from(!is_duplicate));
    }
}

#[test]
fn a_later_look_of_the_scanner_does_not_disturb_what_is_on_its_way() {
    let mut state = fenced();
    log(&mut state, 20);
    send_all(&mut state);
    ack(&mut state, 0);
    assert_eq!(send_all(&mut state), 19);
    // Read while the stream had ten messages; the twentieth is on its way.
    state.looked(Duration::ZERO, Tail::ending_at(10));
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 19, seq: 20 });
    log(&mut state, 1);
    assert_eq!(state.next_send().and_then(|send| send.expected), Some(20));
    ack(&mut state, 20);

    // Read before these, applied when they had been answered.
    state.looked(Duration::ZERO, Tail::ending_at(10));
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
        state.tick(now);
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

/// Nothing else may come that would look: the session's timer does.
#[test]
fn copies_say_until_when_they_rest_behind_a_new_event() {
    let millis = Duration::from_millis;
    let mut state = fenced();
    log(&mut state, 1);
    send_all(&mut state);
    ack_at(&mut state, millis(1), 0);
    assert!(state.has_room_to_replay(millis(1)));
    let copy = Outgoing { subject: Ok("s".into()), ..dropped() };
    state.replayed(millis(1), copy);
    assert_eq!(send_all(&mut state), 1);
    ack_at(&mut state, millis(4), 1);
    let until = state.copies_rest_until(millis(5)).expect("a rest");
    assert!(until > millis(5), "{until:?}");
    assert!(!state.has_room_to_replay(until - millis(1)));
    assert!(state.has_room_to_replay(until));
    assert_eq!(state.copies_rest_until(until), None);
}

fn dropped() -> Outgoing {
    let event = Event::new("t", "a", "e", &0).expect("valid");
    Outgoing {
        event,
        subject: Err(Unpublished::Dropped),
        seq: None,
        requeued: false,
        tried: Tried::default(),
        replayed: None,
    }
}

#[test]
fn a_dropped_event_is_resolved_at_once_and_waits_for_nobody() {
    let mut state = fenced();
    let (commit_lsn, end_lsn) = (Lsn(10), Lsn(20));
    state.read(Duration::ZERO, LogInput::Begin { commit_lsn, commit_time_micros: 0 });
    let event = dropped();
    let id = event.event.id;
    state.read(Duration::ZERO, LogInput::Logged(event));
    state.read(Duration::ZERO, LogInput::Commit { end_lsn });
    assert_eq!((state.confirmed(), state.is_idle(), state.has_send()), (end_lsn, true, false));
    let resolved = state.take_resolved();
    assert_eq!(resolved.iter().map(|it| (it.id, it.seq)).collect::<Vec<_>>(), [(id, None)]);
    assert_eq!(state.counts().dropped, 1);
}

#[test]
fn a_dropped_event_passes_no_mark_of_confirmation_over_one_that_is_on_its_way() {
    let mut state = fenced();
    log(&mut state, 1);
    state.read(Duration::ZERO, LogInput::Logged(dropped()));
    state.read(Duration::ZERO, LogInput::Commit { end_lsn: Lsn(20) });
    assert_eq!(send_all(&mut state), 1);
    assert_eq!(state.confirmed(), Lsn::ZERO);
    ack(&mut state, 0);
    assert_eq!(state.confirmed(), Lsn(20));
}

#[test]
fn an_event_published_before_its_route_came_is_not_said_to_be_dropped() {
    let event = dropped();
    let id = Some(event.event.id);
    let message = TailMessage {
        seq: 7,
        id,
        position: None,
        position_event: None,
        replay: None,
        is_marker: false,
    };
    let mut tail = Tail::ending_at(7);
    tail.add(1, [message]);
    let mut state = start_on(tail);
    state.read(Duration::ZERO, LogInput::Logged(event));
    let resolved = state.take_resolved();
    assert_eq!(resolved.iter().map(|it| it.seq).collect::<Vec<_>>(), [Some(7)]);
    assert_eq!((state.counts().found, state.counts().dropped), (1, 0));
}

/// A session that has stored one message by itself, with `waiting` more to send.
fn batching(waiting: usize) -> Publishing {
    let mut state = fenced();
    log(&mut state, 1);
    assert_eq!(parts(&mut state), [None], "nothing is behind it");
    log(&mut state, waiting);
    ack(&mut state, 0);
    state
}

fn parts(state: &mut Publishing) -> Vec<Option<Part>> {
    std::iter::from_fn(|| state.next_send().map(|send| send.part)).collect()
}

fn resolved(state: &mut Publishing) -> Vec<u64> {
    state.take_resolved().iter().filter_map(|it| it.seq).collect()
}

const fn part(batch: u32, number: u64, last: bool) -> Option<Part> {
    Some(Part { batch, number, last })
}

#[test]
fn a_batch_ends_with_what_waits_and_the_next_begins_when_it_is_answered() {
    let mut state = batching(3);
    assert_eq!(parts(&mut state), [part(1, 1, false), part(1, 2, false), part(1, 3, true)]);
    log(&mut state, 2);
    assert!(!state.has_send(), "a batch is on its way");
    state.heard(Duration::ZERO, BrokerInput::Taking { batch: 1 });
    assert!(!state.has_send(), "a part of it is");
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 3, seq: 4 });
    assert_eq!(resolved(&mut state), [1, 2, 3, 4]);
    assert_eq!(parts(&mut state), [part(2, 1, false), part(2, 2, true)]);
}

#[test]
fn a_batch_is_a_part_of_the_window() {
    let mut state = batching(60);
    let sent = parts(&mut state);
    assert_eq!((sent.len(), sent[24]), (25, part(1, 25, true)));
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 25, seq: 26 });
    assert_eq!(parts(&mut state).len(), 25, "the next one");
}

/// What others have published under its id may be in its place.
#[test]
fn the_first_event_after_a_pause_goes_by_itself() {
    let mut state = batching(2);
    parts(&mut state);
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 2, seq: 3 });
    log(&mut state, 2);
    assert_eq!(parts(&mut state), [None]);
}

#[test]
fn among_others_each_event_goes_by_itself() {
    let mut state = batching(3);
    let foreign = Tail { foreign: 1, last_foreign: 2, ..Tail::ending_at(2) };
    state.looked(Duration::ZERO, foreign);
    assert_eq!(parts(&mut state), [None]);
    let stored = BrokerInput::Acked { epoch: 0, index: 1, seq: 3, is_duplicate: false };
    state.heard(Duration::ZERO, stored);
    assert_eq!(parts(&mut state), [None], "another one waited behind it");
}

#[test]
fn a_batch_that_ends_early_is_looked_up() {
    let mut state = batching(3);
    parts(&mut state);
    resolved(&mut state);
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 2, seq: 3 });
    assert_eq!(resolved(&mut state), [2, 3]);
    let request = state.next_request();
    assert!(matches!(request, Some(Request::ReadTail { from: 2, .. })), "{request:?}");
}

#[test]
fn a_duplicate_that_a_batch_swallowed_is_looked_up_and_sent_by_itself() {
    let mut state = batching(2);
    parts(&mut state);
    resolved(&mut state);
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 2, seq: 2 });
    assert_eq!(resolved(&mut state), [] as [u64; 0], "one of the two is somewhere else");
    assert!(matches!(state.next_request(), Some(Request::ReadTail { .. })));
    state.heard(Duration::ZERO, BrokerInput::Tail(Tail::ending_at(2)));
    assert_eq!(parts(&mut state), [None], "its answer tells where");
    is_duplicate(&mut state, 1, 1, true);
    assert_eq!(resolved(&mut state), [1]);
    let send = state.next_send().expect("the other one");
    assert_eq!(send.expected, Some(2), "the duplicate took no place");
}

#[test]
fn a_batch_whose_last_message_did_not_leave_is_ended() {
    let mut state = batching(2);
    parts(&mut state);
    let refusal = Refusal::Message("too large".to_owned());
    state.heard(Duration::ZERO, BrokerInput::Unsendable { index: 2, refusal });
    assert!(state.has_send());
    assert_eq!(parts(&mut state), []);
    assert_eq!(state.next_end(), part(1, 2, true));
    assert_eq!(state.next_end(), None);
    resolved(&mut state);
    state.heard(Duration::ZERO, BrokerInput::Ended { batch: 1, count: 1, seq: 2 });
    assert_eq!(resolved(&mut state), [2]);
    assert!(!matches!(state.next_request(), Some(Request::ReadTail { .. })));
}

#[test]
fn a_broker_that_takes_no_batches_ends_the_session() {
    let mut state = batching(3);
    parts(&mut state);
    let refusal = Refusal::NoBatches("disabled".into());
    state.heard(Duration::ZERO, BrokerInput::Broken { batch: 1, number: 1, refusal });
    assert_eq!(reads_of_the_tail(&mut state), 1, "anybody may say so");
    let tail = Tail { refuses_batches: true, ..Tail::ending_at(1) };
    state.heard(state.now, BrokerInput::Tail(tail));
    let request = state.next_request();
    assert!(matches!(request, Some(Request::End(End::LeaveFence(_)))), "{request:?}");
}

/// Whether fenced mode is left when another message is always in the way.
fn leaves_fence(is_marker: bool) -> bool {
    let mut state = fenced();
    log(&mut state, 1);
    for round in 0..20 {
        send_all(&mut state);
        let refusal = Refusal::ExpectedLastSequence;
        state.heard(Duration::ZERO, BrokerInput::Refused { epoch: round, index: 0, refusal });
        let seq = u64::from(round) + 1;
        let (id, position, position_event, replay) = (None, None, None, None);
        let message = TailMessage { seq, id, position, position_event, replay, is_marker };
        let mut tail = Tail::ending_at(seq);
        tail.add(1, [message]);
        state.heard(Duration::ZERO, BrokerInput::Tail(tail));
    }
    std::iter::from_fn(|| state.next_request())
        .any(|it| matches!(it, Request::End(End::LeaveFence(_))))
}

// proves: G-STREAM-1
#[test]
fn markers_of_the_broker_leave_a_session_in_fenced_mode() {
    assert!(leaves_fence(false));
    assert!(!leaves_fence(true));
}

fn reads_of_the_tail(state: &mut Publishing) -> usize {
    let requests = std::iter::from_fn(|| state.next_request());
    requests.filter(|it| matches!(it, Request::ReadTail { .. })).count()
}

/// A silent broker: each answer to a request for the tail is that there is none.
#[test]
fn an_open_breaker_waits_and_a_new_connection_ends_the_wait() {
    let mut state = fenced();
    log(&mut state, 1);
    send_all(&mut state);
    let refusal = Refusal::Outage("maximum messages exceeded".into());
    state.heard(Duration::ZERO, BrokerInput::Refused { epoch: 0, index: 0, refusal });
    state.tick(Duration::from_millis(100));
    assert_eq!(reads_of_the_tail(&mut state), 1);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
    assert_eq!(reads_of_the_tail(&mut state), 1, "it may be an accident");
    for _ in 0..12 {
        let wait = state.breaker().1.unwrap_or_default();
        state.tick(state.now + wait);
        state.heard(state.now, BrokerInput::TailFailed("no answer".into()));
    }
    let wait = state.breaker().1.expect("open");
    assert!(wait > Duration::from_secs(10), "{wait:?}");
    reads_of_the_tail(&mut state);
    state.tick(state.now + wait / 2);
    assert_eq!(reads_of_the_tail(&mut state), 0, "too early");
    state.heard(state.now, BrokerInput::LinkLost);
    assert_eq!(reads_of_the_tail(&mut state), 1);
    log(&mut state, 5);
    state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
    assert_eq!(send_all(&mut state), 1, "a probe goes alone");
    is_duplicate(&mut state, 0, 1, true);
    assert_eq!((state.breaker().1, send_all(&mut state)), (None, 5));
}

#[test]
fn a_limit_is_believed_once_it_was_read_after_the_event_came() {
    let mut state = fenced();
    state.tick(Duration::from_secs(1));
    let mut event = Event::new("t", "a", "e", &0).expect("valid");
    event.payload = Bytes::from_static(b"{}");
    state.read(Duration::from_secs(2), LogInput::Logged(outgoing(event)));
    for parked in [false, true] {
        let index = state.next_send().expect("the event").index;
        let refusal = Refusal::OverLimit("too large".into());
        state.heard(Duration::from_secs(3), BrokerInput::Unsendable { index, refusal });
        let request = state.next_request().expect("something to do");
        assert_eq!(matches!(request, Request::Park { .. }), parked, "{request:?}");
        state.heard(state.now, BrokerInput::Tail(Tail::ending_at(0)));
    }
}

#[test]
fn a_transaction_that_is_not_whole_is_beyond_what_is_confirmed() {
    let mut state = fenced();
    let now = Duration::ZERO;
    state.read(now, LogInput::Begin { commit_lsn: Lsn(5), commit_time_micros: 0 });
    log(&mut state, 1);
    send_all(&mut state);
    ack(&mut state, 0);
    assert!(!state.has_nothing_beyond(state.confirmed()), "the stream has one event of it");
    state.read(now, LogInput::Commit { end_lsn: Lsn(6) });
    assert!(state.has_nothing_beyond(state.confirmed()));
}

mod refused;
