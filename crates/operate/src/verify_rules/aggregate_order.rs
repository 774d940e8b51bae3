//! Whether the events of each aggregate are stored in their order.
//!
//! Where messages have positions in the log, the order is that of the commits. Rows that the log did
//! not bring, and all of poll mode, have the order of insertion. That is the order of the commits
//! only where the writers of an aggregate wait for each other.

use super::finding::Kind;
use super::judge::Candidate;
use super::spilled::{OrderRecord, OwnPosition, Place};

/// How far an aggregate has come.
#[derive(Debug, Default)]
struct Progress {
    /// The highest position in the log of each history.
    positions: Vec<(OwnPosition, Place)>,
    /// The last place in the order of insertion, with its transaction.
    inserted: Option<((i64, u64), Place)>,
}

/// Compares the messages of a partition, which has all messages of its aggregates.
pub(crate) fn disorder(mut records: Vec<OrderRecord>) -> Vec<Candidate> {
    records.sort_unstable_by_key(|it| (it.aggregate, it.at));
    let of_one =
        |a: &OrderRecord, b: &OrderRecord| (a.aggregate, a.at.stream) == (b.aggregate, b.at.stream);
    let mut found = Vec::new();
    for aggregate in records.chunk_by(of_one) {
        let mut progress = Progress::default();
        for record in aggregate {
            if let Some((other, why)) = progress.take(record)
                && !record.may_be_late
            {
                found.push(Candidate {
                    kind: Kind::Disorder,
                    id: Some(record.id),
                    at: Some(record.at),
                    other: Some(other),
                    named: None,
                    why,
                });
            }
        }
    }
    found
}

impl Progress {
    /// Takes in the aggregate's next message. Says which earlier one belongs behind it.
    fn take(&mut self, record: &OrderRecord) -> Option<(Place, &'static str)> {
        let by_commit = record.position.and_then(|position| self.position(position, record.at));
        let by_insertion = record.inserted.and_then(|inserted| self.inserted(inserted, record));
        let by_commit =
            by_commit.map(|other| (other, "a later event of its aggregate came before"));
        let by_insertion = by_insertion
            .map(|other| (other, "an event of its aggregate inserted later came before"));
        by_commit.or(by_insertion)
    }

    fn position(&mut self, position: OwnPosition, at: Place) -> Option<Place> {
        let known = self.positions.iter_mut().find(|it| it.0.history == position.history);
        match known {
            Some((highest, other)) if position < *highest => Some(*other),
            Some(highest) => {
                *highest = (position, at);
                None
            }
            None => {
                self.positions.push((position, at));
                None
            }
        }
    }

    /// A message from the log committed after whatever the scanner had brought before it. So only
    /// what the scanner brings can be late.
    fn inserted(&mut self, inserted: (i64, u64), record: &OrderRecord) -> Option<Place> {
        let late = self.inserted.filter(|(latest, _)| {
            // A transaction that began later and inserted earlier ran beside the other one: then the
            // order of insertion is none.
            latest.0 > inserted.0 && latest.1 >= inserted.1
        });
        if late.is_none() && self.inserted.is_none_or(|(latest, _)| latest.0 < inserted.0) {
            self.inserted = Some((inserted, record.at));
        }
        late.filter(|_| record.position.is_none()).map(|(_, other)| other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn record(aggregate: u64, sequence: u64) -> OrderRecord {
        OrderRecord {
            aggregate,
            at: Place { stream: 0, sequence },
            id: Uuid::from_u128(sequence.into()),
            position: None,
            inserted: None,
            may_be_late: false,
        }
    }

    fn logged(sequence: u64, lsn: u64) -> OrderRecord {
        let position = Some(OwnPosition { history: 1, lsn, ordinal: 0 });
        OrderRecord { position, ..record(1, sequence) }
    }

    fn inserted(sequence: u64, insertion: i64, transaction: u64) -> OrderRecord {
        OrderRecord { inserted: Some((insertion, transaction)), ..record(1, sequence) }
    }

    /// The sequences of what is late, and of what it is behind.
    fn late(records: Vec<OrderRecord>) -> Vec<(u64, u64)> {
        let sequence = |it: Option<Place>| it.expect("a place").sequence;
        disorder(records).iter().map(|it| (sequence(it.at), sequence(it.other))).collect()
    }

    #[test]
    fn a_lower_position_behind_a_higher_one_is_late() {
        assert_eq!(late(vec![logged(1, 10), logged(3, 15), logged(2, 20)]), [(3, 2)]);
        let mut tried = logged(3, 15);
        tried.may_be_late = true;
        assert_eq!(late(vec![logged(2, 20), tried]), []);
        let mut of_another_history = logged(3, 15);
        of_another_history.position = Some(OwnPosition { history: 2, lsn: 15, ordinal: 0 });
        assert_eq!(late(vec![logged(2, 20), of_another_history]), []);
        let mut of_another = logged(3, 15);
        of_another.aggregate = 2;
        assert_eq!(late(vec![logged(2, 20), of_another]), []);
    }

    #[test]
    fn without_positions_the_order_is_that_of_insertion() {
        assert_eq!(late(vec![inserted(1, 1, 5), inserted(2, 3, 7), inserted(3, 2, 6)]), [(3, 2)]);
        assert_eq!(late(vec![inserted(1, 3, 5), inserted(2, 2, 5)]), [(2, 1)], "one transaction");
        assert_eq!(late(vec![inserted(1, 3, 5), inserted(2, 2, 6)]), [], "they ran side by side");
    }

    #[test]
    fn the_log_comes_after_what_was_scanned() {
        let mut from_log = inserted(2, 2, 5);
        from_log.position = Some(OwnPosition { history: 1, lsn: 10, ordinal: 0 });
        assert_eq!(late(vec![inserted(1, 3, 7), from_log]), []);
        let mut first = from_log;
        (first.at.sequence, first.inserted) = (1, Some((3, 7)));
        assert_eq!(late(vec![first, inserted(2, 2, 5)]), [(2, 1)]);
    }

    proptest! {
        #[test]
        fn what_is_stored_in_order_is_not_late(
            mut numbers in proptest::collection::vec((0_u64..4, 0_u64..1000), 0..60),
        ) {
            numbers.sort_by_key(|it| it.1);
            let records = numbers.iter().enumerate().map(|(at, (aggregate, number))| OrderRecord {
                position: Some(OwnPosition { history: 1, lsn: *number, ordinal: 0 }),
                inserted: Some((i64::try_from(at).expect("small"), number + 4)),
                ..record(*aggregate, at as u64 + 1)
            });
            prop_assert_eq!(disorder(records.collect()), []);
        }
    }
}
