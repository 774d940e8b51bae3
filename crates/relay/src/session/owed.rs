//! Rows that wait for somebody: those that were locked when they were to be marked or removed, made up
//! for when they are not, and those without an id.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Session;
use super::jobs::{Done, job, tolerate};
use crate::database::store::Stuck;
use crate::reporter::Reporter;

/// How often it is tried while there are any.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// How often it is looked whether another connection, or an earlier session, left some.
const LOOKED_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Owed {
    /// Rows without an id that the log had brought at the last look.
    unidentified: u64,
    due: Instant,
    is_running: bool,
}

impl Owed {
    pub(super) fn new() -> Self {
        Self { unidentified: 0, due: Instant::now(), is_running: false }
    }

    /// There are some.
    pub(super) fn some(&mut self) {
        self.due = self.due.min(Instant::now() + TRIED_EVERY);
    }
}

impl Session {
    pub(super) fn settle_owed(&mut self) {
        let unidentified = self.source.rows().unidentified();
        let is_due = self.owed.unidentified != unidentified || Instant::now() >= self.owed.due;
        if self.owed.is_running || !is_due {
            return;
        }
        self.owed.unidentified = unidentified;
        self.owed.is_running = true;
        let store = Arc::clone(&self.rows);
        self.jobs
            .push(job(async move { Ok(Done::OwedSettled(tolerate(store.settle_owed().await))) }));
    }

    pub(super) fn owed_settled(&mut self, found: Option<Stuck>, reporter: &mut Reporter) {
        if let Some(stuck) = found {
            reporter.stuck(stuck);
        }
        let pause = match found {
            Some(Stuck { owed: 0, .. }) => LOOKED_EVERY,
            _ => TRIED_EVERY,
        };
        (self.owed.is_running, self.owed.due) = (false, Instant::now() + pause);
    }
}
