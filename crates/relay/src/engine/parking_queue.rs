//! Events on their way into the dead-letter table.

use std::time::Duration;

use super::messages::Dead;

/// Statements under way at a time. One is committed after the other, in order.
const PARKED_AT_ONCE: usize = 500;

/// How long nothing is parked after somebody had the dead letters locked.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Events to be parked, in order, by their places in the window: as many as that holds, at most.
#[derive(Debug, Clone)]
pub(crate) struct ParkingQueue {
    waiting: Vec<(u64, Dead)>,
    turn: Turn,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Turn {
    /// The next batch may go, from this moment on.
    Free(Duration),
    /// A batch of so many is on its way: the next one would overtake it.
    Busy(usize),
}

impl ParkingQueue {
    pub(crate) fn new() -> Self {
        Self { waiting: Vec::new(), turn: Turn::Free(Duration::ZERO) }
    }

    pub(crate) fn ask(&mut self, index: u64, dead: Dead) {
        self.waiting.push((index, dead));
    }

    /// Events that are not parked.
    pub(crate) fn len(&self) -> usize {
        let under_way = match self.turn {
            Turn::Free(_) => 0,
            Turn::Busy(under_way) => under_way,
        };
        self.waiting.len() + under_way
    }

    /// The next batch, if none is on its way.
    pub(crate) fn next(&mut self, now: Duration) -> Option<Vec<(u64, Dead)>> {
        let is_free = matches!(self.turn, Turn::Free(from) if from <= now);
        if self.waiting.is_empty() || !is_free {
            return None;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(PARKED_AT_ONCE));
        let batch = std::mem::replace(&mut self.waiting, rest);
        self.turn = Turn::Busy(batch.len());
        Some(batch)
    }

    /// The batch is in the table.
    pub(crate) fn parked(&mut self) {
        self.turn = Turn::Free(Duration::ZERO);
    }

    /// Somebody has the dead letters locked: the same again, in a while, before what came since.
    pub(crate) fn not_parked(&mut self, now: Duration, mut batch: Vec<(u64, Dead)>) {
        self.turn = Turn::Free(now + AGAIN_AFTER);
        batch.append(&mut self.waiting);
        self.waiting = batch;
    }
}
