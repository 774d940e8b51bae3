//! The connections of a session, by what they may wait for. A connection executes its statements in
//! order, so what has to go on while others lock rows needs one where nothing waits for rows.

use uuid::Uuid;

use super::Store;
use crate::config::Config;
use crate::engine::{Resolved, ScanMarks, SlotHealth, Stored, Verdict, Watermark};
use crate::error::Error;
use crate::postgres::standby_slots;

/// A slot, and the process that reads it for a session. Once another one does, the session is to
/// change nothing.
#[derive(Debug, Clone)]
pub(crate) struct SlotReader {
    pub(crate) slot: String,
    pub(crate) pid: i32,
}

/// How long keeping the slot's books waits for others' locks.
const BOOKS_WAIT: &str = "1s";

/// How long parking, claiming, and marking what was scanned, waits for others' locks.
const ROWS_WAIT: &str = "2s";

/// What is written down of the slot. No statement here waits for a row that others may lock, and none
/// for long.
pub(crate) struct Books(pub(super) Store);

/// Parks, claims, and marks what must not be forgotten: waits for locks on dead letters and rows.
pub(crate) struct Rows(pub(super) Store);

/// Marks and sweeps. Commits are not waited for.
pub(crate) struct Marks(pub(super) Store);

/// The transaction of a scan, before it is read.
pub(crate) struct Scan(pub(super) Store);

impl Books {
    pub(crate) async fn of(mut store: Store) -> Result<Self, Error> {
        store.wait_for_locks(Some(BOOKS_WAIT)).await?;
        store.unbound();
        Ok(Self(store))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.client().is_closed()
    }

    pub(crate) async fn check_former(&self) -> Result<(), Error> {
        self.0.check_former().await
    }

    /// Also says whether the slot's reader was at work, and what keeps PostgreSQL from sending what is
    /// committed, if it waits for others.
    pub(crate) async fn heartbeat(&self, slot: &str) -> Result<(bool, Option<String>), Error> {
        // Before: it is at work on the heartbeat itself soon.
        let is_at_work = self.0.is_reader_at_work(slot).await?;
        self.0.heartbeat().await?;
        Ok((is_at_work, standby_slots::held_back(&self.0, slot).await?))
    }

    pub(crate) async fn slot_reader(&self, slot: &str) -> Result<Option<i32>, Error> {
        self.0.slot_reader(slot).await
    }

    pub(crate) async fn slot_health(&self, slot: &str) -> Result<SlotHealth, Error> {
        self.0.slot_health(slot).await
    }

    pub(crate) async fn distrust_slot(&self, slot: &str) -> Result<(), Error> {
        self.0.distrust_slot(slot).await
    }

    /// A scan looked at the whole table.
    pub(crate) async fn note_scan(&self, slot: &str) -> Result<(), Error> {
        self.0.note_look(slot, "scanned_at").await
    }
}

impl Rows {
    pub(crate) async fn of(mut store: Store) -> Result<Self, Error> {
        store.wait_for_locks(Some(ROWS_WAIT)).await?;
        store.unbound();
        Ok(Self(store))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.client().is_closed()
    }

    pub(crate) async fn mark(
        &self,
        stream: &str,
        resolved: &[Resolved],
    ) -> Result<ScanMarks, Error> {
        self.0.mark(stream, resolved).await
    }
}

impl Marks {
    pub(crate) async fn connect(config: &Config, name: &str) -> Result<Self, Error> {
        let mut store = Store::brief(config, name).await?;
        store.yield_to_others().await?;
        store.unbound();
        Ok(Self(store))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.client().is_closed()
    }

    pub(crate) async fn observe(&self) -> Result<Watermark, Error> {
        self.0.observe().await
    }

    pub(crate) async fn check_publication(&self, config: &Config) -> Result<(), Error> {
        self.0.check_publication(&config.publication, &config.slot).await
    }

    pub(crate) async fn sweep_dead(&self, start: &str, to: &Watermark) -> Result<(), Error> {
        self.0.sweep_dead(start, to).await
    }

    pub(crate) async fn mark_verdict(&self, stream: &str, it: &Verdict) -> Result<u64, Error> {
        self.0.mark_verdict(stream, it).await
    }

    pub(crate) async fn mark_stored(&self, stream: &str, stored: &[Stored]) -> Result<u64, Error> {
        self.0.mark_stored(stream, stored).await
    }

    pub(crate) async fn leave_to_the_scanner(&self, ids: &[Uuid]) -> Result<u64, Error> {
        self.0.leave_to_the_scanner(ids).await
    }

    /// The sweeper looked at the whole table.
    pub(crate) async fn note_sweep(&self, slot: &str) -> Result<(), Error> {
        self.0.note_look(slot, "whole_swept_at").await
    }
}

impl Scan {
    /// `waits` is for how long it waits for others' locks.
    pub(crate) async fn connect(config: &Config, waits: &str) -> Result<Self, Error> {
        let store = Store::connect(config, "tailpost scanner").await?;
        store.wait_for_locks(Some(waits)).await?;
        store.check_publication(&config.publication, &config.slot).await?;
        Ok(Self(store))
    }

    pub(crate) async fn has_hidden(&self, snapshot: &str) -> Result<bool, Error> {
        self.0.has_hidden(snapshot).await
    }
}
