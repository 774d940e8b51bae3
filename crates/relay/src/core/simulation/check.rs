//! What must hold after every step, and at the end.

use std::collections::{BTreeMap, HashSet};

use pgoutput::Lsn;

use super::{Faults, Foreign, World};
use crate::core::Mode;

impl World {
    pub(super) fn check_confirmed(&self) {
        let confirmed = self.relay.state.confirmed();
        let stored: HashSet<u128> = self.stream.iter().filter_map(|it| it.id).collect();
        for transaction in self.log.iter().filter(|it| it.end_lsn <= confirmed) {
            for id in &transaction.events {
                assert!(
                    stored.contains(id) || self.parked.contains(id),
                    "{id} confirmed unresolved"
                );
            }
        }
    }

    pub(super) fn check_end(&self) {
        let stored: Vec<u128> = self.stream.iter().filter_map(|it| it.id).collect();
        let logged: Vec<u128> = self.log.iter().flat_map(|it| it.events.clone()).collect();
        let fine = |id: &u128| !self.poisoned.contains(id);
        let mut expected: Vec<u128> = self.old_rows.iter().copied().filter(fine).collect();
        expected.extend(logged.iter().copied().filter(fine));
        let (mut once, mut all) = (stored.clone(), expected.clone());
        once.sort_unstable();
        all.sort_unstable();
        assert_eq!(once, all, "not exactly once");
        let last = self.log.last().map_or(Lsn::ZERO, |it| it.end_lsn);
        assert!(self.relay.state.confirmed() >= last || self.slot_confirmed >= last);
        let in_time = |ids: Vec<u128>| -> Vec<u128> {
            ids.into_iter().filter(|id| !self.late_rows.contains(id)).collect()
        };
        let (stored, expected) = (in_time(stored), in_time(expected));
        let Faults { mode, foreign, batches, .. } = self.faults;
        let reordered = mode == Mode::Fenced && foreign == Foreign::Always && !batches;
        if self.faults.mode == Mode::Fenced && !reordered {
            assert_eq!(stored, expected, "not in commit order");
        }
        if !reordered {
            assert_eq!(
                self.by_key(&stored),
                self.by_key(&expected),
                "an aggregate is out of order"
            );
        }
    }

    fn by_key(&self, ids: &[u128]) -> BTreeMap<u8, Vec<u128>> {
        let mut keys: BTreeMap<u8, Vec<u128>> = BTreeMap::new();
        for id in ids {
            keys.entry(self.keys[id]).or_default().push(*id);
        }
        keys
    }
}
