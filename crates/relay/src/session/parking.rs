//! Events on their way into the dead-letter table.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::Session;
use super::jobs::{Done, Job, job};
use crate::core::{Dead, Input};
use crate::database::Store;

/// Statements under way at a time. One is committed after the other, in order.
const PARKED_AT_ONCE: usize = 500;

/// What was asked to be parked, in order. As many as the window holds, at most.
#[derive(Default)]
pub(super) struct Parking {
    waiting: Vec<(u64, Dead)>,
    busy: bool,
}

/// An event that is in the table, durably.
pub(super) struct Parked {
    pub(super) index: u64,
    row_was_there: bool,
}

impl Parking {
    pub(super) fn ask(&mut self, index: u64, dead: Dead) {
        self.waiting.push((index, dead));
    }

    /// The next statements, if none are under way.
    pub(super) fn next(&mut self, store: &Arc<Store>) -> Option<Job> {
        if self.busy || self.waiting.is_empty() {
            return None;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(PARKED_AT_ONCE));
        let batch = std::mem::replace(&mut self.waiting, rest);
        self.busy = true;
        let store = Arc::clone(store);
        Some(job(async move {
            // Prepared first: then the connection carries them in the order in which they are polled.
            store.prepare_park().await?;
            let parks = batch.iter().map(async |(index, dead)| {
                let row_was_there = store.park(dead).await?;
                Ok(Parked { index: *index, row_was_there })
            });
            try_join_all(parks).await.map(Done::Parked)
        }))
    }
}

impl Session {
    pub(super) fn parked(&mut self, parked: Vec<Parked>) {
        self.parking.busy = false;
        for Parked { index, row_was_there } in parked {
            if !row_was_there {
                self.settling.parked();
            }
            self.apply(Input::Parked { index });
        }
    }
}
