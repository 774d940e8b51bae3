//! What has to be true of rows and streams that were not read in the same moment.
//!
//! ```text
//!   ends of the streams ─▶ snapshot of the table ─▶ the slots pass its end ─▶ ends of the streams
//!        `before`              `swept`, marks         `watermark`, `passed`         `last`
//! ```
//!
//! A message up to `before` was stored when the snapshot was taken, so its row is in the snapshot,
//! unless it was deleted. A row that is marked in the snapshot is in the stream up to `last`. So is
//! one that the relay was done with when `last` was asked for. All other rows are pending.

use super::snapshot::Snapshot;
use super::spilled::RowRecord;

/// Clocks of the two servers, and of producers, may differ by so much.
pub(crate) const CLOCKS_DIFFER_MICROS: i64 = 60_000_000;

/// What each stream and each slot said, and when.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cut {
    pub(crate) streams: Vec<StreamRange>,
    pub(crate) shards: Vec<ShardCut>,
    /// Transactions of which all rows are published, marked or not: those not shown by the first,
    /// and shown by the second.
    pub(crate) published: Vec<(Snapshot, Snapshot)>,
    pub(crate) marking: Marking,
}

/// How rows are marked, and who brings them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marking {
    /// No log brings the rows.
    pub(crate) polls: bool,
    /// Rows of the log get no mark.
    pub(crate) by_watermark: bool,
    /// Marked rows are gone.
    pub(crate) deletes: bool,
}

/// What of a stream is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamRange {
    /// The first sequence that was read and that the stream still had afterwards.
    pub(crate) first: u64,
    /// The last sequence before the snapshot of the table was taken.
    pub(crate) before: u64,
    /// The last sequence that was read.
    pub(crate) last: u64,
    /// Nothing lies before `first`, and nothing ever did.
    pub(crate) is_from_the_beginning: bool,
    /// When the first message was stored.
    pub(crate) first_at_micros: i64,
    /// The stream removes messages from within: by subject, by what was consumed, one by one.
    pub(crate) forgets: bool,
    /// It stores messages under other subjects than those under which they are published.
    pub(crate) transforms: bool,
    /// Rows of messages before this sequence may have been deleted by retention.
    pub(crate) rows_deleted_below: u64,
}

impl StreamRange {
    /// Whether the message of a row that names no sequence would have been read, had it ever been
    /// stored.
    fn reaches(&self, row: &RowRecord) -> bool {
        let is_later = || row.occurred_micros > self.first_at_micros + CLOCKS_DIFFER_MICROS;
        !self.forgets && (self.is_from_the_beginning || !row.is(RowRecord::TIMELESS) && is_later())
    }
}

/// What a shard's slot has brought.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShardCut {
    /// The log brings exactly what this does not show; `None` if nothing is known of the slot.
    pub(crate) started: Option<Snapshot>,
    /// What the log brought and this shows was published and marked when the table was read.
    pub(crate) swept: Option<Snapshot>,
    /// What the log brought and this shows was published when `last` was asked for.
    pub(crate) watermark: Option<Snapshot>,
    /// So was everything that the snapshot of the table shows.
    pub(crate) passed: bool,
    /// What the log did not bring was published and marked when the table was read.
    pub(crate) gap_filled: bool,
}

impl ShardCut {
    fn brings(&self, transaction: u64) -> bool {
        self.started.as_ref().is_some_and(|it| !it.shows(transaction))
    }
}

impl Cut {
    fn shard(&self, row: &RowRecord) -> Option<&ShardCut> {
        self.shards.get(usize::from(row.shard))
    }

    pub(crate) fn stream(&self, number: u16) -> Option<&StreamRange> {
        self.streams.get(usize::from(number))
    }

    /// A watermark says that the row is published although it has no mark.
    fn is_covered(&self, row: &RowRecord) -> bool {
        let covers = |(start, end): &(Snapshot, Snapshot)| {
            !start.shows(row.transaction) && end.shows(row.transaction)
        };
        self.published.iter().any(covers)
    }

    /// The relay was done with a row that has no mark: it is published, parked, or dropped.
    pub(crate) fn is_done_with(&self, row: &RowRecord) -> bool {
        let shown = |it: &Snapshot| it.shows(row.transaction);
        let is_done = |it: &ShardCut| {
            it.brings(row.transaction) && (it.passed || it.watermark.as_ref().is_some_and(shown))
        };
        self.is_covered(row) || self.shard(row).is_some_and(is_done)
    }

