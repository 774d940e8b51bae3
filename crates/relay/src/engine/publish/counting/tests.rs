//! What is counted, what is not believed, and when a place loses its sequence.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use outbox::Event;
use outbox::wire::Position;

use uuid::Uuid;

use super::*;
use crate::engine::input::{BrokerInput, LogInput, Refusal};
use crate::engine::messages::{Settings, Start};
use crate::engine::publish::tests::outgoing;
use crate::engine::tail_messages::TailMessage;
use crate::engine::window::{Outgoing, WindowLimits};

const SYSTEM: u64 = 1;

/// Everything that a predecessor can have published committed before this.
const BEFORE: Lsn = Lsn(1_000);

fn written(seq: Option<u64>) -> WrittenDown {
    WrittenDown {
        place: Some(Place { commit_lsn: Lsn(10), ordinal: 0, seq }),
        at_micros: 0,
        is_same: true,
        stream_is_whole: false,
        before: BEFORE,
    }
}

fn start(mode: Mode, written: WrittenDown, tail: Tail) -> Publishing {
    Publishing::new(Start {
        written,
        mode,
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
    })
}

/// The place is behind sequence `seq`, and the stream has lost everything up to `last_seq`.
fn purged(seq: u64, last_seq: u64) -> Publishing {
    start(Mode::Fenced, written(Some(seq)), Tail::ending_at(last_seq))
}

/// The same, but the stream still has a message.
fn purged_but(seq: u64, last_seq: u64, at: u64, id: u128, system_id: u64) -> Publishing {
    let mut tail = Tail::ending_at(last_seq);
    let position = Some(Position { system_id, timeline: 1, lsn: 20, ordinal: 0 });
    let id = Some(Uuid::from_u128(id));
    tail.add(
        SYSTEM,
        [TailMessage {
            seq: at,
            id,
            position,
            position_event: None,
            replay: None,
            is_marker: false,
        }],
    );
    start(Mode::Fenced, written(Some(seq)), tail)
}

fn event(id: u128) -> Outgoing {
    let mut event = Event::new("t", "a", "e", &0).expect("valid");
    event.id = Uuid::from_u128(id);
    event.payload = Bytes::from_static(b"{}");
    outgoing(event)
}

fn read(state: &mut Publishing, input: LogInput) {
    state.read(Duration::ZERO, input);
}

fn hear(state: &mut Publishing, input: BrokerInput) {
    state.heard(Duration::ZERO, input);
}

/// The log brings a transaction.
fn log_since(state: &mut Publishing, commit_time_micros: i64, ids: &[u128]) {
    read(state, LogInput::Begin { commit_lsn: Lsn(20), commit_time_micros });
    ids.iter().for_each(|id| read(state, LogInput::Logged(event(*id))));
}

fn log(state: &mut Publishing, ids: &[u128]) {
    log_since(state, 0, ids);
}

/// The place that is written down loses its sequence.
fn write_without_sequence(state: &mut Publishing) {
    state.writes_place(NotedPlace::Uncounted);
    state.place_written(true);
}

fn resolved(state: &mut Publishing) -> Vec<(u128, Option<u64>)> {
    state.take_resolved().iter().map(|it| (it.id.as_u128(), it.seq)).collect()
}

/// Counted and uncertain, if that was told.
fn told(state: &mut Publishing) -> Option<(u64, u64)> {
    std::iter::from_fn(|| state.next_request()).find_map(|it| {
        let Request::Tell(Notice::Counted { counted, uncertain }) = it else { return None };
        Some((counted, uncertain))
    })
}

/// Nothing is counted: once the place has lost its sequence, everything is published.
fn assert_distrusted(state: &mut Publishing, why: &str) {
    assert_eq!(resolved(state), [], "{why}");
    assert!(state.voids_place() && !state.has_send(), "{why}: the place still has its sequence");
    write_without_sequence(state);
    assert!(!state.voids_place() && state.has_send(), "{why}: nothing is sent");
}

#[test]
fn as_many_events_are_stored_as_the_stream_has_given_sequences_since() {
    let mut state = purged(10, 12);
    log(&mut state, &[1, 2, 3]);
    assert_eq!(resolved(&mut state), [(1, Some(11)), (2, Some(12))]);
    assert_eq!(told(&mut state), Some((2, 0)));
    assert_eq!(state.next_send().and_then(|it| it.expected), Some(12), "the third");

    let mut state = purged(10, 10);
    log(&mut state, &[1]);
    assert_eq!((resolved(&mut state), state.has_send()), (vec![], true));
}

