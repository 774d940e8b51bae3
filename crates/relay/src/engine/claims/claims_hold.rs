//! What holds of claims after each turn.

use super::{Claims, Looking};
use crate::engine::publish::Publishing;

impl Claims {
    pub(in crate::engine) fn assert_holds(&self, publishing: &Publishing) {
        let in_hand = self.claims.len() + self.giving_back;
        assert!(in_hand <= self.settings.workers, "{in_hand} claims, more than there are workers");
        // The rows of a claim that is being checked are not in the window yet.
        let is_checking = matches!(self.looking, Looking::Checking { .. });
        let published = in_hand - usize::from(is_checking);
        assert_eq!(published, publishing.scans_unmarked(), "claims whose rows are unmarked");
        for claim in &self.claims {
            assert!(claim.published.iter().all(|it| claim.ids.contains(&it.id)), "others' marks");
            assert!(claim.renewing.is_none_or(|at| at >= claim.heard), "renewed out of order");
        }
        if publishing.unresolved() > 0 {
            assert!(!self.claims.is_empty(), "events are to be published that nobody has claimed");
        }
    }
}
