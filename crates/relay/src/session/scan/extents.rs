//! How much of the table a scan looks at.

use std::time::{Duration, Instant};

use crate::database::store::Extent;
use crate::session::WHOLE_EVERY;

/// Which scan looks at how much.
pub(in crate::session) struct Extents {
    /// An index leads to what came back.
    is_indexed: bool,
    /// When the whole table was looked at, or need not be; `None` if it has to be now.
    whole_at: Option<Instant>,
    /// Of the scan that is under way.
    now: Extent,
}

impl Extents {
    /// `looked` is how long ago the whole table was looked at, by whatever session.
    pub(in crate::session) fn new(
        is_indexed: bool,
        whole_first: bool,
        looked: Option<Duration>,
    ) -> Self {
        let looked = looked.filter(|_| !whole_first);
        let whole_at = looked.and_then(|ago| Instant::now().checked_sub(ago));
        Self { is_indexed, whole_at, now: Extent::Whole }
    }

    /// While the log waits for it, only a gap is worth a look at the whole table.
    pub(super) fn next(&mut self, holding: bool) -> Extent {
        let is_due = self.whole_at.is_none_or(|at| !holding && at.elapsed() >= WHOLE_EVERY);
        self.now = if self.is_indexed && !is_due { Extent::CameBack } else { Extent::Whole };
        self.now
    }

    /// Whether that is to be written down: the next session goes by it where an index leads.
    pub(super) fn done(&mut self) -> bool {
        if self.now == Extent::Whole {
            self.whole_at = Some(Instant::now());
        }
        self.now == Extent::Whole && self.is_indexed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_is_looked_at_for_a_gap_and_where_no_index_leads() {
        let mut extents = Extents::new(true, true, Some(Duration::ZERO));
        assert_eq!(extents.next(true), Extent::Whole, "a gap, whoever waits");
        assert_eq!(extents.next(false), Extent::Whole, "the first look was not finished");
        assert!(extents.done());
        assert_eq!(extents.next(false), Extent::CameBack);
        assert!(!extents.done());
        assert_eq!(extents.next(true), Extent::CameBack);
        let mut extents = Extents::new(true, false, Some(WHOLE_EVERY / 2));
        assert_eq!(extents.next(false), Extent::CameBack, "no gap");
        let mut extents = Extents::new(true, false, Some(WHOLE_EVERY));
        assert_eq!(extents.next(false), Extent::Whole, "due");
        let mut extents = Extents::new(false, false, None);
        assert!(!extents.done(), "it is the same each time");
        assert_eq!(extents.next(false), Extent::Whole, "nothing leads to what came back");
    }
}
