//! How much of the table a scan looks at.

use std::time::Instant;

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
    pub(in crate::session) fn new(is_indexed: bool, whole_first: bool) -> Self {
        let whole_at = (!whole_first).then(Instant::now);
        Self { is_indexed, whole_at, now: Extent::Whole }
    }

    /// While the log waits for it, only a gap is worth a look at the whole table.
    pub(super) fn next(&mut self, holding: bool) -> Extent {
        let is_due = self.whole_at.is_none_or(|at| !holding && at.elapsed() >= WHOLE_EVERY);
        self.now = if self.is_indexed && !is_due { Extent::CameBack } else { Extent::Whole };
        self.now
    }

    pub(super) fn done(&mut self) {
        if self.now == Extent::Whole {
            self.whole_at = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_is_looked_at_for_a_gap_and_where_no_index_leads() {
        let mut extents = Extents::new(true, true);
        assert_eq!(extents.next(true), Extent::Whole, "a gap, whoever waits");
        assert_eq!(extents.next(false), Extent::Whole, "the first look was not finished");
        extents.done();
        assert_eq!(extents.next(false), Extent::CameBack);
        extents.done();
        assert_eq!(extents.next(true), Extent::CameBack);
        assert_eq!(Extents::new(true, false).next(false), Extent::CameBack, "no gap");
        let mut extents = Extents::new(false, false);
        extents.done();
        assert_eq!(extents.next(false), Extent::Whole, "nothing leads to what came back");
    }
}
