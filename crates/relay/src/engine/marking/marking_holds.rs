//! What holds of the marks after each turn.

use pgoutput::Lsn;

use super::{Marking, SWEEPER_STORED_MAX, Step};

impl Marking {
    /// `confirmed` is how far everything is resolved.
    pub(in crate::engine) fn assert_holds(&self, confirmed: Lsn) {
        self.writers.assert_holds();
        let queued = self.writers.marks.queued();
        assert!(self.observing <= queued, "a watermark covers events that were never published");
        assert!(self.covered <= Some(self.observing), "a watermark is stored before it is taken");
        assert!(self.awaited <= Some(queued), "an event is awaited that was never published");
        assert!(self.sweeper.remembered() <= SWEEPER_STORED_MAX, "too many are remembered");
        match &self.step {
            Step::Resting | Step::Taking | Step::Sweeping(_) => {}
            Step::Waiting(watermark) => {
                assert!(confirmed < watermark.lsn, "a watermark waits for what is resolved");
            }
            // What everything before is resolved of stays so.
            Step::Flushing { watermark, marks } => {
                assert!(watermark.lsn <= confirmed, "a watermark is ahead of what is resolved");
                assert!(*marks <= queued, "a watermark waits for marks that nobody has queued");
            }
        }
    }
}
