//! Events on their way into the dead-letter table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tracing::warn;

use super::Session;
use super::jobs::{Done, Job, job, tolerate};
use crate::core::{Dead, Input};
use crate::database::Store;
use crate::database::store::{RowOfDead, SlotReader};
use crate::describe;
use crate::error::Error;

/// Statements under way at a time. One is committed after the other, in order.
const PARKED_AT_ONCE: usize = 500;

/// How often old dead letters are looked for.
const PURGE_EVERY: Duration = Duration::from_hours(1);

/// How long nothing is parked after somebody had the dead letters locked.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What was asked to be parked, in order. As many as the window holds, at most.
#[derive(Default)]
pub(super) struct Parking {
    waiting: Vec<(u64, Dead)>,
    busy: bool,
    not_before: Option<Instant>,
    purged: Option<Instant>,
}

/// An event that is in the table, durably.
pub(super) struct Parked {
    pub(super) index: u64,
    row: RowOfDead,
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
        let is_held_up = self.not_before.is_some_and(|at| Instant::now() < at);
        if self.busy || is_held_up || self.waiting.is_empty() {
            return None;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(PARKED_AT_ONCE));
        let batch = std::mem::replace(&mut self.waiting, rest);
        self.busy = true;
        let (store, reader) = (Arc::clone(store), reader());
        Some(job(async move {
            let parked = async {
                // Prepared first: then the connection carries them in the order in which they are
                // polled.
                store.prepare_park().await?;
                let parks = batch.iter().map(async |(index, dead)| {
                    let row = store.park(dead, Some(&reader)).await?;
                    Ok(Parked { index: *index, row })
                });
                try_join_all(parks).await
            };
            let parked: Result<Vec<Parked>, Error> = parked.await;
            match parked {
                // Those that were parked do not mind being parked again.
                Err(error) if error.is_contention() => {
                    let held_up = describe(&error);
                    warn!(error = held_up, events = batch.len(), "cannot park, trying again");
                    Ok(Done::NotParked(batch))
                }
                parked => parked.map(Done::Parked),
            }
        }))
    }
}

impl Session {
    /// Removes dead letters that are too old, now and then.
    pub(super) fn purge(&mut self) {
        let is_due = self.parking.purged.is_none_or(|at| at.elapsed() >= PURGE_EVERY);
        if let (true, Some(retention)) = (is_due, self.config.dead_letter_retention) {
            self.parking.purged = Some(Instant::now());
            let store = Arc::clone(&self.rows);
            self.jobs.push(job(async move {
                let purged = tolerate(store.purge(retention.as_secs_f64()).await);
                Ok(Done::Purged(purged.unwrap_or(0)))
            }));
        }
    }

    pub(super) fn parked(&mut self, parked: Vec<Parked>) {
        self.parking.busy = false;
        for Parked { index, row } in parked {
            match row {
                RowOfDead::Removed => {}
                RowOfDead::Locked => self.owed.some(),
                RowOfDead::Unseen => self.settling.parked(),
            }
            self.apply(Input::Parked { index });
        }
    }

    /// Somebody has the dead letters locked: the same again, in a while, before what came since.
    pub(super) fn not_parked(&mut self, mut batch: Vec<(u64, Dead)>) {
        self.parking.busy = false;
        self.parking.not_before = Some(Instant::now() + AGAIN_AFTER);
        batch.append(&mut self.parking.waiting);
        self.parking.waiting = batch;
    }
}
