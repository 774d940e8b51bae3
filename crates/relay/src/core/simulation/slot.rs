//! The slot is lost: what its log had yet to bring is the scanner's.

use pgoutput::Lsn;

use super::World;

impl World {
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
