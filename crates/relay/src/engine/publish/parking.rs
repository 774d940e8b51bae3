//! Aggregates whose later events wait for one that was parked.
//!
//! An event behind a parked one of its aggregate is parked as well: it waits in the table, durably,
//! and holds back neither the log nor anybody else. It comes back through the scanner once what it
//! waits for is mended; until nothing of the aggregate waits any more, its events from the log
//! go the same way. They are parked in their order, so
//! that a crash leaves no later one in the table without the earlier ones. The engine holds the log
//! and lets the window run empty before it looks for what is mended, so that whoever comes back is in
//! the window before the next event of the log is.
//!
//! What is no event is parked at once, wherever it comes: no aggregate waits for what anybody can write.

use std::collections::HashMap;
use std::time::Duration;

use outbox::Event;
use uuid::Uuid;

use super::Publishing;
use crate::engine::messages::{Blocked, Dead, Mode};
use crate::engine::request::Request;
use crate::engine::window::{Origin, Stage, Unpublished};
use crate::status::DeadLetterReason;

#[derive(Debug, Clone)]
struct Block {
    by: Uuid,
    /// Entries before this one do not wait.
    from: u64,
}

/// By aggregate type, then id.
type ByAggregate = HashMap<String, HashMap<String, Block>>;

/// Holds nothing unless parking blocks.
#[derive(Debug, Default, Clone)]
pub(super) struct Blocks {
    blocked: ByAggregate,
    /// What the scan that is under way has found to be blocked no more: its rows are on their way.
    released: ByAggregate,
}

impl Blocks {
    pub(super) fn is_empty(&self) -> bool {
        self.blocked.is_empty()
    }

    fn get(&self, event: &Event) -> Option<&Block> {
        self.blocked.get(&*event.aggregate_type)?.get(&*event.aggregate_id)
    }

    fn add(&mut self, aggregate_type: &str, aggregate_id: &str, by: Uuid, from: u64) {
        let of_type = self.blocked.entry(aggregate_type.to_owned()).or_default();
        let block = of_type.entry(aggregate_id.to_owned()).or_insert(Block { by, from });
        if from < block.from {
            *block = Block { by, from };
        }
    }

    fn replace(&mut self, blocked: Vec<Blocked>, from: u64) {
        self.released = std::mem::take(&mut self.blocked);
        for it in blocked {
            self.add(&it.aggregate_type, &it.aggregate_id, it.by, from);
            if let Some(released) = self.released.get_mut(&it.aggregate_type) {
                released.remove(&it.aggregate_id);
            }
        }
    }

    fn block_released(&mut self, from: u64) {
        for (aggregate_type, released) in std::mem::take(&mut self.released) {
            for (aggregate_id, Block { by, .. }) in released {
                self.add(&aggregate_type, &aggregate_id, by, from);
            }
        }
    }
}

