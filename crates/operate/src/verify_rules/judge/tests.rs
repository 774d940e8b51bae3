use proptest::prelude::*;

use super::*;
use crate::verify_rules::cut::{Marking, ShardCut, StreamRange};
use crate::verify_rules::fingerprint::Fingerprint;

const PRINT: Fingerprint =
    Fingerprint { payload: 1, headers: 2, occurred_at: 3, subject: 4, aggregate: 5 };

const HERE: Named = Named::Here { stream: 0, sequence: Some(20) };

/// A stream that was read from 10 to 100, and was at 90 before the table was read; a slot that is
/// swept below transaction 50, and has passed everything.
fn cut() -> Cut {
    let snapshot = |text: &str| Some(text.parse().expect("a snapshot"));
    let stream = StreamRange { first: 10, before: 90, last: 100, ..StreamRange::default() };
    let stream = StreamRange { is_from_the_beginning: true, ..stream };
    let shard = ShardCut {
        started: snapshot("10:10:"),
        swept: snapshot("50:50:"),
        watermark: snapshot("60:60:"),
        passed: true,
        gap_filled: true,
    };
    Cut {
        streams: vec![stream.clone(), stream],
        shards: vec![shard.clone(), shard],
        published: Vec::new(),
        marking: Marking::default(),
    }
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// A row that is not marked, of transaction 70: not swept.
fn row() -> RowRecord {
    RowRecord { print: PRINT, transaction: 70, ..RowRecord::of_id(id(1), 0) }
}

fn marked(named: Named) -> RowRecord {
    RowRecord { flags: RowRecord::MARKED, named, ..row() }
}

fn message(sequence: u64) -> MessageRecord {
    let at = Place { stream: 0, sequence };
    let flags = MessageRecord::OURS;
    MessageRecord { id: id(1), at, flags, print: PRINT, position: None, behind: 0 }
}

fn judged<'a>(cut: &'a Cut, rows: &[RowRecord], messages: &[MessageRecord]) -> Judge<'a> {
    let mut judge = Judge::new(cut);
    judge.partition(rows.to_vec(), messages.to_vec());
    judge
}

fn kinds(cut: &Cut, rows: &[RowRecord], messages: &[MessageRecord]) -> Vec<Kind> {
    judged(cut, rows, messages).candidates.iter().map(|it| it.kind).collect()
}

#[test]
fn a_row_with_its_message_is_matched() {
    let cut = cut();
    for row in [row(), marked(HERE), marked(Named::Here { stream: 0, sequence: None })] {
        let judge = judged(&cut, &[row], &[message(20)]);
        assert_eq!(judge.candidates, []);
        assert_eq!((judge.counts.rows, judge.counts.matched), (1, 1));
        assert_eq!(judge.lowest_with_row, [Some(20), None]);
        assert_eq!(judge.orders.len(), 1);
    }
}

#[test]
fn a_row_without_a_message_is_a_gap_if_somebody_is_done_with_it() {
    let cut = cut();
    let at = |sequence| Named::Here { stream: 0, sequence };
    for (row, found) in [
        (row(), true),
        (RowRecord { transaction: 5, ..row() }, false),
        (marked(HERE), true),
        (marked(at(Some(9))), false),
        (marked(at(Some(1_000))), true),
        (marked(at(None)), true),
        (marked(Named::Elsewhere), false),
        (marked(Named::Nowhere), false),
        (RowRecord { flags: RowRecord::MARKED | RowRecord::DROPPED, ..row() }, false),
        (RowRecord { flags: RowRecord::ROUTED_AWAY, ..row() }, false),
    ] {
        let expected = if found { vec![Kind::Gap] } else { vec![] };
        assert_eq!(kinds(&cut, &[row], &[]), expected, "{row:?}");
    }
    let counts = judged(&cut, &[RowRecord { transaction: 5, ..row() }], &[]).counts;
    assert_eq!(counts.pending, 1);
    assert_eq!(judged(&cut, &[marked(at(Some(9)))], &[]).counts.out_of_reach, 1);
}

#[test]
fn a_stream_that_forgets_proves_no_gap() {
    let mut cut = cut();
    cut.streams[0].forgets = true;
    assert_eq!(kinds(&cut, &[row()], &[]), []);
    assert_eq!(kinds(&cut, &[marked(HERE)], &[]), []);
}

#[test]
fn what_differs_is_told_part_by_part() {
    let cut = cut();
    let with = |print| MessageRecord { print, ..message(20) };
    for (print, kind) in [
        (Fingerprint { payload: 9, ..PRINT }, Kind::Payload),
        (Fingerprint { headers: 9, ..PRINT }, Kind::Headers),
        (Fingerprint { occurred_at: 9, ..PRINT }, Kind::Headers),
        (Fingerprint { subject: 9, ..PRINT }, Kind::Subject),
    ] {
        assert_eq!(kinds(&cut, &[marked(HERE)], &[with(print)]), [kind]);
    }
    let timeless = RowRecord { flags: RowRecord::MARKED | RowRecord::TIMELESS, ..marked(HERE) };
    let other_time = with(Fingerprint { occurred_at: 9, ..PRINT });
    assert_eq!(kinds(&cut, &[timeless], &[other_time]), []);
    let routed = RowRecord { flags: RowRecord::MARKED | RowRecord::ROUTED_AWAY, ..marked(HERE) };
    assert_eq!(kinds(&cut, &[routed], &[with(Fingerprint { subject: 9, ..PRINT })]), []);
    let unfit = RowRecord { flags: RowRecord::MARKED | RowRecord::UNFIT, ..marked(HERE) };
    assert_eq!(kinds(&cut, &[unfit], &[message(20)]), [Kind::Headers]);
}

