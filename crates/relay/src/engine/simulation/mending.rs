//! The dead-letter table where parking blocks, and the operator who mends what is in it.

use rand::RngExt;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::World;
use super::old_rows::Scanning;
use crate::engine::{Blocked, Dead};

impl World {
    pub(super) fn park(&mut self, dead: &Dead) {
        let id = dead.event.id.as_u128();
        self.parked.insert(id);
        // A row that the scanner brought leaves the outbox; the log's may come again.
        self.old_rows.retain(|row| *row != id);
        self.dead.insert(id, dead.blocked_by.map(|by| by.as_u128()));
    }

    /// The operator removes the cause of one failure and requeues the event. Not while a
    /// predecessor's messages may still arrive, as in [`World::unmark_by_hand`].
    pub(super) fn mend_by_hand(&mut self) {
        let is_over = matches!(self.relay.scan, Scanning::Done) && self.old_connections_are_empty();
        let heads: Vec<u128> =
            self.dead.iter().filter(|it| it.1.is_none()).map(|it| *it.0).collect();
        if let (true, Some(head)) = (is_over, heads.choose(&mut self.rng)) {
            self.poisoned.remove(head);
            self.requeue(*head);
            self.rescan();
        } else if is_over && !self.dead.is_empty() {
            self.rescan();
        }
    }

    pub(super) fn mend_now_and_then(&mut self) {
        if self.faults.blocking && self.rng.random_bool(0.3) {
            self.mend_by_hand();
        }
    }

    fn rescan(&mut self) {
        self.relay.scan = Scanning::Reading;
    }

    fn requeue(&mut self, id: u128) {
        self.dead.remove(&id);
        self.marked.remove(&id);
        self.requeued.insert(id);
        self.old_rows.push(id);
        self.old_rows.sort_unstable();
    }

    /// What only waits, where nothing is left to wait for.
    pub(super) fn release(&mut self) {
        let is_head = |key: u8| self.dead.iter().any(|it| it.1.is_none() && self.keys[it.0] == key);
        let free: Vec<u128> =
            self.dead.keys().copied().filter(|id| !is_head(self.keys[id])).collect();
        free.into_iter().for_each(|id| self.requeue(id));
    }

    pub(super) fn blocked(&self) -> Vec<Blocked> {
        let blocked = |(id, by): (&u128, &Option<u128>)| Blocked {
            aggregate_type: "t".into(),
            aggregate_id: format!("k{}", self.keys[id]),
            by: Uuid::from_u128(by.unwrap_or(*id)),
        };
        self.dead.iter().map(blocked).collect()
    }
}
