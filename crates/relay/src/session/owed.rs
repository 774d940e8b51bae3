//! Rows that were locked when they were to be marked or removed: made up for when they are not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Session;
use super::jobs::{Done, job, tolerate};

/// How often it is tried while there are any.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// How often it is looked whether another connection, or an earlier session, left some.
const LOOKED_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Owed {
    /// As of the last look.
    rows: u64,
    due: Instant,
    is_running: bool,
}

impl Owed {
    pub(super) fn new() -> Self {
        Self { rows: 0, due: Instant::now(), is_running: false }
    }

    /// There are some.
    pub(super) fn some(&mut self) {
        self.due = self.due.min(Instant::now() + TRIED_EVERY);
    }
}

impl Session {
    pub(super) fn settle_owed(&mut self) {
        if self.owed.is_running || Instant::now() < self.owed.due {
            return;
        }
        self.owed.is_running = true;
        let store = Arc::clone(&self.rows);
        self.jobs
            .push(job(async move { Ok(Done::OwedSettled(tolerate(store.settle_owed().await))) }));
    }

    pub(super) fn owed_settled(&mut self, rows: Option<u64>) {
        let before = self.owed.rows;
        self.owed.rows = rows.unwrap_or(before);
        match (before, self.owed.rows) {
            (0, rows @ 1..) => warn!(
                rows,
                "somebody has rows locked whose events are published or parked: they are marked or \
                 removed when they are free"
            ),
            (1.., 0) => info!("rows that were locked are marked or removed"),
            _ => {}
        }
        let pause = if self.owed.rows > 0 || rows.is_none() { TRIED_EVERY } else { LOOKED_EVERY };
        (self.owed.is_running, self.owed.due) = (false, Instant::now() + pause);
    }
}
