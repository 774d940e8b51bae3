//! The slot is lost: what its log had yet to bring is the scanner's.

use pgoutput::Lsn;

use rand::seq::IndexedRandom;

use super::World;
use crate::engine::Place;

impl World {
    /// What is resolved is confirmed, and how far that is written down.
    pub(super) fn confirm(&mut self) {
        let state = &self.relay.state;
        if state.is_in_doubt() || state.confirmed() <= self.slot_confirmed {
            return;
        }
        // Without a place nothing is written down, and so nothing confirmed.
        let Some(place) = state.place() else { return };
        self.slot_confirmed = state.confirmed();
        let clear = !self.is_gap_open && self.relay.scanned.is_empty();
        self.place = Some(Place { seq: place.seq.filter(|_| clear), ..place });
    }

    /// The relay is asked to stop, and does as `Session::close`.
    pub(super) fn stop(&mut self) {
        if !self.relay.state.is_in_doubt() {
            let commit_lsn = self.slot_confirmed.max(self.relay.state.confirmed());
            self.slot_confirmed = commit_lsn;
            self.place = Some(Place { commit_lsn, ordinal: 0, seq: None });
        }
    }

    /// Old messages go, as by an operator's hand or by age.
    pub(super) fn purge(&mut self) {
        let kept = *[0, 0, 1, 5].choose(&mut self.rng).expect("not empty");
        self.purged = self.purged.max(self.stream.len().saturating_sub(kept));
        self.forgotten = self.forgotten.max(self.purged);
    }

    /// The relay ends, and its successor makes the slot anew, where the log ends now.
    ///
    /// As `finish_epoch` does, it marks what the stream has before it lets the scanner look.
    pub(super) fn lose_slot(&mut self) {
        self.marked.extend(self.stream.iter().filter_map(|it| it.id));
        let lost = self.log.iter().filter(|it| it.end_lsn > self.slot_confirmed);
        let left = |id: &u128| !self.dead.contains_key(id) && !self.old_rows.contains(id);
        let rows: Vec<u128> = lost.flat_map(|it| it.events.clone()).filter(left).collect();
        self.old_rows.extend(rows);
        self.slot_confirmed = self.log.last().map_or(Lsn::ZERO, |it| it.end_lsn);
        self.is_gap_open = true;
        self.crash();
    }
}
