//! Claims in hand: rows that this node alone may publish, for now.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::engine::Settled;
use crate::error::Error;
use crate::postgres::Store;

/// After so long without a word from us the server ends a claim.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// How often we say a word.
const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// A claim this old may be somebody else's soon: nothing of it is sent any more.
const RELIED_ON: Duration = Duration::from_secs(20);

/// A batch of claimed rows, and the connection whose transaction holds them.
pub(super) struct Claim {
    number: u32,
    store: Arc<Store>,
    ids: Vec<Uuid>,
    settled: Vec<Settled>,
    /// When the last statement was sent that the server has answered.
    heard: Instant,
    is_renewing: bool,
}

/// The oldest first.
#[derive(Default)]
pub(super) struct Claims {
    claims: VecDeque<Claim>,
    begun: u32,
}

impl Claims {
    pub(super) fn len(&self) -> usize {
        self.claims.len()
    }

    /// Takes a claim in that was asked for at `asked`; returns its number.
    pub(super) fn add(&mut self, store: Arc<Store>, ids: Vec<Uuid>, asked: Instant) -> u32 {
        self.begun += 1;
        let (number, settled) = (self.begun, Vec::new());
        let claim = Claim { number, store, ids, settled, heard: asked, is_renewing: false };
        self.claims.push_back(claim);
        number
    }

    pub(super) fn settled(&mut self, number: u32, settled: Settled) {
        if let Some(claim) = self.claims.iter_mut().find(|it| it.number == number) {
            claim.settled.push(settled);
        }
    }

    /// The connection that holds a row's lock: nobody else could touch it.
    pub(super) fn holder(&self, id: Uuid) -> Result<Arc<Store>, Error> {
        let claim = self.claims.iter().find(|it| it.ids.contains(&id));
        let store = claim.map(|it| Arc::clone(&it.store));
        store.ok_or(Error::Stalled("an event belongs to no claim"))
    }

    /// Whether all that is in hand is surely ours.
    pub(super) fn are_ours(&self) -> bool {
        self.claims.iter().all(|it| it.heard.elapsed() < RELIED_ON)
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.claims.iter().any(|it| it.store.client().is_closed())
    }

    /// Those that are to be renewed now.
    pub(super) fn due(&mut self) -> Vec<(u32, Arc<Store>)> {
        let due = self
            .claims
            .iter_mut()
            .filter(|it| !it.is_renewing && it.heard.elapsed() >= RENEWED_EVERY);
        due.map(|it| {
            it.is_renewing = true;
            (it.number, Arc::clone(&it.store))
        })
        .collect()
    }

    /// The server has answered what was sent at `asked`.
    pub(super) fn renewed(&mut self, number: u32, asked: Instant) {
        if let Some(claim) = self.claims.iter_mut().find(|it| it.number == number) {
            (claim.heard, claim.is_renewing) = (asked, false);
        }
    }

    /// Takes the oldest out: its connection, and what is to be marked.
    pub(super) fn pop(&mut self) -> Option<(Arc<Store>, Vec<Settled>)> {
        self.claims.pop_front().map(|it| (it.store, it.settled))
    }
}