#[test]
fn what_takes_no_sequence_is_not_counted() {
    let mut state = purged(10, 11);
    read(&mut state, LogInput::Begin { commit_lsn: Lsn(20), commit_time_micros: 0 });
    let subject = Err(crate::engine::window::Unpublished::Dropped);
    read(&mut state, LogInput::Logged(Outgoing { subject, ..event(1) }));
    read(&mut state, LogInput::Logged(event(2)));
    assert_eq!(resolved(&mut state), [(1, None), (2, Some(11))]);
}

#[test]
fn a_message_that_is_still_there_agrees_with_the_count() {
    let mut state = purged_but(10, 12, 12, 2, SYSTEM);
    log(&mut state, &[1, 2]);
    assert_eq!(resolved(&mut state), [(1, Some(11)), (2, Some(12))]);
    assert_eq!(told(&mut state), Some((1, 0)));
}

#[test]
fn counted_events_are_held_until_the_count_is_reached() {
    let mut state = purged(10, 12);
    log(&mut state, &[1]);
    assert_eq!((resolved(&mut state), state.has_send()), (vec![], false));
    assert!(state.is_counting(), "nothing may be confirmed, or written down");
    read(&mut state, LogInput::Logged(event(2)));
    assert_eq!(resolved(&mut state), [(1, Some(11)), (2, Some(12))]);
    assert!(!state.is_counting());
}

#[test]
fn more_messages_than_events_are_not_believed() {
    let mut state = purged(10, 19);
    log(&mut state, &[1, 2]);
    read(&mut state, LogInput::Commit { end_lsn: Lsn(25) });
    read(&mut state, LogInput::Keepalive { wal_end: Lsn(BEFORE.0 - 1) });
    assert!(state.is_counting(), "the log may bring more");
    read(&mut state, LogInput::Keepalive { wal_end: BEFORE });
    assert_eq!(told(&mut state), Some((0, 2)));
    assert_distrusted(&mut state, "more messages than events");
}

#[test]
fn an_event_that_is_too_young_is_not_believed_to_be_stored() {
    let mut state = purged(10, 12);
    log(&mut state, &[1]);
    log_since(&mut state, WRITTEN_WITHIN_MICROS + 1, &[2]);
    assert_distrusted(&mut state, "nobody can have published the second");
}

#[test]
fn another_stream_is_not_counted() {
    let mut state = purged(13, 12);
    log(&mut state, &[1]);
    assert_distrusted(&mut state, "it ends before the place");
}

#[test]
fn a_foreign_message_behind_the_place_is_not_counted_with() {
    let mut state = purged_but(10, 12, 12, 9, SYSTEM + 1);
    log(&mut state, &[1, 2]);
    assert_distrusted(&mut state, "one of the two is somebody else's");
    let mut state = purged_but(10, 12, 10, 9, SYSTEM + 1);
    log(&mut state, &[1, 2]);
    assert_eq!(resolved(&mut state), [(1, Some(11)), (2, Some(12))], "before the place");
}

#[test]
fn another_id_where_an_event_is_to_be_contradicts_the_count() {
    let mut state = purged_but(10, 13, 12, 9, SYSTEM);
    log(&mut state, &[1, 2]);
    assert_distrusted(&mut state, "the second is not there");
}

#[test]
fn an_event_that_is_elsewhere_contradicts_the_count() {
    let mut state = purged_but(10, 13, 13, 2, SYSTEM);
    log(&mut state, &[1, 2]);
    assert_eq!(resolved(&mut state), [(2, Some(13))]);
    assert_distrusted(&mut state, "there is one too many before it");
}

#[test]
fn a_place_is_void_before_a_keyed_session_sends() {
    let mut state = start(Mode::Keyed, written(Some(10)), Tail::ending_at(10));
    log(&mut state, &[1]);
    assert_distrusted(&mut state, "keyed mode keeps no order");
}

#[test]
fn a_place_of_other_rules_is_void_and_the_next_has_none_of_their_sequences() {
    let other = WrittenDown { is_same: false, ..written(Some(10)) };
    let mut state = start(Mode::Fenced, other, Tail::ending_at(10));
    log(&mut state, &[1]);
    assert_distrusted(&mut state, "the predecessor had other rules");
    let index = state.next_send().map(|it| it.index).expect("the event");
    assert_eq!(state.place().map(|it| it.seq), Some(None), "it may be stored late");
    hear(&mut state, BrokerInput::Acked { epoch: 0, index, seq: 11, is_duplicate: false });
    read(&mut state, LogInput::Commit { end_lsn: Lsn(25) });
    read(&mut state, LogInput::Keepalive { wal_end: BEFORE });
    assert_eq!(state.place().map(|it| it.seq), Some(Some(11)));
}

