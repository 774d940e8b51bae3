//! The books beside the stream: the checkpoint, the slot, dead letters, marks that are owed.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::Session;
use super::jobs::{self, Parked};
use crate::config::OnWalLimit;
use crate::engine::{Dead, Input, Place, Silence, SlotHealth, SlotNotice};
use crate::error::Error;
use crate::postgres::sql::{RowOfDead, SlotReader, Stuck};
use crate::reporter::Reporter;
use crate::status::SlotStatus;

impl Session {
    /// Lets PostgreSQL forget what is resolved, as far as that is written down.
    pub(super) fn confirm(&mut self, now: Duration) {
        if self.state.is_in_doubt() {
            return; // what an earlier session wrote down is all that tells
        }
        let (resolved, events) = (self.state.confirmed(), self.state.settled_of_the_log());
        let has_place = || self.state.place().is_some();
        if self.checkpoint.is_due(resolved, events, now, has_place) {
            let (store, slot) = (Arc::clone(&self.store), self.config.slot.clone());
            let place = self.state.place().map(|it| match self.backfill.is_clear() {
                true => it,
                false => Place { seq: None, ..it },
            });
            self.jobs.push(jobs::checkpoint(store, slot, self.reader, place));
        }
        self.source.confirm(self.checkpoint.confirmable(resolved, events));
    }

    /// Begins what is due by the clock.
    ///
    /// # Errors
    ///
    /// [`Error::Stalled`] if PostgreSQL fell silent.
    pub(super) fn keep_books(&mut self, now: Duration) -> Result<(), Error> {
        self.listen()?;
        let (resolved, is_idle) = (self.state.counts().resolved(), self.state.is_idle());
        if self.liveness.is_stranded(now, resolved, is_idle) {
            self.jobs.push(jobs::leave_server(self.tail.clone()));
        }
        if self.slot_watch.look_if_due(now) {
            self.jobs.push(jobs::look(Arc::clone(&self.store), self.config.slot.clone()));
        }
        if self.owed_marks.begin_if_due(now) {
            self.jobs.push(jobs::settle_owed(Arc::clone(&self.rows)));
        }
        if let Some(retention) = self.config.dead_letter_retention
            && self.parking.purge_if_due(now)
        {
            self.jobs.push(jobs::purge(Arc::clone(&self.rows), retention));
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<(), Error> {
        if !self.is_reading() {
            self.source.listen_anew();
        }
        match self.liveness.listen(self.source.last_heard().elapsed()) {
            Silence::Bearable => {}
            Silence::AskForSign => self.jobs.push(jobs::heartbeat(Arc::clone(&self.store))),
            Silence::TooLong => return Err(Error::Stalled("the server fell silent")),
        }
        Ok(())
    }

    /// # Errors
    ///
    /// [`Error::WalLimit`] if the slot has to be given up.
    pub(super) fn looked(
        &mut self,
        health: SlotHealth,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        let (retained_bytes, wal_status) = (health.retained_bytes, health.wal_status.clone());
        let (outlook, notice) = self.slot_watch.looked(self.started.elapsed(), health);
        let (left_bytes, slot) = (outlook.left_bytes, &self.config.slot);
        match notice {
            Some(SlotNotice::OverLimit) => {
                error!(slot, retained_bytes, "the slot keeps more of the log than relay.wal_limit");
            }
            Some(SlotNotice::LimitIn(left)) => warn!(
                slot,
                retained_bytes,
                left_bytes = left_bytes.unwrap_or(0),
                "the slot keeps more and more of the log: its limit is reached in {left:?}"
            ),
            Some(SlotNotice::Recovered) => {
                info!(slot, retained_bytes, "the slot keeps less of the log again");
            }
            None => {}
        }
        let left_seconds = outlook.left.map(|left| left.as_secs());
        reporter.slot(SlotStatus { wal_status, retained_bytes, left_bytes, left_seconds });
        if outlook.is_over && self.config.wal.on_limit == OnWalLimit::DropSlotAndScan {
            return Err(Error::WalLimit { slot: self.config.slot.clone() });
        }
        Ok(())
    }

    pub(super) fn owed_settled(&mut self, found: Option<Stuck>, reporter: &mut Reporter) {
        if let Some(stuck) = found {
            reporter.stuck(stuck);
        }
        self.owed_marks.ended(self.started.elapsed(), found.map(|it| it.owed));
    }

    pub(super) fn park(&mut self, now: Duration) {
        if let Some(batch) = self.parking.next(now) {
            let reader = SlotReader { slot: self.config.slot.clone(), pid: self.reader };
            self.jobs.push(jobs::park(Arc::clone(&self.rows), reader, batch));
        }
    }

    pub(super) fn parked(&mut self, parked: Vec<Parked>) {
        self.parking.parked();
        for Parked { index, row } in parked {
            match row {
                RowOfDead::Removed => {}
                RowOfDead::Locked => self.owed_marks.some(self.started.elapsed()),
                RowOfDead::Unseen => self.marking.parked(),
            }
            self.apply(Input::Parked { index });
        }
    }

    pub(super) fn not_parked(&mut self, batch: Vec<(u64, Dead)>) {
        self.parking.not_parked(self.started.elapsed(), batch);
    }
}
