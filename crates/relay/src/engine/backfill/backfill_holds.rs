//! What holds of the scanner after each turn.

use super::{Backfill, Gap, Marks, Scan};

impl Backfill {
    pub(in crate::engine) fn assert_holds(&self) {
        assert!(self.noted <= self.scanned, "more rows are written down than were marked");
        if self.gap == Gap::Filled {
            let is_paused = matches!(self.scan, Scan::Paused { .. });
            assert!(
                !self.is_busy() && !is_paused,
                "rows are published, and the gap counts as filled"
            );
        }
        if self.gap == Gap::Noting {
            assert!(!self.is_busy(), "the gap is noted as filled before its rows are marked");
        }
        match self.scan {
            Scan::Resting { .. } => {
                assert!(self.reader.is_none() && !self.gives_way, "a scan that rests has a reader");
            }
            Scan::Paused { .. } => assert!(self.reader.is_some(), "nobody reads for the scan"),
            Scan::Busy => {}
        }
        if self.awaits_slot {
            assert_eq!(self.gap, Gap::Open, "rows become visible, and the gap counts as filled");
        }
        let numbers = self.batches.iter().map(|it| it.number);
        assert!(numbers.is_sorted_by(|one, next| one < next), "batches out of order");
        assert!(self.batches.back().is_none_or(|it| it.number <= self.batches_begun));
    }

    /// Batches that are not marked.
    pub(in crate::engine) fn unmarked(&self) -> usize {
        let under_way = match self.marks {
            Marks::Idle => 0,
            Marks::Running { batches } | Marks::Postponed { batches, .. } => batches,
        };
        self.batches.len() + under_way
    }
}
