//! A slot that PostgreSQL makes while older transactions are open: until it is there, what is visible
//! is published from the table.

use std::collections::{HashSet, VecDeque};

use pgoutput::Lsn;
use rand::RngExt;

use super::sessions::{Gap, engine, publishing};
use super::{Faults, Relay, Transaction, World};
use crate::engine::{BooksInput, LastEvent, WrittenDown};

/// A transaction that is open. Nobody else writes to its aggregate meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    transaction: u64,
    event: u128,
    pub(super) key: u8,
}

impl World {
    /// There is no slot from now on: the next session has one made.
    pub(super) fn await_slot(&mut self) {
        self.table.show(None);
        self.awaits_slot = true;
    }

    /// Nobody writes to an aggregate in which a transaction has begun something.
    pub(super) fn free_key(&mut self) -> u8 {
        let kept = self.kept.map(|it| it.key);
        loop {
            let key = self.rng.random_range(0..4);
            if Some(key) != kept {
                return key;
            }
        }
    }

    /// Transactions begin that stay open for long; those end; the slot has waited for long enough.
    pub(super) fn wait_now_and_then(&mut self) {
        match self.rng.random_range(0..80) {
            0 if self.kept.is_none() => {
                let (event, transaction) = (self.mint(), self.table.begin());
                self.kept = Some(Kept { transaction, event, key: self.keys[&event] });
                self.table.running = Some(transaction);
            }
            1 => self.commit_kept(),
            2 | 3 => self.make_slot(),
            _ => {}
        }
    }

    /// Its number is older than those of others that have committed before.
    pub(super) fn commit_kept(&mut self) {
        let Some(Kept { transaction, event, .. }) = self.kept.take() else { return };
        self.table.running = None;
        self.table.insert(event, transaction, true, self.is_filtered(event));
        self.log(vec![event]);
    }

    pub(super) fn log(&mut self, events: Vec<u128>) {
        self.lsn += 10;
        let (commit_lsn, end_lsn) = (Lsn(self.lsn), Lsn(self.lsn + 5));
        self.lsn += 6;
        self.log.push(Transaction { commit_lsn, end_lsn, events });
    }

    /// The slot is there, and begins here. Whoever has awaited it is told.
    pub(super) fn make_slot(&mut self) {
        if self.awaits_slot {
            self.awaits_slot = false;
            self.begin_epoch();
            self.relay.outcomes.push(BooksInput::SlotMade.into());
        }
    }

    /// If the session that has awaited the slot is over, another begins. Says whether one does.
    pub(super) fn leave_if_drained(&mut self) -> bool {
        let is_made = self.relay.awaits_slot && !self.awaits_slot;
        let leaves = is_made && self.relay.engine.is_drained(self.time());
        if leaves {
            self.connections.push(VecDeque::new());
            self.begin_session();
        }
        leaves
    }

    /// As `source/replication/open.rs`: nothing is read of what an earlier session wrote down.
    pub(super) fn session_without_slot(&self, faults: Faults) -> Relay {
        let tail = self.tail_since(self.stream.len() as u64);
        let (last, none) = (tail.last, HashSet::new());
        let written = WrittenDown::nothing();
        let publishing =
            publishing(faults, (Lsn::ZERO, Lsn(self.lsn)), tail, written, &none, &self.attempts);
        let gap = Gap { is_open: true, has_requeued: false, lost_end: false, awaits_slot: true };
        let engine = engine(self.faults, publishing, &self.table, gap, self.written);
        let last_event = LastEvent::later(last, self.event);
        Relay { awaits_slot: true, last_event, ..self.next_relay(engine) }
    }
}
