//! Keeps an eye on what the slot makes the server keep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use super::{Session, jobs};
use crate::config::{Config, OnWalLimit};
use crate::core::{Outlook, SlotHealth, WalWatch};
use crate::error::Error;
use crate::reporter::Reporter;
use crate::status::SlotStatus;

/// How often the slot is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long before a limit is reached its coming is told.
const WARN_BEFORE: Duration = Duration::from_secs(3600);

/// How often it is told again.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The slot's watch, and what was said about it.
pub(super) struct Watch {
    wal: WalWatch,
    looked_at: Option<Instant>,
    looking: bool,
    warned_at: Option<Instant>,
}

impl Watch {
    pub(super) fn new(config: &Config) -> Self {
        let wal = WalWatch::new(config.wal.limit);
        Self { wal, looked_at: None, looking: false, warned_at: None }
    }

    fn is_due(&self) -> bool {
        !self.looking && self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY)
    }

    /// Warns once in a while for as long as there is cause, and says when there is none any more.
    fn say(&mut self, config: &Config, retained_bytes: u64, outlook: Outlook) {
        let soon = outlook.left.filter(|left| *left < WARN_BEFORE);
        if soon.is_none() && !outlook.is_over {
            if self.warned_at.take().is_some() {
                info!(slot = config.slot, retained_bytes, "the slot keeps less of the log again");
            }
            return;
        }
        if self.warned_at.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned_at = Some(Instant::now());
        let slot = &config.slot;
        if outlook.is_over {
            error!(slot, retained_bytes, "the slot keeps more of the log than relay.wal_limit");
        } else {
            let left_bytes = outlook.left_bytes.unwrap_or(0);
            warn!(
                slot,
                retained_bytes,
                left_bytes,
                "the slot keeps more and more of the log: its limit is reached in {:?}",
                soon.unwrap_or_default()
            );
        }
    }
}

impl Session {
    pub(super) fn watch_slot(&mut self) {
        if self.watch.is_due() {
            (self.watch.looking, self.watch.looked_at) = (true, Some(Instant::now()));
            self.jobs.push(jobs::look(Arc::clone(&self.store), self.config.slot.clone()));
        }
    }

    /// # Errors
    ///
    /// [`Error::WalLimit`] if the slot has to be given up.
    pub(super) fn looked(
        &mut self,
        health: SlotHealth,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        self.watch.looking = false;
        let (retained_bytes, wal_status) = (health.retained_bytes, health.wal_status.clone());
        let outlook = self.watch.wal.look(self.started.elapsed(), health);
        self.watch.say(&self.config, retained_bytes, outlook);
        let (left_bytes, left) = (outlook.left_bytes, outlook.left);
        let left_seconds = left.map(|left| left.as_secs());
        reporter.slot(SlotStatus { wal_status, retained_bytes, left_bytes, left_seconds });
        if outlook.is_over && self.config.wal.on_limit == OnWalLimit::DropSlotAndScan {
            return Err(Error::WalLimit { slot: self.config.slot.clone() });
        }
        Ok(())
    }
}