#[test]
fn a_place_is_void_while_rows_of_a_scan_or_copies_take_sequences() {
    let with_tail = || {
        let mut state = purged(10, 10);
        log(&mut state, &[]);
        read(&mut state, LogInput::Commit { end_lsn: Lsn(25) });
        assert_eq!(state.place().map(|it| it.seq), Some(Some(10)));
        state
    };
    let mut state = with_tail();
    state.scanned(Duration::ZERO, 0, vec![event(1)]);
    assert_eq!(state.place().and_then(|it| it.seq), None, "a scan");
    let mut state = with_tail();
    state.replayed(Duration::ZERO, event(1));
    assert_eq!(state.place().and_then(|it| it.seq), None, "a replay");
}

#[test]
fn a_place_is_void_before_an_event_that_was_sent_is_parked() {
    let mut state = purged(10, 10);
    log(&mut state, &[1, 2]);
    for epoch in 0..2 {
        let index = state.next_send().map(|it| it.index).expect("the event");
        let refusal = Refusal::Message("too large".into());
        hear(&mut state, BrokerInput::Refused { epoch, index, refusal });
        let later = Duration::from_secs(1 + u64::from(epoch));
        state.tick(later);
        state.heard(later, BrokerInput::Tail(Tail::ending_at(10)));
    }
    assert!(state.voids_place(), "it may be stored all the same");
    assert!(!state.has_send(), "the place still has its sequence");
    write_without_sequence(&mut state);
    assert!(state.has_send());
}

/// Of what was sent the stream has a prefix: what else took sequences was somebody else, or is gone.
#[test]
fn sequences_that_no_message_explains_void_the_place() {
    for (last_seq, is_void) in [(5, false), (7, true)] {
        let whole = WrittenDown { stream_is_whole: true, ..written(Some(5)) };
        let mut state = start(Mode::Fenced, whole, Tail::ending_at(5));
        hear(&mut state, BrokerInput::LinkLost);
        hear(&mut state, BrokerInput::Tail(Tail::ending_at(last_seq)));
        assert_eq!(state.voids_place(), is_void, "the stream ends at {last_seq}");
    }
}

/// The broker may answer that it has stored it before, with another sequence than is expected.
#[test]
fn an_event_that_could_not_be_counted_gets_no_place_with_a_sequence() {
    let mut state = start(Mode::Fenced, written(None), Tail::ending_at(10));
    log(&mut state, &[1]);
    read(&mut state, LogInput::Commit { end_lsn: Lsn(25) });
    assert!(state.next_send().is_some());
    assert_eq!(state.place().map(|it| it.seq), Some(None), "it may be in the stream already");
    hear(&mut state, BrokerInput::Acked { epoch: 0, index: 0, seq: 11, is_duplicate: false });
    read(&mut state, LogInput::Keepalive { wal_end: BEFORE });
    assert_eq!(state.place().map(|it| it.seq), Some(Some(11)), "everything is known by now");
}

/// A predecessor's message that came late has the sequence of an event that was sent.
#[test]
fn a_message_in_the_place_of_another_voids_the_place() {
    for (id, is_void) in [(1, false), (2, true)] {
        let whole = WrittenDown { stream_is_whole: true, ..written(Some(10)) };
        let mut state = start(Mode::Fenced, whole, Tail::ending_at(10));
        log(&mut state, &[1, 2]);
        while state.next_send().is_some() {}
        hear(&mut state, BrokerInput::LinkLost);
        let position = Some(Position { system_id: SYSTEM, timeline: 1, lsn: 20, ordinal: 0 });
        let (id, position_event) = (Some(Uuid::from_u128(id)), None);
        let mut tail = Tail::ending_at(11);
        tail.add(
            SYSTEM,
            [TailMessage { seq: 11, id, position, position_event, replay: None, is_marker: false }],
        );
        hear(&mut state, BrokerInput::Tail(tail));
        assert_eq!(state.voids_place(), is_void, "{id:?} follows the place");
    }
}

/// What was written down as published is published again, as the stream lacks it.
#[test]
fn a_stream_that_ends_earlier_than_the_place_passes_nothing() {
    for (last_seq, unresolved) in [(9, 0), (4, 1)] {
        let mut state = purged(9, last_seq);
        read(&mut state, LogInput::Begin { commit_lsn: Lsn(5), commit_time_micros: 0 });
        read(&mut state, LogInput::Logged(event(1)));
        assert_eq!(state.unresolved(), unresolved, "the stream ends at {last_seq}");
    }
}
