//! The dead-letter table, and the operator who mends what is in it.

use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::{World, table};
use crate::engine::{Blocked, Dead, Parked, RowOfDead};

impl World {
    /// Everything works again, until nothing is left to be done.
    pub(super) fn heal(&mut self) {
        if self.faults.claims {
            return self.heal_nodes();
        }
        self.is_picky = false;
        self.refuses_batches = false;
        self.resume_replays();
        self.table.show(None);
        self.table.rows.values_mut().for_each(|it| it.is_locked = false);
        self.commit_kept();
        self.make_slot();
        let mut done_for = 0;
        for _ in 0..20_000 {
            for _ in 0..3 {
                let rests = self.has_nothing_under_way();
                self.deliver_log();
                let has_sent = self.send();
                self.broker(true);
                self.answer();
                self.job(true);
                self.effects();
                if rests && !has_sent && self.has_nothing_under_way() {
                    break;
                }
            }
            self.keepalive();
            self.slot_confirmed = self.slot_confirmed.max(self.relay.confirming);
            let wait = self.publishing().breaker().1;
            // At rest time passes faster.
            let pause = if done_for == 0 { 50 } else { 250 };
            self.now += wait.unwrap_or(Duration::from_millis(pause));
            self.tick(0);
            self.leave_if_drained();
            self.check_confirmed();
            // A scan that has found nothing more may have been begun before something came.
            done_for = if self.is_done() { done_for + 1 } else { 0 };
            if done_for > 20 {
                if !self.faults.blocking || self.dead.is_empty() {
                    return;
                }
                self.mend_by_hand();
                done_for = 0;
            }
        }
        panic!("does not come to rest: {:?}", self.relay.engine);
    }

    pub(super) fn park_all(&mut self, batch: Vec<(u64, Dead)>) -> Vec<Parked> {
        batch.iter().map(|(index, it)| Parked { index: *index, row: self.park(it) }).collect()
    }

    fn park(&mut self, dead: &Dead) -> RowOfDead {
        let id = dead.event.id.as_u128();
        self.parked.insert(id);
        if !dead.has_row && self.table.rows.contains_key(&id) {
            return RowOfDead::Never; // it came back meanwhile
        }
        let stays = |row: &table::Row| {
            let is_gone = row.is_marked && self.faults.deletes;
            !is_gone && (row.is_marked || row.is_left_to_scanner() && !dead.is_requeued)
        };
        if dead.has_row && self.table.rows.get(&id).is_some_and(stays) {
            return RowOfDead::Unseen;
        }
        // A row that the scanner brought leaves the outbox; the log's may come again.
        self.old_rows.retain(|row| *row != id);
        self.dead.insert(id, dead.blocked_by.map(|by| by.as_u128()));
        if dead.has_row { self.remove_row(id) } else { RowOfDead::Never }
    }

    /// The operator removes the cause of one failure and requeues the event. Not while a
    /// predecessor's messages may still arrive, as in [`World::unmark_by_hand`].
    pub(super) fn mend_by_hand(&mut self) {
        let has_left = |id: &u128| !self.table.rows.contains_key(id);
        let heads = self.dead.iter().filter(|it| it.1.is_none()).map(|it| *it.0);
        let heads: Vec<u128> = heads.filter(has_left).collect();
        if self.old_connections_are_empty()
            && let Some(head) = heads.choose(&mut self.rng)
        {
            self.poisoned.remove(head);
            self.requeue(*head);
        }
    }

    pub(super) fn mend_now_and_then(&mut self) {
        if self.rng.random_bool(0.3) {
            self.mend_by_hand();
        }
    }

    fn requeue(&mut self, id: u128) {
        self.dead.remove(&id);
        self.attempts.remove(&id);
        self.table.come_back(id, self.is_filtered(id));
        self.requeued.insert(id);
        if !self.faults.blocking {
            self.late_rows.insert(id);
        }
        self.old_rows.push(id);
        self.old_rows.sort_unstable();
    }

    /// What only waits, where nothing is left to wait for.
    pub(super) fn release(&mut self) {
        let is_head = |key: u8| self.dead.iter().any(|it| it.1.is_none() && self.keys[it.0] == key);
        let has_left = |id: &u128| !self.table.rows.contains_key(id);
        let waits = self.dead.keys().copied().filter(has_left);
        let free: Vec<u128> = waits.filter(|id| !is_head(self.keys[id])).collect();
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
