//! What becomes of the slot while no relay reads it.

use pgoutput::Lsn;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::World;
use crate::engine::{SlotFound, SlotKnown, SlotSeen};

impl World {
    /// As `postgres/slot.rs`: looks at the slot, and has another one made if that lacks something.
    pub(super) fn find_slot(&mut self) {
        if !self.faults.meddled {
            return;
        }
        let confirmed = match self.rng.random_range(0..4) {
            0 => self.end_of_log(),
            1 => self.advanced_a_bit(),
            2 => self.forgotten_position(),
            _ => self.slot_confirmed,
        };
        // PostgreSQL gave its log up, somebody made another one, a relay died while it made it, the
        // cluster is a copy, the publication was changed, or there is none.
        let mut is_off = || self.rng.random_bool(0.04);
        let seen = SlotSeen {
            is_pgoutput: true,
            is_lost: is_off(),
            is_replaced: is_off(),
            confirmed: Some(confirmed).filter(|_| !is_off()),
            ..SlotSeen::default()
        };
        let known = SlotKnown {
            is_of_this_cluster: !is_off(),
            is_trusted: !is_off(),
            checkpoint: Some(self.written.end),
            start_snapshot: Some(String::new()).filter(|_| !is_off()),
        };
        let is_there = !is_off();
        match SlotFound::of(Some(&seen).filter(|_| is_there), Some(&known)) {
            SlotFound::Ours { confirmed, .. } => self.slot_confirmed = confirmed,
            SlotFound::Anew { .. } => {
                self.finish_epoch();
                self.begin_epoch();
            }
            found @ (SlotFound::Busy | SlotFound::Elsewhere(_) | SlotFound::NotOurs) => {
                panic!("nobody else has it: {found:?}")
            }
        }
    }

    /// The slot was advanced to where the log ends, or another one begins there.
    fn end_of_log(&mut self) -> Lsn {
        self.lsn += 1;
        Lsn(self.lsn)
    }

    /// The slot was advanced over some transactions.
    fn advanced_a_bit(&mut self) -> Lsn {
        let later = self.log.iter().map(|it| it.end_lsn).filter(|it| *it > self.slot_confirmed);
        let later: Vec<Lsn> = later.collect();
        later.choose(&mut self.rng).copied().unwrap_or(self.slot_confirmed)
    }

    /// A server writes slots down only now and then.
    fn forgotten_position(&mut self) -> Lsn {
        let is_older = |it: &Lsn| (self.written.start..=self.slot_confirmed).contains(it);
        let older: Vec<Lsn> = self.log.iter().map(|it| it.end_lsn).filter(is_older).collect();
        older.choose(&mut self.rng).copied().unwrap_or(self.slot_confirmed)
    }
}
