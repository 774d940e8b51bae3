//! The stream comes back without its end, as after a power cut, or from an older copy of the store.

use std::collections::VecDeque;

use jiff::Timestamp;
use pgoutput::Lsn;
use rand::RngExt;
use uuid::Uuid;

use super::table::Row;
use super::{Foreign, Message, Transaction, World};
use crate::engine::{Compared, LastEvent, LostEnd, Resolved};

impl World {
    /// What the broker knows besides its messages it reads from them.
    pub(super) fn go_back(&mut self) {
        let lost = match self.rng.random_bool(0.7) {
            true => self.rng.random_range(0..8),
            false => self.rng.random_range(0..=self.stream.len()),
        };
        let (longest, end) = (self.stream.len(), self.stream.len().saturating_sub(lost));
        self.went_missing.extend(self.stream.drain(end..).filter_map(|it| it.id));
        self.removed.retain(|at| *at < end);
        self.forgotten_ids.retain(|at| *at < end);
        if self.faults.foreign != Foreign::Never && self.rng.random_bool(0.3) {
            // Nothing tells of a loss but an event in whose place there is another message.
            let grown = self.rng.random_range(0..longest - end + 4);
            self.stream.extend(std::iter::repeat_n(Message::of_others(None), grown));
            self.has_grown |= grown > 0;
        }
        self.forgotten = self.forgotten.min(end);
        self.stored_ids = self.stream.iter().filter_map(|it| it.id).collect();
        self.connections.iter_mut().for_each(VecDeque::clear);
        self.taking.clear();
    }

    /// Before rows are marked.
    pub(super) fn note_stored(&mut self, marks: &[Resolved]) {
        self.note_event(Resolved::last_of(marks));
    }

    pub(super) fn note_event(&mut self, event: Option<LastEvent>) {
        self.stream_end = self.stream_end.max(event.map_or(0, |it| it.seq));
        self.event = LastEvent::later(event, self.event);
    }

    /// Whether the stream has another message there.
    pub(super) fn is_replaced(&self, event: Option<LastEvent>) -> bool {
        let Some(event) = event else { return false };
        let at = usize::try_from(event.seq).expect("small") - 1;
        let found = self.stream.get(at).filter(|_| !self.removed.contains(&at));
        event.is_replaced(found.map(|it| Uuid::from_u128(it.id.unwrap_or_default())))
    }

    /// As `Store::take_back_lost`.
    pub(super) fn take_back_lost(&mut self, resolved_before: Lsn) {
        self.note_overtaken();
        let (created, last_seq) = (Timestamp::UNIX_EPOCH, self.stream.len() as u64);
        let acknowledged = self.stream_end;
        let (last_at, has_grown) = (created, false);
        let found = LostEnd { created, acknowledged, last_seq, last_at, has_grown };
        let compared = Compared::of(found, true, false, self.event);
        let grown = self.is_replaced(compared.event).then(|| found.grown());
        let Some(LostEnd { last_seq: end, .. }) = compared.lost.or(grown) else {
            self.stream_end = last_seq;
            return;
        };
        (self.stream_end, self.is_gap_open, self.lost_end) = (end, true, true);
        self.written.place = None;
        self.written.end = self.written.end.min(resolved_before);
        // Their marks were lost as well: the sweeper leaves them to the scanner.
        let confirmed = self.log.iter().filter(|it| it.commit_lsn < resolved_before);
        let unmarked = |id: &u128| self.table.rows.get(id).is_some_and(|it| !it.is_marked);
        let missing = confirmed.flat_map(|it| &it.events).copied().filter(unmarked);
        let missing: Vec<u128> = missing.filter(|id| !self.stored_ids.contains(id)).collect();
        missing.into_iter().for_each(|id| self.expect_scanned(id));
        self.table.doubt_trusted();
        let lacks = |id: u128, seq: u64| {
            seq > end || self.is_replaced(Some(LastEvent { seq, id: Uuid::from_u128(id) }))
        };
        let (lost, there): (Vec<_>, Vec<_>) =
            self.table.named().partition(|(seq, id)| lacks(*id, *seq));
        let agrees = there.into_iter().max();
        self.event = agrees.map(|(seq, id)| LastEvent { seq, id: Uuid::from_u128(id) });
        let taken: Vec<u128> = lost.into_iter().map(|it| it.1).collect();
        self.table.take_back(&taken);
        // In keyed mode two rows may name one sequence: before the loss was noticed, and since.
        let unanswered = acknowledged.saturating_sub(end).saturating_sub(taken.len() as u64);
        // Nobody knows how many there were in whose places others are.
        let unanswered = if self.has_grown { u64::MAX } else { unanswered };
        self.lose_confirmed(resolved_before, unanswered);
        for id in taken {
            let logged = self.log.iter().find(|it| it.events.contains(&id));
            let comes_again = logged.is_some_and(|it| it.commit_lsn >= resolved_before);
            if !comes_again || !self.table.is_logged(id) {
                self.table.leave_to_scanner(id);
                self.expect_scanned(id);
            }
        }
    }

