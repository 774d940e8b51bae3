//! What must hold after every step, and at the end.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use pgoutput::Lsn;

use super::table::Row;
use super::{Faults, Foreign, Relay, World};
use crate::engine::Resolved;

impl World {
    /// Whether a route drops the event.
    pub(super) fn is_filtered(&self, id: u128) -> bool {
        self.faults.poison && is_dropped(id)
    }

    pub(super) fn check_resolved(&mut self, resolved: Resolved) {
        let id = resolved.id.as_u128();
        match resolved.seq {
            // The session may not know yet that the stream has gone back.
            Some(_) if self.faults.goes_back => {}
            Some(seq) => {
                let at = usize::try_from(seq).expect("small") - 1;
                assert_eq!(self.stream[at].id, Some(id), "found at a wrong place");
            }
            None => {
                assert!(self.is_filtered(id), "{id} dropped");
                self.dropped.insert(id);
            }
        }
    }

    pub(super) fn check_confirmed(&mut self) {
        let confirmed = self.publishing().confirmed();
        while let Some(transaction) = self.log.get(self.checked)
            && transaction.end_lsn <= confirmed
        {
            for id in &transaction.events {
                let done = self.stored_ids.contains(id)
                    || self.parked.contains(id)
                    || self.dropped.contains(id);
                // What a lost slot left behind is not the log's any more.
                let is_left = self.old_rows.contains(id) || self.emitted.lost.contains(id);
                assert!(done || is_left || self.faults.goes_back, "{id} confirmed unresolved");
            }
            self.checked += 1;
        }
    }

    fn is_quiet(&self) -> bool {
        self.answers.is_empty() && self.connections.iter().all(VecDeque::is_empty)
    }

    pub(super) fn has_nothing_under_way(&self) -> bool {
        let Relay { jobs, outcomes, at, .. } = &self.relay;
        jobs.is_empty() && outcomes.is_empty() && at.0 == self.log.len() && self.is_quiet()
    }

    pub(super) fn is_done(&self) -> bool {
        let is_marked = |row: &Row| row.is_marked || self.faults.by_watermark;
        self.is_quiet()
            && !self.relay.awaits_slot
            && !self.has_open_replay()
            && self.relay.at.0 == self.log.len()
            && self.publishing().is_idle()
            && self.table.rows.values().all(is_marked)
            && !self.is_gap_open
    }

    pub(super) fn check_end(&self) {
        let all = self.stream.iter().filter_map(|it| it.id);
        let mut stored: Vec<u128> = all.filter(|id| !self.is_copy(*id)).collect();
        let all_stored = stored.len();
        let mut strays: Vec<u128> = stored.extract_if(.., |id| self.is_stray(*id)).collect();
        strays.sort_unstable();
        strays.dedup();
        assert_eq!(stored.len() + strays.len(), all_stored, "a stray came twice");
        let both = stored.iter().find(|id| self.dead.contains_key(*id));
        assert_eq!(both, None, "stored, and a dead letter");
        let logged: Vec<u128> = self.log.iter().flat_map(|it| it.events.clone()).collect();
        let is_dead = |id: u128| self.poisoned.contains(&id) && !self.requeued.contains(&id);
        let fine = |id: &u128| !is_dead(*id) && !self.is_stray(*id) && !self.is_filtered(*id);
        let mut expected: Vec<u128> = self.old_rows.iter().copied().filter(fine).collect();
        // Those came with the log, and are expected at their place there.
        let logged_first: HashSet<u128> = logged.iter().copied().collect();
        expected.retain(|id| !logged_first.contains(id));
        expected.extend(logged.iter().copied().filter(fine));
        let (mut once, mut all) = (stored.clone(), expected.clone());
        once.sort_unstable();
        let all_stored = once.len();
        once.dedup_by(|one, other| one == other && self.may_repeat.contains(one));
        let repeats = all_stored - once.len();
        let is_said = self.says_uncounted || self.may_rescan;
        assert!(repeats == 0 || is_said, "stored twice, and nobody says so");
        all.sort_unstable();
        assert_eq!(once, all, "not exactly once");
        let filtered = |id: &&u128| self.is_filtered(**id);
        let unmarked = |id: &&u128| !self.dropped.contains(*id) && !self.emitted.lost.contains(*id);
        let all_rows = || self.old_rows.iter().chain(&logged);
        assert_eq!(all_rows().filter(filtered).find(unmarked), None, "dropped and never marked");
        let last = self.log.last().map_or(Lsn::ZERO, |it| it.end_lsn);
        assert!(self.publishing().confirmed() >= last || self.slot_confirmed >= last);
        let is_late = |id: &u128| self.late_rows.contains(id) || self.overtaken.contains(id);
        let in_time =
            |ids: Vec<u128>| -> Vec<u128> { ids.into_iter().filter(|id| !is_late(id)).collect() };
        let (stored, expected) = (in_time(stored), in_time(expected));
        let Faults { foreign, blocking, by_watermark, fickle, .. } = self.faults;
        assert!(!(by_watermark && self.was_keyed) || fickle, "left the fence without ids");
        if foreign == Foreign::Never {
            assert_eq!(self.publishing().counts().foreign, 0, "its own messages are not its own");
        }
        if !self.faults.strangers {
            assert_eq!(self.publishing().counts().strangers, 0, "the broker is a stranger");
        }
        // What is published from the table comes in the order of the rows.
        if !self.was_keyed && repeats == 0 && !blocking && !self.faults.waits {
            assert_eq!(stored, expected, "not in commit order");
            self.check_positions();
        }
        if repeats == 0 {
            assert_eq!(
                self.by_key(&stored),
                self.by_key(&expected),
                "an aggregate is out of order"
            );
        }
    }

    /// Whoever reads a message takes the log's events up to its position for stored or parked. What a
    /// lost slot left behind is the scanner's: no position is about it.
    fn check_positions(&self) {
        let mut places = HashMap::new();
        for it in &self.log {
            let numbered = (0..).zip(&it.events).map(|(n, id)| (*id, (it.commit_lsn.0, n)));
            places.extend(numbered.filter(|(id, _)| !self.is_scanned(*id)));
        }
        let mut later: Option<(u64, u32)> = None;
        for message in self.stream.iter().rev() {
            let said = message.position.map(|it| (it.lsn, it.ordinal));
            let says_more = said.is_some_and(|said| later.is_some_and(|later| said >= later));
            assert!(!says_more, "a position says more than the stream has");
            let place = message.id.and_then(|id| places.get(&id)).copied();
            later = later.into_iter().chain(place).min();
        }
    }

    /// Whether the scanner may have brought the event, whatever the log has of it.
    fn is_scanned(&self, id: u128) -> bool {
        let is_late = self.late_rows.contains(&id) || self.old_rows.contains(&id);
        is_late || self.requeued.contains(&id) || self.is_stray(id)
    }

    /// Given up, while what a predecessor sent of it was still on its way, or before the relay ended
    /// without having parked it: it may arrive, but once.
    fn is_stray(&self, id: u128) -> bool {
        self.picky.contains(&id) && self.given_up.contains(&id) || self.emitted.lost.contains(&id)
    }

    pub(super) fn by_key(&self, ids: &[u128]) -> BTreeMap<u8, Vec<u128>> {
        let mut keys: BTreeMap<u8, Vec<u128>> = BTreeMap::new();
        for id in ids {
            keys.entry(self.keys[id]).or_default().push(*id);
        }
        keys
    }
}

/// Where routes drop events, these are dropped.
pub(super) fn is_dropped(id: u128) -> bool {
    id.is_multiple_of(5)
}
