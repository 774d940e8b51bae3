//! Which events the log has brought, and how far the stream has them.

use pgoutput::Lsn;

use crate::engine::messages::Ignored;
use crate::engine::window::LastPosition;

/// Which events the log has brought.
#[derive(Debug, Default, Clone)]
pub(super) struct Log {
    /// Commit LSN, commit time and next ordinal of the transaction being received.
    transaction: (Lsn, i64, u32),
    last_position: Option<LastPosition>,
    /// The highest one that the stream was seen to have.
    stored_position: Option<LastPosition>,
    /// Events that the log has brought.
    logged: u64,
    /// Those that it brought again, and that were not looked at any more.
    skipped: u64,
    /// Why it was said that messages are ignored.
    told: Vec<Ignored>,
}

impl Log {
    pub(super) fn begin(&mut self, commit_lsn: Lsn, commit_time_micros: i64) {
        self.transaction = (commit_lsn, commit_time_micros, 0);
    }

    /// Gives the transaction's next event its place, and says when it was committed.
    pub(super) fn next_place(&mut self) -> (Lsn, i64, u32) {
        let next = self.transaction;
        self.transaction.2 += 1;
        next
    }

    /// The event was resolved in an earlier session.
    pub(super) fn skip(&mut self) {
        self.skipped += 1;
    }

    /// The log has brought an event that is to be published.
    pub(super) fn received(&mut self, position: LastPosition) {
        // What the log repeats is behind what the stream has.
        self.last_position = LastPosition::later(Some(position), self.last_position);
        self.logged += 1;
    }

    /// A message is passed over. In a transaction it takes the place of an event all the same: those
    /// behind it keep theirs when the setting changes. Says whether it is the first of its kind.
    pub(super) fn ignore(&mut self, why: Ignored) -> bool {
        self.transaction.2 += u32::from(why == Ignored::Off);
        let is_first = !self.told.contains(&why);
        self.told.extend(is_first.then_some(why));
        is_first
    }

    /// The stream has this. Of a log that ended at `log_end`, or elsewhere (a restore, a failover),
    /// there may be later ones.
    pub(super) fn stored(&mut self, position: LastPosition, log_end: Lsn) {
        self.last_position = LastPosition::later(self.last_position, Some(position));
        let stored_here = Some(position).filter(|it| it.commit_lsn < log_end);
        self.stored_position = LastPosition::later(self.stored_position, stored_here);
    }

    /// Whether the stream has an event of the log that is not before `place`.
    pub(super) fn has_stored_beyond(&self, place: (Lsn, u32)) -> bool {
        self.stored_position.is_some_and(|it| it.place() >= place)
    }

    pub(super) fn transaction(&self) -> (Lsn, i64, u32) {
        self.transaction
    }

    pub(super) fn last_position(&self) -> Option<LastPosition> {
        self.last_position
    }

    pub(super) fn stored_position(&self) -> Option<LastPosition> {
        self.stored_position
    }

    pub(super) fn logged(&self) -> u64 {
        self.logged
    }

    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }
}
