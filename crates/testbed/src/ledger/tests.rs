use super::*;

const A: u128 = 1;
const B: u128 = 2;
const C: u128 = 3;

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn row(number: u128, aggregate: &str) -> Row {
    let seq = i64::try_from(number).unwrap();
    let aggregate = ("order".to_owned(), aggregate.to_owned());
    Row { id: id(number), aggregate, seq, marked: false, stream_seq: None }
}

fn live(sequence: u64, number: u128, timeline: u32, lsn: u64) -> Message {
    let position = Position { system_id: 7, timeline, lsn, ordinal: 0 };
    Message { sequence, id: id(number), position: Some(position) }
}

fn scanned(sequence: u64, number: u128) -> Message {
    Message { sequence, id: id(number), position: None }
}

fn check(rows: Vec<Row>, messages: Vec<Message>, expect: &[Finding]) {
    let ledger = Ledger { rows, messages, ..Ledger::default() };
    assert_eq!(ledger.findings(), expect);
    assert_eq!(ledger.check().is_ok(), expect.is_empty());
}

#[test]
fn each_event_once_in_order_is_clean() {
    let rows = vec![row(A, "x"), row(B, "y"), row(C, "x")];
    check(rows, vec![live(1, A, 1, 10), live(2, B, 1, 20), live(3, C, 1, 30)], &[]);
}

#[test]
fn a_missing_event_is_lost() {
    check(vec![row(A, "x"), row(B, "x")], vec![scanned(1, A)], &[Finding::Lost(id(B))]);
}

#[test]
fn a_second_message_is_a_duplicate_and_nothing_else() {
    let messages = vec![live(1, A, 1, 10), live(2, B, 1, 20), live(3, A, 1, 10)];
    let expect = [Finding::Duplicate { id: id(A), first: 1, again: 3 }];
    check(vec![row(A, "x"), row(B, "x")], messages, &expect);
}

#[test]
fn an_unknown_event_is_a_phantom_until_known() {
    let messages = vec![scanned(5, C)];
    let mut ledger = Ledger { messages, ..Ledger::default() };
    assert_eq!(ledger.findings(), [Finding::Phantom { id: id(C), sequence: 5 }]);
    ledger.also_committed([id(C)]);
    assert_eq!(ledger.findings(), []);
}

#[test]
fn order_matters_within_an_aggregate_only() {
    let expect = [Finding::OutOfOrder { id: id(A), sequence: 2, behind: id(B) }];
    check(vec![row(A, "x"), row(B, "x")], vec![scanned(1, B), scanned(2, A)], &expect);
    check(vec![row(A, "x"), row(B, "y")], vec![scanned(1, B), scanned(2, A)], &[]);
}

#[test]
fn what_the_log_brings_keeps_the_order_of_the_log() {
    let rows = || vec![row(A, "x"), row(B, "y")];
    let expect = [Finding::OutOfOrder { id: id(A), sequence: 2, behind: id(B) }];
    check(rows(), vec![live(1, B, 1, 20), live(2, A, 1, 10)], &expect);
    check(rows(), vec![live(1, B, 1, 20), live(2, A, 2, 10)], &[]);
    check(rows(), vec![live(1, B, 1, 20), scanned(2, A)], &[]);
}

#[test]
fn a_dead_event_is_not_lost() {
    let dead = HashSet::from([id(A)]);
    let ledger = Ledger { dead, ..Ledger::default() };
    let tally = ledger.check().unwrap();
    assert_eq!((tally.committed, tally.dead, tally.lost), (1, 1, 0));
}

#[test]
fn a_mark_must_tell_the_truth() {
    let marked = |stream_seq| Row { marked: true, stream_seq, ..row(A, "x") };
    check(vec![marked(Some(1))], vec![scanned(1, A)], &[]);
    check(vec![marked(None)], vec![scanned(1, A)], &[]);
    let expect = [Finding::Mismarked { id: id(A), told: Some(2), actual: Some(1) }];
    check(vec![marked(Some(2))], vec![scanned(1, A)], &expect);
    let expect =
        [Finding::Lost(id(A)), Finding::Mismarked { id: id(A), told: Some(2), actual: None }];
    check(vec![marked(Some(2))], vec![], &expect);
}
