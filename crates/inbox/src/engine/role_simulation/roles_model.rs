//! The inbox's table of roles, each statement as a step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rand::RngExt;
use rand::rngs::StdRng;
use uuid::Uuid;

use super::LEASE;
use crate::engine::role_lease::{Former, Found, Step};
use crate::engine::share::{Move, Renewed, Seen};

/// What the database has.
#[derive(Default)]
pub(super) struct Database {
    pub(super) rows: Vec<Option<Row>>,
    /// Workers that have said that they are there: since which look, and until when.
    pub(super) members: Vec<(usize, Instant)>,
    /// Who has connections besides the one that the roles are kept on.
    pub(super) present: BTreeSet<usize>,
    pub(super) open: Vec<Work>,
    /// Claims on their way, and statements that their worker does not wait for any longer.
    pub(super) claims: Vec<(Instant, Work)>,
    pub(super) late: Vec<(Instant, usize, Vec<Uuid>, Move)>,
    /// Partitions whose rows somebody else has locked.
    pub(super) locked: BTreeSet<usize>,
    /// When a role was taken from whoever had it under a token.
    pub(super) lost: BTreeMap<Uuid, Instant>,
    pub(super) tokens: u128,
}

/// Begun under a token, and not committed.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) owner: usize,
    pub(super) partition: usize,
    pub(super) token: Uuid,
}

pub(super) struct Row {
    pub(super) token: Uuid,
    /// `None` if it gave the role back with nothing under way.
    pub(super) owner: Option<usize>,
    pub(super) expires_at: Instant,
    /// Owners before that may not have been ended.
    unended: Vec<String>,
}

#[derive(Clone)]
pub(super) enum Answer {
    Found(Found),
    Taken(Option<Uuid>),
    Renewed(Vec<Renewed>),
    Seen(Seen),
    Done,
}

impl Database {
    pub(super) fn execute(
        &mut self,
        owner: usize,
        tokens: &[Uuid],
        next: &Move,
        now: Instant,
    ) -> Answer {
        match next {
            Move::Role(partition, step) => self.step((owner, *partition), step, now),
            Move::Renew(these) => {
                let renewed = these.iter().map(|it| self.renew(*it, tokens[*it], now));
                Answer::Renewed(renewed.collect())
            }
            Move::Look { joins } => Answer::Seen(self.look_around(owner, *joins, now)),
            Move::GiveBack(partition, left_behind) => {
                self.release(*partition, tokens[*partition], !left_behind, now);
                Answer::Done
            }
            Move::Wait { .. } => Answer::Done,
        }
    }

    /// Somebody else may have locked rows that the statement is about.
    pub(super) fn lock(&mut self, next: &Move, troubled: bool, random: &mut StdRng) {
        let all = if let Move::Renew(these) = next { these.as_slice() } else { &[] };
        self.locked =
            all.iter().copied().filter(|_| troubled && random.random_bool(0.02)).collect();
    }

    pub(super) fn has(&self, partition: usize, token: Uuid) -> bool {
        self.rows[partition].as_ref().is_some_and(|it| it.token == token)
    }

    fn renew(&mut self, partition: usize, token: Uuid, now: Instant) -> Renewed {
        let Some(row) = self.rows[partition].as_mut().filter(|row| row.token == token) else {
            return Renewed::Lost;
        };
        if self.locked.contains(&partition) {
            return Renewed::Locked;
        }
        row.expires_at = now + LEASE;
        row.unended.clear();
        Renewed::By(1)
    }

    pub(super) fn release(
        &mut self,
        partition: usize,
        token: Uuid,
        is_drained: bool,
        now: Instant,
    ) {
        if let Some(row) = self.rows[partition].as_mut().filter(|it| it.token == token) {
            let owner = row.owner.filter(|_| !is_drained);
            (row.owner, row.expires_at) = (owner, now);
        }
    }