impl Publishing {
    /// Whether some aggregate is blocked.
    pub(crate) fn is_blocking(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// The aggregates that are blocked from now on, as the table has it, whatever was blocked before.
    /// Only right while the window is empty and the log is held.
    pub(crate) fn block_these(&mut self, now: Duration, blocked: Vec<Blocked>) {
        self.now = now;
        self.blocks.replace(blocked, self.window.end());
    }

    /// The scan has brought everything, or was interrupted: then events from the log must not
    /// overtake what it was still to bring of the aggregates that it has released. They are parked
    /// behind it, and the next scan brings all of it in order.
    pub(crate) fn scan_ended(&mut self, is_complete: bool) {
        match is_complete {
            true => self.blocks.released = HashMap::new(),
            false => self.blocks.block_released(self.window.end()),
        }
    }

    /// The event that an entry waits for in the table.
    pub(super) fn blocker(&self, index: u64) -> Option<Uuid> {
        if self.blocks.is_empty() {
            return None;
        }
        let block = self.blocks.get(&self.window.get(index)?.outgoing.event)?;
        (block.from <= index).then_some(block.by)
    }

    /// Something is wrong with the event: takes it out of the way, durably.
    ///
    /// Where that blocks its aggregate, not before everything earlier is resolved: an operator may
    /// requeue it, and after a crash the scanner would bring it before the log brings those.
    pub(super) fn park(&mut self, index: u64, reason: String, why: DeadLetterReason) {
        if self.is_replayed(index) {
            return self.replay_failed(index, reason);
        }
        let is_first = self.is_first(index);
        let Some(entry) = self.window.get_mut(index) else { return };
        if self.settings.parking_blocks && !entry.is_no_event() {
            if !is_first {
                let unfit = Err(Unpublished::Unfit(reason));
                (entry.outgoing.subject, entry.stage) = (unfit, Stage::Waiting);
                entry.parked_for = why;
                self.sending.back_to(index);
                return;
            }
            let event = &entry.outgoing.event;
            let (aggregate, id) = (&event.aggregate_type, &event.aggregate_id);
            self.blocks.add(aggregate, id, event.id, index + 1);
        }
        entry.parked_for = why;
        self.request_park(index, reason, None);
    }

    /// Looks at an entry whose turn it is. Says whether it can be sent.
    pub(super) fn may_go(&mut self, index: u64) -> Turn {
        // What is published once more was published before whatever is parked now.
        if let Some(by) = self.blocker(index).filter(|_| !self.is_replayed(index)) {
            self.park_behind(index, by);
            return Turn::Over;
        }
        let Some(entry) = self.window.get(index) else { return Turn::Over };
        let Err(Unpublished::Unfit(reason) | Unpublished::NoEvent(reason)) =
            &entry.outgoing.subject
        else {
            return Turn::Now;
        };
        if !self.is_first(index) && !self.is_replayed(index) {
            return Turn::Later;
        }
        // Its turn may have come again: then it is known why.
        let (reason, why) = (reason.clone(), entry.parked_for);
        self.park(index, reason, why);
        Turn::Over
    }

    /// Whether everything is resolved that must be published before the entry.
    fn is_first(&self, index: u64) -> bool {
        match self.mode {
            Mode::Fenced => index == self.window.first(),
            Mode::Keyed => self.window.get(index).is_some_and(|entry| entry.is_head),
        }
    }

    /// Nothing is wrong with the event but its place.
    pub(super) fn park_behind(&mut self, index: u64, blocked_by: Uuid) {
        let reason = format!("waits for {blocked_by}, an earlier event of its aggregate");
        self.request_park(index, reason, Some(blocked_by));
    }

    fn request_park(&mut self, index: u64, reason: String, blocked_by: Option<Uuid>) {
        let parking_blocks = self.settings.parking_blocks;
        if let Some(entry) = self.window.get_mut(index) {
            let blocks = parking_blocks && !entry.is_no_event();
            entry.stage = Stage::Parking;
            if blocked_by.is_some() {
                entry.parked_for = DeadLetterReason::Blocked;
            }
            let attempts = if blocked_by.is_some() { 0 } else { entry.attempts.max(1) };
            let (event, seq) = (Box::new(entry.outgoing.event.clone()), entry.outgoing.seq);
            let has_row = entry.origin != Origin::Emitted;
            let is_requeued = entry.outgoing.requeued;
            let dead =
                Dead { event, seq, reason, attempts, blocks, blocked_by, has_row, is_requeued };
            self.output.requests.push_back(Request::Park { index, dead });
            self.gives_up_sequence(index, true);
        }
    }

    /// Events that are to be parked, and are not yet.
    #[cfg(test)]
    pub(crate) fn given_up(&self) -> impl Iterator<Item = Uuid> {
        let parking = self.window.iter_unresolved().filter(|it| it.1.stage == Stage::Parking);
        parking.map(|(_, entry)| entry.outgoing.event.id)
    }
}

/// What becomes of an entry whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It can be sent.
    Now,
    /// It is to be parked, and may not before others are resolved.
    Later,
    /// It is being parked.
    Over,
}
