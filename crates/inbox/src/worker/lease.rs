//! Leases on events, which are renewed for as long as their handlers run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::record::Claim;
use crate::tally::Tally;

/// Leases that are to be renewed until they are given up.
pub(crate) struct Leases {
    lease: Duration,
    claims: Mutex<HashMap<Uuid, Entry>>,
    /// Cancelled when handlers are not waited for any longer.
    abandon: Mutex<CancellationToken>,
    tally: Arc<Tally>,
}

struct Entry {
    claim: Claim,
    /// By our clock, which was read before the database read its own.
    until: Instant,
    lost: CancellationToken,
}

/// A lease that is renewed until this is dropped.
pub(crate) struct Lease {
    leases: Arc<Leases>,
    claim: Claim,
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
    pub(crate) fn new(lease: Duration, tally: Arc<Tally>) -> Self {
        Self { lease, claims: Mutex::default(), abandon: Mutex::default(), tally }
    }

    /// Keeps a claim that was made after `since`.
    pub(crate) fn keep(self: &Arc<Self>, claim: Claim, since: Instant) -> Lease {
        let lost = CancellationToken::new();
        let entry = Entry { claim, until: since + self.lease, lost: lost.clone() };
        self.lock().insert(claim.key.id, entry);
        Lease { leases: Arc::clone(self), claim, lost, abandon: self.abandon().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandon(&self) -> MutexGuard<'_, CancellationToken> {
        self.abandon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order in which everybody locks records, so that no two wait for each other.
    pub(crate) fn all(&self) -> Vec<Claim> {
        let mut claims: Vec<Claim> = self.lock().values().map(|it| it.claim).collect();
        claims.sort_by_key(|it| it.key);
        claims
    }

    /// Those of `asked`, after `since`, that were not renewed are lost.
    pub(crate) fn renewed(&self, asked: &[Claim], still_ours: &[Uuid], since: Instant) {
        let mut claims = self.lock();
        for asked in asked {
            let Some(entry) = claims.get_mut(&asked.key.id).filter(|it| it.claim == *asked) else {
                continue;
            };
            if still_ours.contains(&asked.key.id) {
                entry.until = since + self.lease;
                self.tally.renewed(1);
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

    fn until(&self, claim: &Claim) -> Option<Instant> {
        self.lock().get(&claim.key.id).filter(|it| it.claim == *claim).map(|it| it.until)
    }
}

impl Lease {
    /// Returns when the handler must not run any longer. It may have been renewed in vain, or not at
    /// all: the database is away, or this process was stopped for a while.
    pub(crate) async fn over(&self) -> Over {
        loop {
            let Some(until) = self.leases.until(&self.claim) else { return Over::Lost };
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
        let mut claims = self.leases.lock();
        // Claimed anew meanwhile: then it is another lease.
        if claims.get(&self.claim.key.id).is_some_and(|it| it.claim == self.claim) {
            claims.remove(&self.claim.key.id);
        }
    }
}
