//! How much of the table a scan looks at.

use std::time::Duration;

use crate::engine::effect::ScanRange;

/// How often the whole table is looked at for rows that nobody should have left there, where an
/// index leads to those that may be expected.
const WHOLE_EVERY: Duration = Duration::from_hours(1);

/// Which scan looks at how much.
#[derive(Debug, Clone)]
pub(crate) struct ScanRanges {
    /// An index leads to what came back.
    is_indexed: bool,
    /// When the whole table is to be looked at, whoever waits for it: at once, or only then.
    whole_due: Duration,
    /// Of the scan that is under way.
    now: ScanRange,
}

impl ScanRanges {
    /// `looked` is how long ago the whole table was looked at, by whatever session.
    pub(crate) fn new(is_indexed: bool, whole_first: bool, looked: Option<Duration>) -> Self {
        let looked = looked.filter(|_| !whole_first);
        let whole_due = looked.map_or(Duration::ZERO, |ago| {
            // Zero is for the first look: nobody waits in vain for one that is due by the clock.
            WHOLE_EVERY.saturating_sub(ago).max(Duration::from_nanos(1))
        });
        Self { is_indexed, whole_due, now: ScanRange::Whole }
    }

    /// While the log waits for it, only a gap is worth a look at the whole table.
    pub(super) fn next(&mut self, now: Duration, log_waits: bool) -> ScanRange {
        let is_due = self.whole_due.is_zero() || !log_waits && self.whole_due <= now;
        self.now = match self.is_indexed && !is_due {
            true => ScanRange::CameBack,
            false => ScanRange::Whole,
        };
        self.now
    }

    /// Whether that is to be written down: the next session goes by it where an index leads.
    pub(super) fn done(&mut self, now: Duration) -> bool {
        if self.now == ScanRange::Whole {
            self.whole_due = now + WHOLE_EVERY;
        }
        self.now == ScanRange::Whole && self.is_indexed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn the_whole_table_is_looked_at_for_a_gap_and_where_no_index_leads() {
        let mut ranges = ScanRanges::new(true, true, Some(Duration::ZERO));
        assert_eq!(ranges.next(NOW, true), ScanRange::Whole, "a gap, whoever waits");
        assert_eq!(ranges.next(NOW, false), ScanRange::Whole, "the first look was not finished");
        assert!(ranges.done(NOW));
        assert_eq!(ranges.next(NOW, false), ScanRange::CameBack);
        assert!(!ranges.done(NOW));
        assert_eq!(ranges.next(NOW + WHOLE_EVERY, true), ScanRange::CameBack, "the log waits");
        assert_eq!(ranges.next(NOW + WHOLE_EVERY, false), ScanRange::Whole, "due");
        let mut ranges = ScanRanges::new(true, false, Some(WHOLE_EVERY / 2));
        assert_eq!(ranges.next(NOW, false), ScanRange::CameBack, "no gap");
        let mut ranges = ScanRanges::new(true, false, Some(WHOLE_EVERY));
        assert_eq!(ranges.next(NOW, false), ScanRange::Whole, "due");
        assert_eq!(ranges.next(NOW, true), ScanRange::CameBack, "the log waits");
        let mut ranges = ScanRanges::new(false, false, None);
        assert_eq!(ranges.next(NOW, false), ScanRange::Whole, "nothing leads to what came back");
        assert!(!ranges.done(NOW), "it is the same each time");
    }
}
