//! What holds in poll mode after each turn.

use super::{ClaimEngine, Looking};
use crate::engine::assertions::ARE_CHECKED;

impl ClaimEngine {
    pub(super) fn assert_holds(&self) {
        if !ARE_CHECKED {
            return;
        }
        self.publishing.assert_holds();
        let in_hand = self.claims.len() + self.giving_back;
        assert!(in_hand <= self.settings.workers, "{in_hand} claims, more than there are workers");
        // The rows of a claim that is being checked are not in the window yet.
        let is_checking = matches!(self.looking, Looking::Checking { .. });
        let published = in_hand - usize::from(is_checking);
        assert_eq!(published, self.publishing.scans_unmarked(), "claims whose rows are unmarked");
        for claim in &self.claims {
            assert!(claim.published.iter().all(|it| claim.ids.contains(&it.id)), "others' marks");
            assert!(claim.renewing.is_none_or(|at| at >= claim.heard), "renewed out of order");
        }
        if self.publishing.unresolved() > 0 {
            assert!(!self.claims.is_empty(), "events are to be published that nobody has claimed");
        }
    }
}