    /// The relay says that the row, which has no mark, has one. `before` is whether its message was
    /// stored before the table was read.
    pub(crate) fn is_mark_due(&self, row: &RowRecord, before: bool) -> bool {
        if self.is_covered(row) {
            return false;
        }
        if self.marking.polls {
            return before;
        }
        let Some(shard) = self.shard(row) else { return false };
        let shown = |it: &Snapshot| it.shows(row.transaction);
        if shard.brings(row.transaction) {
            return !self.marking.by_watermark && shard.swept.as_ref().is_some_and(shown);
        }
        before && shard.started.is_some() && shard.gap_filled
    }

    /// Whether the row of a message may have been deleted because it was published long ago.
    pub(crate) fn may_be_deleted(&self, stream: u16, sequence: u64) -> bool {
        self.stream(stream).is_some_and(|it| sequence < it.rows_deleted_below)
    }

    /// Whether the message of a row that names no sequence would have been read, had it ever been
    /// stored in the stream with this number.
    pub(crate) fn reaches(&self, stream: u16, row: &RowRecord) -> bool {
        self.stream(stream).is_some_and(|it| it.reaches(row))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn snapshot(text: &str) -> Option<Snapshot> {
        Some(text.parse().expect("a snapshot"))
    }

    fn row(transaction: u64) -> RowRecord {
        RowRecord { transaction, ..RowRecord::of_id(Uuid::nil(), 0) }
    }

    fn cut(shard: ShardCut) -> Cut {
        Cut { shards: vec![shard], ..Cut::default() }
    }

    fn shard() -> ShardCut {
        ShardCut {
            started: snapshot("10:10:"),
            swept: snapshot("20:20:"),
            watermark: snapshot("30:30:"),
            passed: false,
            gap_filled: true,
        }
    }

    /// For transactions 5 (before the slot), 15 (swept), 25 (below the watermark), 35 (beyond).
    fn each(judge: impl Fn(&RowRecord) -> bool) -> [bool; 4] {
        [5, 15, 25, 35].map(|transaction| judge(&row(transaction)))
    }

    #[test]
    fn the_relay_is_done_with_what_the_watermark_covers_or_the_slot_has_passed() {
        let by_watermark = cut(shard());
        assert_eq!(each(|row| by_watermark.is_done_with(row)), [false, true, true, false]);
        let passed = cut(ShardCut { passed: true, ..shard() });
        assert_eq!(each(|row| passed.is_done_with(row)), [false, true, true, true]);
        let unknown = cut(ShardCut { started: None, passed: true, ..shard() });
        assert_eq!(each(|row| unknown.is_done_with(row)), [false; 4]);
        let published = vec![("10:10:".parse().unwrap(), "36:36:".parse().unwrap())];
        let covered = Cut { published, ..Cut::default() };
        assert_eq!(each(|row| covered.is_done_with(row)), [false, true, true, true]);
        assert_eq!(each(|row| covered.is_mark_due(row, true)), [false; 4]);
    }

    #[test]
    fn marks_are_due_where_the_sweeper_has_been() {
        let due = |cut: Cut, before| each(|row| cut.is_mark_due(row, before));
        assert_eq!(due(cut(shard()), true), [true, true, false, false]);
        assert_eq!(due(cut(shard()), false), [false, true, false, false]);
        let filling = cut(ShardCut { gap_filled: false, ..shard() });
        assert_eq!(due(filling, true), [false, true, false, false]);
        let marking = Marking { by_watermark: true, ..Marking::default() };
        assert_eq!(due(Cut { marking, ..cut(shard()) }, true), [true, false, false, false]);
        let marking = Marking { polls: true, ..Marking::default() };
        let polls = Cut { marking, ..Cut::default() };
        assert_eq!(due(polls.clone(), true), [true; 4]);
        assert_eq!(due(polls, false), [false; 4]);
    }

    #[test]
    fn a_stream_reaches_what_happened_after_its_first_message() {
        let late = RowRecord { occurred_micros: 100_000_000, ..row(1) };
        let timeless = RowRecord { flags: RowRecord::TIMELESS, ..late };
        let cut = |is_from_the_beginning, forgets, first_at_micros| Cut {
            streams: vec![StreamRange {
                is_from_the_beginning,
                forgets,
                first_at_micros,
                ..StreamRange::default()
            }],
            ..Cut::default()
        };
        assert!(cut(true, false, i64::MAX / 2).reaches(0, &row(1)));
        assert!(!cut(true, true, 0).reaches(0, &late));
        assert!(cut(false, false, 39_000_000).reaches(0, &late));
        assert!(!cut(false, false, 41_000_000).reaches(0, &late));
        assert!(!cut(false, false, 0).reaches(0, &timeless));
        assert!(!cut(true, false, 0).reaches(1, &late), "no such stream");
    }
}
