//! Events on their way into the dead-letter table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::Session;
use super::jobs::{Done, Job, job, tolerate};
use crate::core::{Dead, Input};
use crate::database::Store;
use crate::database::store::SlotReader;

/// Statements under way at a time. One is committed after the other, in order.
const PARKED_AT_ONCE: usize = 500;

/// How often old dead letters are looked for.
const PURGE_EVERY: Duration = Duration::from_hours(1);

/// What was asked to be parked, in order. As many as the window holds, at most.
#[derive(Default)]
pub(super) struct Parking {
    waiting: Vec<(u64, Dead)>,
    busy: bool,
    purged: Option<Instant>,
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
    pub(super) fn next(
        &mut self,
        store: &Arc<Store>,
        reader: impl FnOnce() -> SlotReader,
    ) -> Option<Job> {
        if self.busy || self.waiting.is_empty() {
            return None;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(PARKED_AT_ONCE));
        let batch = std::mem::replace(&mut self.waiting, rest);
        self.busy = true;
        let (store, reader) = (Arc::clone(store), reader());
        Some(job(async move {
            // Prepared first: then the connection carries them in the order in which they are polled.
            store.prepare_park().await?;
            let parks = batch.iter().map(async |(index, dead)| {
                let row_was_there = store.park(dead, Some(&reader)).await?;
                Ok(Parked { index: *index, row_was_there })
            });
            try_join_all(parks).await.map(Done::Parked)
        }))
    }
}

impl Session {
    /// Removes dead letters that are too old, now and then.
    pub(super) fn purge(&mut self) {
        let is_due = self.parking.purged.is_none_or(|at| at.elapsed() >= PURGE_EVERY);
        if let (true, Some(retention)) = (is_due, self.config.dead_letter_retention) {
            self.parking.purged = Some(Instant::now());
            let store = Arc::clone(&self.store);
            self.jobs.push(job(async move {
                let purged = tolerate(store.purge(retention.as_secs_f64()).await);
                Ok(Done::Purged(purged.unwrap_or(0)))
            }));
        }
    }

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