#[test]
fn a_message_that_is_there_twice_is_a_duplicate_of_the_first() {
    let cut = cut();
    let judge = judged(&cut, &[marked(HERE)], &[message(30), message(20)]);
    let [found] = &judge.candidates[..] else { panic!("{:?}", judge.candidates) };
    let sequence = |it: Option<Place>| it.map(|it| it.sequence);
    assert_eq!(found.kind, Kind::Duplicate);
    assert_eq!((sequence(found.at), sequence(found.other)), (Some(30), Some(20)));
    assert_eq!(kinds(&cut, &[], &[message(30), message(20)]), [Kind::Duplicate]);
}

#[test]
fn marks_are_compared_with_where_the_event_is() {
    let cut = cut();
    assert_eq!(kinds(&cut, &[marked(HERE)], &[message(21)]), [Kind::Mark]);
    let dropped = RowRecord { flags: RowRecord::MARKED | RowRecord::DROPPED, ..row() };
    assert_eq!(kinds(&cut, &[dropped], &[message(20)]), [Kind::Dropped]);
    let elsewhere = Named::Here { stream: 1, sequence: Some(20) };
    assert_eq!(kinds(&cut, &[marked(elsewhere)], &[message(20)]), [Kind::Misplaced]);
    let of_another_shard = RowRecord { shard: 1, ..row() };
    assert_eq!(kinds(&cut, &[of_another_shard], &[message(20)]), [Kind::Misplaced]);
    let swept = RowRecord { transaction: 40, ..row() };
    assert_eq!(kinds(&cut, &[swept], &[message(20)]), [Kind::Unmarked]);
}

#[test]
fn a_debt_counts_as_a_mark() {
    let cut = cut();
    let swept = RowRecord { transaction: 40, ..row() };
    let owed = |named| RowRecord { named, ..RowRecord::of_id(id(1), RowRecord::OWED) };
    assert_eq!(kinds(&cut, &[swept, owed(HERE)], &[message(20)]), []);
    assert_eq!(kinds(&cut, &[swept, owed(HERE)], &[message(21)]), [Kind::Mark]);
    assert_eq!(kinds(&cut, &[owed(HERE), swept], &[]), [Kind::Gap]);
}

#[test]
fn a_dead_letter_is_not_to_be_stored() {
    let cut = cut();
    let dead = RowRecord::of_id(id(1), RowRecord::DEAD);
    assert_eq!(kinds(&cut, &[dead], &[]), []);
    assert_eq!(kinds(&cut, &[dead, row()], &[]), [], "its row was not visible when it was parked");
    assert_eq!(kinds(&cut, &[dead], &[message(20)]), [Kind::Parked]);
    assert_eq!(kinds(&cut, &[dead], &[message(95)]), [], "it may have been requeued since");
    let discarded = RowRecord::of_id(id(1), RowRecord::DEAD | RowRecord::DISCARDED);
    assert_eq!(kinds(&cut, &[discarded], &[message(20)]), []);
}

#[test]
fn messages_without_a_row_are_told_by_their_headers_and_their_age() {
    let mut cut = cut();
    let foreign = MessageRecord { flags: 0, ..message(20) };
    let judge = judged(&cut, &[], &[foreign]);
    assert_eq!((judge.counts.foreign, judge.orphans.len()), (1, 0));
    let judge = judged(&cut, &[], &[message(90)]);
    assert_eq!((judge.counts.younger, judge.orphans.len()), (0, 1));
    let judge = judged(&cut, &[], &[message(91)]);
    assert_eq!((judge.counts.younger, judge.orphans.len()), (1, 0));
    assert_eq!(judge.orders.len(), 0);
    cut.marking.deletes = true;
    assert_eq!(judged(&cut, &[], &[message(90)]).orders.len(), 1);
}

#[test]
fn a_position_that_goes_back_is_disorder_unless_the_event_was_tried_before() {
    let cut = cut();
    let behind = MessageRecord { behind: 15, ..message(20) };
    assert_eq!(kinds(&cut, &[marked(HERE)], &[behind]), [Kind::Disorder]);
    let tried = RowRecord { flags: RowRecord::MARKED | RowRecord::TRIED, ..marked(HERE) };
    assert_eq!(kinds(&cut, &[tried], &[behind]), []);
}

proptest! {
    /// Joined in whatever order the records were read, every event is judged once.
    #[test]
    fn each_event_is_joined_once(
        events in proptest::collection::btree_map(0_u128..500, (any::<bool>(), any::<bool>()), 0..80),
        seed in any::<u64>(),
    ) {
        let cut = cut();
        let (mut rows, mut messages) = (Vec::new(), Vec::new());
        for (number, (has_row, has_message)) in &events {
            let sequence = u64::try_from(*number).expect("small") % 80 + 10;
            if *has_row {
                rows.push(RowRecord { id: id(*number), ..row() });
            }
            if *has_message {
                messages.push(MessageRecord { id: id(*number), ..message(sequence) });
            }
        }
        let turn = |length: usize| usize::try_from(seed).unwrap_or(7) % length.max(1);
        let (by_rows, by_messages) = (turn(rows.len()), turn(messages.len()));
        rows.rotate_left(by_rows);
        messages.rotate_left(by_messages);
        let judge = judged(&cut, &rows, &messages);
        let count = |row, message| events.values().filter(|it| **it == (row, message)).count();
        prop_assert_eq!(judge.counts.matched, count(true, true) as u64);
        prop_assert_eq!(judge.candidates.len(), count(true, false));
        prop_assert!(judge.candidates.iter().all(|it| it.kind == Kind::Gap));
        prop_assert_eq!(judge.orphans.len(), count(false, true));
    }
}
