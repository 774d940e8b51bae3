//! What the writers did.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use uuid::Uuid;

/// A transaction that committed.
#[derive(Debug, Clone)]
pub struct Commit {
    /// Its events, in order.
    pub ids: Vec<Uuid>,
    /// When the writer asked to commit. Nobody can have seen the events before.
    pub asked: Instant,
    /// When the server said that it had; `None` if the answer was lost.
    pub answered: Option<Instant>,
}

/// What a workload wrote.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The transactions that committed, in no certain order.
    pub commits: Vec<Commit>,
    /// The events that were written and rolled back.
    pub rolled_back: Vec<Uuid>,
    /// Commits whose answer was lost, whatever their outcome.
    pub answers_lost: usize,
}

impl Record {
    /// The ids of all events that committed.
    pub fn committed(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.commits.iter().flat_map(|it| it.ids.iter().copied())
    }
}

/// The record in the making; the lock is held for moments only.
#[derive(Default)]
pub(super) struct Journal(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    record: Record,
    events_committed: usize,
}

impl Journal {
    pub(super) fn commit(&self, commit: Commit) {
        let mut entries = self.entries();
        entries.events_committed += commit.ids.len();
        entries.record.commits.push(commit);
    }

    pub(super) fn roll_back(&self, ids: Vec<Uuid>) {
        self.entries().record.rolled_back.extend(ids);
    }

    pub(super) fn lose_answer(&self) {
        self.entries().record.answers_lost += 1;
    }

    pub(super) fn committed(&self) -> usize {
        self.entries().events_committed
    }

    pub(super) fn rolled_back(&self) -> usize {
        self.entries().record.rolled_back.len()
    }

    pub(super) fn commits_from(&self, index: usize) -> Vec<Commit> {
        self.entries().record.commits.get(index..).unwrap_or_default().to_vec()
    }

    pub(super) fn take(&self) -> Record {
        mem::take(&mut self.entries().record)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Each change is complete in itself, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