    /// No row tells of an event that never had one. If the log does not bring it again it is lost: it
    /// is among the messages that are told of as `unanswered`.
    fn lose_confirmed(&mut self, resolved_before: Lsn, unanswered: u64) {
        let confirmed = self.log.iter().filter(|it| it.commit_lsn < resolved_before);
        let is_gone = |id: &u128| {
            let has_end = self.stored_ids.contains(id) || self.parked.contains(id);
            let has_end = has_end || self.is_filtered(*id) || self.emitted.lost.contains(id);
            self.is_emitted(*id) && !has_end
        };
        let gone: Vec<u128> =
            confirmed.flat_map(|it| &it.events).copied().filter(is_gone).collect();
        assert!(gone.len() as u64 <= unanswered, "{gone:?} are lost, and {unanswered} told of");
        self.emitted.lost.extend(gone);
    }

    /// An event that the stream has lost may come behind others of its aggregate: where parking blocks
    /// the scan goes first, and brings what was requeued; in keyed mode what was in flight is stored.
    fn note_overtaken(&mut self) {
        let stored = self.stored_ids.iter().filter(|_| self.was_keyed);
        let first: Vec<_> = self.dead.keys().chain(&self.requeued).chain(stored).copied().collect();
        for id in self.went_missing.iter().filter(|id| !self.stored_ids.contains(id)) {
            if first.iter().any(|it| self.keys[it] == self.keys[id] && it > id) {
                self.overtaken.insert(*id);
            }
        }
    }

    /// What nobody brings again is known to be in the stream: `is_resolved` says of which transactions
    /// that is written down. A session that is not aware of a loss counts sequences that are gone.
    pub(super) fn check_end_is_noted(&self, is_resolved: impl Fn(&Transaction) -> bool) {
        // The first message of each, not of what is parked: a predecessor's may have come late.
        let noted = usize::try_from(self.stream_end).expect("small").min(self.stream.len());
        let is_first = |id: &u128| !self.stream[..noted].iter().any(|it| it.id == Some(*id));
        // The scanner brings the row again until it is marked, and marks note the end before.
        let is_scanned = |row: &Row| row.is_left_to_scanner() && !row.is_marked;
        let is_scanned = |id: &u128| self.table.rows.get(id).is_some_and(is_scanned);
        let is_logged = |id: &u128| {
            self.log.iter().rfind(|it| it.events.contains(id)).is_some_and(&is_resolved)
        };
        // A lost slot took it along: that it arrived late all the same is promised to nobody.
        let is_gone = |id: &u128| self.given_up.contains(id) || self.emitted.lost.contains(id);
        let beyond = self.stream[noted..].iter().filter_map(|it| it.id);
        let beyond =
            beyond.filter(|id| is_first(id) && !is_gone(id) && !is_scanned(id)).find(is_logged);
        assert_eq!(beyond, None, "resolved, and {} noted", self.stream_end);
    }

    /// The scanner brings the event, whatever the log has brought of it.
    pub(super) fn expect_scanned(&mut self, id: u128) {
        self.late_rows.insert(id);
        if !self.old_rows.contains(&id) {
            self.old_rows.push(id);
        }
    }
}
