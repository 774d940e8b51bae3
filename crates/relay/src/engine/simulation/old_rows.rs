//! The scanner: rows that the log does not bring.

use std::collections::VecDeque;

use rand::RngExt;

use super::World;
use crate::engine::{Blocked, Input, Place, Tail};

/// Batches that may be unmarked at a time.
const UNMARKED_MAX: usize = 3;

pub(super) enum Scanning {
    Reading,
    /// A batch, with the tail as it was when the batch was read.
    Read(Vec<u128>, Option<Tail>),
    Done,
}

impl World {
    /// A row appears that only the scanner can bring, while the log is followed.
    ///
    /// Not while a predecessor's messages may still arrive: its predictions hold only as long as
    /// the same events are sent again in the same order.
    pub(super) fn unmark_by_hand(&mut self) {
        let done = matches!(self.relay.scan, Scanning::Done);
        if done && self.old_connections_are_empty() && self.rng.random_bool(0.5) {
            let row = self.mint();
            self.old_rows.push(row);
            self.late_rows.insert(row);
            self.relay.scan = Scanning::Reading;
        }
    }

    pub(super) fn old_connections_are_empty(&self) -> bool {
        self.connections.iter().rev().skip(1).all(VecDeque::is_empty)
    }

    pub(super) fn has_late_rows(&self) -> bool {
        {
            let late = self.late_rows.iter().chain(&self.requeued);
            late.clone().any(|row| !self.marked.contains(row) && !self.dead.contains_key(row))
        }
    }

    /// Goes on with the open cursor, or opens one: then also says which aggregates are blocked.
    fn open_cursor(&mut self) -> (VecDeque<u128>, Option<Vec<Blocked>>) {
        if let Some(cursor) = self.relay.cursor.take() {
            return (cursor, None);
        }
        if self.faults.blocking {
            self.release();
        }
        let pending = self.old_rows.iter().copied();
        let is_pending = |id: &u128| !self.marked.contains(id) && !self.dead.contains_key(id);
        let cursor = pending.filter(is_pending).collect();
        (cursor, self.faults.blocking.then(|| self.blocked()))
    }

    pub(super) fn scan(&mut self) {
        self.requests(); // tells what is settled
        let resolved = self.relay.state.scans_resolved();
        if resolved > 0 && self.rng.random_bool(0.5) {
            let settled = &self.relay.settled;
            let rows = self.relay.scanned.drain(..resolved).flatten();
            self.marked.extend(rows.filter(|row| settled.contains(row)));
            self.apply(Input::ScanMarked { batches: resolved });
        }
        if self.relay.scanned.len() < UNMARKED_MAX {
            self.read_on();
        }
    }

    /// As `Session::rescan` asks. The first scan of a session does not wait.
    fn may_begin(&mut self) -> bool {
        if self.relay.scan_is_initial || self.relay.cursor.is_some() {
            return true;
        }
        if !self.relay.state.may_scan(self.slot_confirmed) {
            return false;
        }
        self.relay.holding = self.relay.state.is_blocking();
        !self.relay.holding || self.relay.state.is_idle()
    }

    fn read_on(&mut self) {
        match std::mem::replace(&mut self.relay.scan, Scanning::Done) {
            Scanning::Reading if !self.may_begin() => self.relay.scan = Scanning::Reading,
            Scanning::Reading => {
                if self.relay.cursor.is_none() && !self.relay.scanned.is_empty() {
                    self.relay.scan = Scanning::Reading;
                    return; // the next pass would find them again
                }
                let (mut cursor, blocked) = self.open_cursor();
                let rows: Vec<u128> = cursor.drain(..cursor.len().min(2)).collect();
                if let Some(blocked) = blocked {
                    self.apply(Input::Blocked(blocked));
                }
                if rows.is_empty() {
                    self.is_gap_open &= !self.relay.scanned.is_empty();
                    (self.relay.scan_is_initial, self.relay.holding) = (false, false);
                    return;
                }
                self.relay.cursor = Some(cursor);
                let seen = (!self.relay.tail_read).then(|| self.tail_since(1));
                self.relay.tail_read = true;
                self.relay.scan = Scanning::Read(rows, seen);
            }
            Scanning::Read(rows, seen) => {
                if let Some(seen) = seen {
                    self.apply(Input::Seen(seen));
                }
                self.is_gap_open = true;
                self.place = self.place.map(|it| Place { seq: None, ..it });
                let outgoing = rows.iter().map(|id| self.scanned(*id)).collect();
                self.relay.batches += 1;
                self.apply(Input::Scanned { batch: self.relay.batches, rows: outgoing });
                self.relay.scanned.push_back(rows);
                self.relay.scan = Scanning::Reading;
            }
            Scanning::Done => {}
        }
    }
}