    /// Begins work, if the role is still had under its token.
    pub(super) fn claim(&mut self, work: Work) -> bool {
        let row = self.rows[work.partition].as_ref().filter(|it| it.token == work.token);
        let Some(row) = row else { return false };
        assert_eq!(row.owner, Some(work.owner), "it begins in a partition that is another's");
        let of_others = |it: &&Work| it.partition == work.partition && it.owner != work.owner;
        let strangers = self.open.iter().filter(of_others);
        assert_eq!(strangers.count(), 0, "another worker's work may still be committed");
        self.open.push(work);
        true
    }

    /// Whether the worker has begun anything in a partition, or may have.
    pub(super) fn is_at_work(&self, owner: usize, partition: usize) -> bool {
        let claims = self.claims.iter().map(|it| &it.1);
        self.open.iter().chain(claims).any(|it| (it.owner, it.partition) == (owner, partition))
    }

    fn step(&mut self, (worker, partition): (usize, usize), step: &Step, now: Instant) -> Answer {
        let held = &mut self.rows[partition];
        match step {
            Step::Look => Answer::Found(self.look(partition, now)),
            Step::Take(former) => {
                let expected = former.as_ref().map(|it| it.token);
                let is_as_seen = held.as_ref().map(|it| it.token) == expected;
                if !is_as_seen || matches!(self.look(partition, now), Found::Held) {
                    return Answer::Taken(None);
                }
                let held = &mut self.rows[partition];
                self.lost.extend(held.as_ref().map(|it| (it.token, now)));
                self.tokens += 1;
                let token = Uuid::from_u128(self.tokens);
                // As `take_role` has it: whoever dies now leaves them to the next one.
                let unended = match held.take() {
                    Some(Row { owner, mut unended, .. }) => {
                        unended.extend(owner.map(|it| it.to_string()));
                        unended
                    }
                    None => Vec::new(),
                };
                let (owner, expires_at) = (Some(worker), now + LEASE);
                *held = Some(Row { token, owner, expires_at, unended });
                Answer::Taken(Some(token))
            }
            Step::Evict(owner) => {
                self.end(owner.parse().expect("a worker's number"));
                Answer::Done
            }
            Step::Connect | Step::Renew | Step::RenewClaims | Step::Wait { .. } => Answer::Done,
        }
    }

    fn look(&self, partition: usize, now: Instant) -> Found {
        let Some(row) = &self.rows[partition] else { return Found::Free(None) };
        if row.expires_at > now && row.owner.is_some_and(|it| self.present.contains(&it)) {
            return Found::Held;
        }
        let owner = row.owner.map(|it| it.to_string()).unwrap_or_default();
        Found::Free(Some(Former { token: row.token, owner, unended: row.unended.clone() }))
    }

    fn look_around(&mut self, owner: usize, joins: bool, now: Instant) -> Seen {
        // The connection that this comes on.
        self.present.insert(owner);
        let present = &self.present;
        self.members.retain(|it| {
            it.0 == owner && joins || it.0 != owner && it.1 > now && present.contains(&it.0)
        });
        match self.members.iter_mut().find(|it| it.0 == owner) {
            Some(own) => own.1 = now + LEASE,
            None if joins => self.members.push((owner, now + LEASE)),
            None => {}
        }
        let place = self.members.iter().position(|it| it.0 == owner);
        let is_free = |it: &usize| matches!(self.look(*it, now), Found::Free(_));
        Seen {
            others: self.members.len() - usize::from(joins),
            able: self.members.len() - usize::from(joins),
            before: place.unwrap_or(0),
            free: (0..self.rows.len()).filter(is_free).collect(),
        }
    }

    pub(super) fn end(&mut self, owner: usize) {
        self.open.retain(|it| it.owner != owner);
        self.claims.retain(|it| it.1.owner != owner);
        self.late.retain(|it| it.1 != owner);
        self.present.remove(&owner);
    }
}
