//! The inbox's tables, each statement as a step. `postgres/store/model.rs` holds the real statements
//! against such a model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::engine::{Former, Found, Step};
use crate::record::{ClaimReply, UNFINISHED_MAX};

/// Of the role, and of events.
pub(super) const LEASE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Processing,
    Failed,
    Processed,
    Dead,
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) status: Status,
    /// The message it was begun with.
    pub(super) seq: u64,
    pub(super) attempts: u32,
    finished: u32,
    token: Option<Uuid>,
    expires_at: Instant,
    next_attempt_at: Instant,
    /// When an attempt failed first, since it was requeued if it was.
    tried_since: Option<Instant>,
    /// It was a dead letter once.
    pub(super) was_dead: bool,
    pub(super) has_letter: bool,
    pub(super) requeued: u32,
}

struct RoleRow {
    token: Uuid,
    owner: String,
    expires_at: Instant,
}

#[derive(Clone)]
pub(super) enum RoleAnswer {
    Found(Found),
    Taken(Option<Uuid>),
    Renewed(bool),
    Evicted(String),
    Done,
}

#[derive(Default)]
pub(super) struct RecordModel {
    pub(super) rows: BTreeMap<u64, Record>,
    role: Option<RoleRow>,
    /// Workers whose connections nobody has ended.
    pub(super) present: BTreeSet<String>,
    tokens: u128,
}

impl RecordModel {
    pub(super) fn token(&mut self) -> Uuid {
        self.tokens += 1;
        Uuid::from_u128(self.tokens)
    }

    pub(super) fn has_role(&self, token: Uuid) -> bool {
        self.role.as_ref().is_some_and(|it| it.token == token)
    }

    pub(super) fn release_role(&mut self, token: Uuid, now: Instant) {
        if let Some(role) = self.role.as_mut().filter(|it| it.token == token) {
            role.expires_at = now;
        }
    }

    fn look(&self, now: Instant) -> Found {
        match &self.role {
            None => Found::Free(None),
            Some(it) if it.expires_at > now && self.present.contains(&it.owner) => Found::Held,
            Some(it) => {
                let (token, owner) = (it.token, it.owner.clone());
                Found::Free(Some(Former { token, owner, unended: Vec::new() }))
            }
        }
    }

    pub(super) fn on_role(
        &mut self,
        step: &Step,
        owner: &str,
        token: Uuid,
        now: Instant,
    ) -> RoleAnswer {
        match step {
            Step::Look => RoleAnswer::Found(self.look(now)),
            Step::Take(former) => {
                if self.look(now) != Found::Free(former.clone()) {
                    return RoleAnswer::Taken(None);
                }
                let token = self.token();
                let owner = owner.to_owned();
                self.role = Some(RoleRow { token, owner, expires_at: now + LEASE });
                RoleAnswer::Taken(Some(token))
            }
            // Whoever asks for it keeps its own connection, also if it ends its former self.
            Step::Evict(former) => {
                if former != owner {
                    self.present.remove(former);
                }
                RoleAnswer::Evicted(former.clone())
            }
            Step::Renew => {
                let ours = self.role.as_mut().filter(|it| it.token == token);
                RoleAnswer::Renewed(ours.map(|it| it.expires_at = now + LEASE).is_some())
            }
            Step::Connect | Step::RenewClaims | Step::Wait { .. } => RoleAnswer::Done,
        }
    }

    /// `takes_over` says that whoever was at work on the record has been ended.
    pub(super) fn claim(
        &mut self,
        (id, seq): (u64, u64),
        (role, token): (Uuid, Uuid),
        takes_over: bool,
        now: Instant,
    ) -> ClaimReply {
        let (has_role, expires_at) = (self.has_role(role), now + LEASE);
        let Some(row) = self.rows.get_mut(&id) else {
            if !has_role {
                return ClaimReply::Contended;
            }
            let new = Record {
                status: Status::Processing,
                seq,
                attempts: 1,
                finished: 0,
                token: Some(token),
                expires_at,
                next_attempt_at: now,
                tried_since: None,
                was_dead: false,
                has_letter: false,
                requeued: 0,
            };
            self.rows.insert(id, new);
            return ClaimReply::Claimed { attempts: 1, unfinished: 1, age: None };
        };
        let is_free = match row.status {
            Status::Processed | Status::Dead => return ClaimReply::Resolved,
            Status::Failed => true,
            Status::Processing => takes_over || row.expires_at <= now,
        };
        let unfinished = row.attempts - row.finished;
        if !is_free {
            return ClaimReply::Leased { remaining: row.expires_at - now };
        }
        if !has_role {
            return ClaimReply::Contended;
        }
        if unfinished >= UNFINISHED_MAX.unsigned_abs() {
            return ClaimReply::Crashed { attempts: row.attempts };
        }
        if row.next_attempt_at > now {
            return ClaimReply::Early { remaining: row.next_attempt_at - now };
        }
        (row.status, row.token, row.expires_at) = (Status::Processing, Some(token), expires_at);
        row.attempts += 1;
        let age = row.tried_since.map(|it| now - it);
        ClaimReply::Claimed { attempts: row.attempts, unfinished: unfinished + 1, age }
    }

