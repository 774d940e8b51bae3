//! Leases on events, which are renewed for as long as their handlers run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::Held;

/// Leases that are to be renewed until they are given up.
pub(crate) struct Leases {
    lease: Duration,
    held: Mutex<HashMap<Uuid, Entry>>,
    /// Cancelled when handlers are not waited for any longer.
    abandon: Mutex<CancellationToken>,
}

struct Entry {
    held: Held,
    /// By our clock, which was read before the database read its own.
    until: Instant,
    lost: CancellationToken,
}

/// A lease that is renewed until this is dropped.
pub(crate) struct Lease {
    leases: Arc<Leases>,
    held: Held,
    lost: CancellationToken,
    abandon: CancellationToken,
}

/// Why a handler is not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Somebody else may have the event.
    Lost,
    /// The worker stops, and the handler takes too long: the claim is to be given back.
    Abandoned,
}

impl Leases {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, held: Mutex::default(), abandon: Mutex::default() }
    }

    /// Keeps a claim that was made after `since`.
    pub(crate) fn keep(self: &Arc<Self>, held: Held, since: Instant) -> Lease {
        let lost = CancellationToken::new();
        let entry = Entry { held, until: since + self.lease, lost: lost.clone() };
        self.lock().insert(held.key.id, entry);
        Lease { leases: Arc::clone(self), held, lost, abandon: self.abandon().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandon(&self) -> MutexGuard<'_, CancellationToken> {
        self.abandon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order in which everybody locks records, so that no two wait for each other.
    pub(crate) fn all(&self) -> Vec<Held> {
        let mut held: Vec<Held> = self.lock().values().map(|it| it.held).collect();
        held.sort_by_key(|it| it.key);
        held
    }

    /// Those of `asked`, after `since`, that were not renewed are lost.
    pub(crate) fn renewed(&self, asked: &[Held], still_ours: &[Uuid], since: Instant) {
        let mut held = self.lock();
        for asked in asked {
            let Some(entry) = held.get_mut(&asked.key.id).filter(|it| it.held == *asked) else {
                continue;
            };
            if still_ours.contains(&asked.key.id) {
                entry.until = since + self.lease;
            } else {
                // Completed or failed meanwhile, mostly; then nobody listens any more.
                entry.lost.cancel();
            }
        }
    }

    /// Lets go of all handlers at work.
    pub(crate) fn abandon_all(&self) {
        std::mem::take(&mut *self.abandon()).cancel();
    }

    fn until(&self, held: &Held) -> Option<Instant> {
        self.lock().get(&held.key.id).filter(|it| it.held == *held).map(|it| it.until)
    }
}

impl Lease {
    /// Returns when the handler must not run any longer. It may have been renewed in vain, or not at
    /// all: the database is away, or this process was stopped for a while.
    pub(crate) async fn over(&self) -> Over {
        loop {
            let Some(until) = self.leases.until(&self.held) else { return Over::Lost };
            if until <= Instant::now() {
                return Over::Lost;
            }
            tokio::select! {
                biased;
                () = self.lost.cancelled() => return Over::Lost,
                () = self.abandon.cancelled() => return Over::Abandoned,
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.leases.lock();
        // Claimed anew meanwhile: then it is another lease.
        if held.get(&self.held.key.id).is_some_and(|it| it.held == self.held) {
            held.remove(&self.held.key.id);
        }
    }
}
