//! Leases on events, which are renewed for as long as their handlers run: when is decided in
//! `engine/role_lease.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout_at;
use uuid::Uuid;

use crate::record::Claim;
use crate::tally::Tally;

/// Leases that are to be renewed until they are given up: of all partitions, by one statement.
pub(crate) struct Leases {
    lease: Duration,
    claims: Mutex<HashMap<Uuid, Entry>>,
    /// Some are lost or abandoned: all look at theirs.
    ended: watch::Sender<()>,
    tally: Arc<Tally>,
}

struct Entry {
    claim: Claim,
    partition: u32,
    /// By our clock, which was read before the database read its own.
    until: Instant,
    over: Option<Over>,
}

/// A lease that is renewed until this is dropped.
pub(crate) struct Lease {
    leases: Arc<Leases>,
    claim: Claim,
    ended: watch::Receiver<()>,
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
        Self { lease, claims: Mutex::default(), ended: watch::Sender::default(), tally }
    }

    /// Keeps a claim of an event of this partition that was made after `since`.
    pub(crate) fn keep(self: &Arc<Self>, claim: Claim, partition: u32, since: Instant) -> Lease {
        let ended = self.ended.subscribe();
        let entry = Entry { claim, partition, until: since + self.lease, over: None };
        self.lock().insert(claim.key.id, entry);
        Lease { leases: Arc::clone(self), claim, ended }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the order in which everybody locks records, so that no two wait for each other.
    pub(crate) fn all(&self) -> Vec<Claim> {
        let mut claims: Vec<Claim> = self.lock().values().map(|it| it.claim).collect();
        claims.sort_by_key(|it| it.key);
        claims
    }

    /// Those of `asked`, after `since`, that are not among those that are still ours are lost. Of the
    /// others it is said whether they were extended.
    pub(crate) fn renewed(&self, asked: &[Claim], still_ours: &[(Uuid, bool)], since: Instant) {
        let still_ours: HashMap<Uuid, bool> = still_ours.iter().copied().collect();
        let mut claims = self.lock();
        for asked in asked {
            let Some(entry) = claims.get_mut(&asked.key.id).filter(|it| it.claim == *asked) else {
                continue;
            };
            match still_ours.get(&asked.key.id) {
                Some(true) => {
                    entry.until = since + self.lease;
                    self.tally.renewed(1);
                }
                // Somebody has its record locked.
                Some(false) => {}
                // Completed or failed meanwhile, mostly; then nobody listens any more.
                None => entry.over = Some(Over::Lost),
            }
        }
        drop(claims);
        self.ended.send_replace(());
    }

    /// Lets go of all handlers at work on events of a partition.
    pub(crate) fn abandon(&self, partition: u32) {
        for it in self.lock().values_mut().filter(|it| it.partition == partition) {
            it.over.get_or_insert(Over::Abandoned);
        }
        self.ended.send_replace(());
    }

    /// Until when it is ours, or why it is not.
    fn look(&self, claim: &Claim) -> Result<Instant, Over> {
        match self.lock().get(&claim.key.id).filter(|it| it.claim == *claim) {
            Some(Entry { over: Some(over), .. }) => Err(*over),
            Some(Entry { until, .. }) if *until > Instant::now() => Ok(*until),
            Some(_) | None => Err(Over::Lost),
        }
    }
}

impl Lease {
    /// Returns when the handler must not run any longer. It may have been renewed in vain, or not at
    /// all: the database is away, or this process was stopped for a while.
    pub(crate) async fn over(&mut self) -> Over {
        loop {
            self.ended.mark_unchanged();
            let until = match self.leases.look(&self.claim) {
                Ok(until) => until,
                Err(over) => return over,
            };
            // Fails only without the leases, which it has.
            let _ = timeout_at(until.into(), self.ended.changed()).await;
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