    /// In a transaction that is committed at once. False if there is a record.
    pub(super) fn record(&mut self, id: u64, seq: u64, now: Instant) -> bool {
        if self.rows.contains_key(&id) {
            return false;
        }
        let row = Record {
            status: Status::Processed,
            seq,
            attempts: 1,
            finished: 1,
            token: None,
            expires_at: now,
            next_attempt_at: now,
            tried_since: None,
            was_dead: false,
            has_letter: false,
            requeued: 0,
        };
        self.rows.insert(id, row);
        true
    }

    pub(super) fn ours(&mut self, id: u64, token: Uuid) -> Option<&mut Record> {
        let row = self.rows.get_mut(&id)?;
        (row.status == Status::Processing && row.token == Some(token)).then_some(row)
    }

    /// Whether the token still held.
    pub(super) fn complete(&mut self, id: u64, token: Uuid) -> bool {
        self.end(id, token, Status::Processed).is_some()
    }

    pub(super) fn fail(&mut self, id: u64, token: Uuid, now: Instant, delay: Duration) -> bool {
        let Some(row) = self.end(id, token, Status::Failed) else { return false };
        row.next_attempt_at = now + delay;
        row.tried_since.get_or_insert(now);
        true
    }

    pub(super) fn park(&mut self, id: u64, token: Uuid) -> bool {
        self.end(id, token, Status::Dead).map(Record::bury).is_some()
    }

    fn end(&mut self, id: u64, token: Uuid, status: Status) -> Option<&mut Record> {
        let row = self.ours(id, token)?;
        (row.status, row.token) = (status, None);
        row.finished += 1;
        Some(row)
    }

    pub(super) fn park_crashed(&mut self, id: u64) {
        let row = self.rows.get_mut(&id).expect("it was begun");
        assert_eq!(row.attempts - row.finished, UNFINISHED_MAX.unsigned_abs(), "{id} as crashed");
        (row.status, row.token) = (Status::Dead, None);
        row.bury();
    }

    pub(super) fn release(&mut self, id: u64, token: Uuid, now: Instant, has_failed: bool) {
        if let Some(row) = self.ours(id, token) {
            row.tried_since = row.tried_since.or(has_failed.then_some(now));
            row.attempts -= 1;
            (row.token, row.expires_at) = (None, now);
        }
    }

    pub(super) fn renew(&mut self, id: u64, token: Uuid, now: Instant) -> bool {
        self.ours(id, token).map(|it| it.expires_at = now + LEASE).is_some()
    }

    pub(super) fn requeue(&mut self, id: u64, now: Instant) {
        let row = self.rows.get_mut(&id).expect("a letter's record");
        assert_eq!(row.status, Status::Dead);
        (row.status, row.attempts, row.finished) = (Status::Failed, 0, 0);
        (row.next_attempt_at, row.tried_since) = (now, None);
        row.requeued += 1;
    }

    pub(super) fn dead(&self) -> Vec<u64> {
        let dead = self.rows.iter().filter(|(_, it)| it.status == Status::Dead);
        dead.map(|(id, _)| *id).collect()
    }

    /// Sequences of requeued letters that are due, in order.
    pub(super) fn due_letters(&mut self, now: Instant) -> Vec<u64> {
        self.rows.values_mut().for_each(|it| it.has_letter &= it.status != Status::Processed);
        let letters = self.rows.values().filter(|it| it.has_letter && it.is_due(now));
        let mut due: Vec<u64> = letters.map(|it| it.seq).collect();
        due.sort_unstable();
        due
    }

    /// Events that were begun, and that nobody has had for so long.
    pub(super) fn orphans(&self, now: Instant, overdue: Duration) -> Vec<(u64, u64)> {
        let is_orphan = |it: &Record| !it.has_letter && it.is_due(now - overdue);
        let orphans = self.rows.iter().filter(|(_, it)| is_orphan(it));
        orphans.map(|(id, it)| (*id, it.seq)).collect()
    }

    /// Whether there is nothing to be done about it, or was not for a while.
    pub(super) fn was_resolved(&self, id: u64) -> bool {
        self.rows.get(&id).is_some_and(|it| it.status == Status::Processed || it.was_dead)
    }

    pub(super) fn is_resolved(&self, id: u64) -> bool {
        let row = self.rows.get(&id);
        row.is_some_and(|it| matches!(it.status, Status::Processed | Status::Dead))
    }
}

impl Record {
    fn bury(&mut self) {
        (self.was_dead, self.has_letter) = (true, true);
    }

    fn is_due(&self, now: Instant) -> bool {
        match self.status {
            Status::Failed => self.next_attempt_at <= now,
            Status::Processing => self.expires_at <= now,
            Status::Processed | Status::Dead => false,
        }
    }
}
