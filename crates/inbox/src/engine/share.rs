//! Which partitions of its consumer a worker has, and which it takes or gives back next.
//!
//! Each partition has a role of its own, and the lease on that (`role_lease.rs`) alone says whose it
//! is. How many of them a worker should have decides only when it takes one more, or gives one back:
//! workers that disagree about that move partitions in vain, and nothing else.
//!
//! ```text
//!            fewer than its share, one is free           ours
//!   Look ─────────────────────────────────────▶ take it ──────▶ Look
//!    │  more than its share                              drained           given back
//!    └────────────────────▶ its session ends: Standby ──────────▶ give back ─────────▶ Look
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::role_lease::{Found, Role, RoleLease, Step};

/// How soon to look again while partitions are to be taken or given back.
const LOOK: Duration = Duration::from_millis(200);

/// The longest time between two looks, each of which says that the worker is there.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// So many leases a worker that could not handle events takes no partitions.
const REST_LEASES: u32 = 5;

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Move {
    /// Of the role of this partition.
    Role(usize, Step),
    /// Renew the roles of these partitions.
    Renew(Vec<usize>),
    /// Look which workers there are, and which partitions are free, and say that this one is there;
    /// or, if it does not join, that it is not.
    Look {
        joins: bool,
    },
    /// Give this partition to whoever takes it, and say whether something is left behind in it.
    GiveBack(usize, bool),
    Wait {
        until: Instant,
    },
}

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Workers beside this one.
    pub(crate) others: usize,
    /// Those of them that do not say that they are paused.
    pub(crate) able: usize,
    /// Those of them that came before it.
    pub(crate) before: usize,
    /// Partitions that nobody has.
    pub(crate) free: Vec<usize>,
}

/// A partition that is being given back.
#[derive(Debug)]
struct Leaving {
    since: Instant,
    /// Its session has ended, and whether that left something behind.
    ended: Option<bool>,
}

/// What became of a role that was to be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// On this server.
    By(i64),
    /// It is another worker's.
    Lost,
    /// Somebody has its row locked.
    Locked,
}

/// The roles of a worker, and what it wants of them.
#[derive(Debug)]
pub(crate) struct Share {
    lease: Duration,
    roles: Vec<RoleLease>,
    /// When to look for partitions, where there are several.
    look_at: Option<Instant>,
    /// Not before that.
    looks_from: Instant,
    /// Other workers, at the last look, and those of them that do not say that they are paused.
    others: usize,
    able: usize,
    /// Until then others have the partitions, if there are any.
    rests_until: Option<Instant>,
    /// The worker can handle events.
    attends: bool,
    /// Partitions that are being given back.
    leaving: BTreeMap<usize, Leaving>,
    /// How many partitions were to be taken that others were faster with, or have locked.
    in_vain: usize,
    /// Whose turn is first, after the last role that of the share itself: none has to wait for ever
    /// for the others.
    first: usize,
}

impl Share {
    /// Of a consumer with so many partitions. One that is not divided has one, which its worker
    /// always wants.
    pub(crate) fn new(partitions: Option<usize>, lease: Duration, now: Instant) -> Self {
        let unwanted = |count| (0..count).map(|_| RoleLease::unwanted(lease, now)).collect();
        Self {
            lease,
            roles: partitions.map_or_else(|| vec![RoleLease::new(lease, now)], unwanted),
            look_at: partitions.map(|_| now),
            looks_from: now,
            others: 0,
            able: 0,
            rests_until: None,
            attends: true,
            leaving: BTreeMap::new(),
            in_vain: 0,
            first: 0,
        }
    }

    /// What the worker may do with a partition.
    pub(crate) fn role(&self, partition: usize) -> Role {
        let leaves = self.leaving.contains_key(&partition) && self.roles[partition].is_wanted();
        if leaves { Role::Leaving } else { self.roles[partition].role() }
    }

    /// The partitions whose sessions have to end, and have not.
    pub(crate) fn leaving(&self) -> Vec<usize> {
        self.leaving.iter().filter(|it| it.1.ended.is_none()).map(|it| *it.0).collect()
    }

    /// Nothing is at work on a partition that is to be given back, but what was left behind, if
    /// something was.
    pub(crate) fn drained(&mut self, partition: usize, left_behind: bool) {
        if let Some(leaving) = self.leaving.get_mut(&partition) {
            leaving.ended = Some(left_behind);
        }
    }

    /// Whether the worker can handle events: it is not to stop, and has the broker.
    pub(crate) fn attend(&mut self, attends: bool, now: Instant) {
        let rests = self.others > 0 && self.rests_until.is_some_and(|it| now < it);
        let attends = attends && !rests;
        if std::mem::replace(&mut self.attends, attends) != attends {
            self.look_at = self.look_at.map(|_| now);
        }
    }

    /// Nothing can be handled for a reason that others may not have. Says whether they get the partitions
    /// from now on.
    pub(crate) fn rest(&mut self, now: Instant) -> bool {
        let begins = self.able > 0 && self.rests_until.is_none_or(|it| it <= now);
        if begins {
            self.rests_until = Some(now + REST_LEASES * self.lease);
        }
        begins
    }

    /// How long the database may take for a step.
    pub(crate) fn patience(&self) -> Duration {
        self.roles[0].patience()
    }

    pub(crate) fn next(&mut self, now: Instant) -> Move {
        let mut until = now + LOOK_MAX;
        let turns = self.roles.len() + 1;
        for offset in 0..turns {
            let turn = (self.first + offset) % turns;
            let next = match self.roles.get(turn).map(|it| it.next(now)) {
                Some(Step::Wait { until }) => Move::Wait { until },
                Some(Step::Renew) => Move::Renew(
                    (0..self.roles.len()).filter(|it| self.roles[*it].is_ours()).collect(),
                ),
                Some(step) => Move::Role(turn, step),
                None => self.share_out(now),
            };
            let Move::Wait { until: at } = next else {
                self.first = turn + 1;
                return next;
            };
            until = until.min(at);
        }
        Move::Wait { until }
    }

    /// What comes next in giving back and looking.
    fn share_out(&mut self, now: Instant) -> Move {
        let roles = &self.roles;
        self.leaving.retain(|partition, _| roles[*partition].is_wanted());
        let kept = self.leaving.iter().filter(|it| roles[*it.0].is_kept());
        if let Some((of, left_behind)) = kept.filter_map(|it| Some((*it.0, it.1.ended?))).next() {
            return Move::GiveBack(of, left_behind);
        }
        match self.look_at {
            // Without a connection one of the roles says when to connect.
            Some(at) if at <= now && !self.roles[0].is_cut_off() => {
                Move::Look { joins: self.joins() }
            }
            Some(at) if at > now => Move::Wait { until: at },
            _ => Move::Wait { until: now + LOOK_MAX },
        }
    }

    /// One that cannot handle events leaves them to others, if there are any.
    fn joins(&self) -> bool {
        self.attends || self.others == 0
    }

    pub(crate) fn connected(&mut self, now: Instant) {
        self.roles.iter_mut().for_each(|it| it.connected(now));
        self.looks_from = now + self.roles[0].grace();
        self.look_at = self.look_at.map(|it| it.max(self.looks_from));
    }

    /// The database did not answer, or refused.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.roles.iter_mut().for_each(|it| it.failed(now));
    }

    /// Events can have records: until then nobody acts.
    pub(crate) fn prepared(&mut self) {
        self.roles.iter_mut().for_each(RoleLease::prepared);
    }

    pub(crate) fn looked_for(&mut self, partition: usize, found: Found, now: Instant) {
        self.roles[partition].looked(found, now);
    }

    pub(crate) fn taken(&mut self, partition: usize, token: Option<Uuid>, now: Instant) {
        self.in_vain += usize::from(token.is_none());
        self.roles[partition].taken(token, now);
    }

    pub(crate) fn evicted(&mut self, partition: usize, now: Instant) {
        self.roles[partition].evicted(now);
    }

    pub(crate) fn renewed(
        &mut self,
        partition: usize,
        renewed: Renewed,
        (since, now): (Instant, Instant),
    ) {
        let was_kept = self.roles[partition].is_kept();
        match renewed {
            Renewed::By(server) => self.roles[partition].renewed(Some(server), since, now),
            Renewed::Lost => self.roles[partition].renewed(None, since, now),
            Renewed::Locked => self.roles[partition].not_renewed(now),
        }
        if was_kept != self.roles[partition].is_kept() {
            // Not before the others have connected anew: what they have seems free until then.
            self.look_at = self.look_at.map(|_| now.max(self.looks_from));
        }
    }

    /// Of events of all partitions.
    pub(crate) fn claims_renewed(&mut self, now: Instant) {
        self.roles.iter_mut().for_each(|it| it.claims_renewed(now));
    }

    pub(crate) fn given_back(&mut self, partition: usize, now: Instant) {
        self.roles[partition].given_back(now);
        self.leaving.remove(&partition);
        self.look_at = Some(now);
    }

    /// Takes in what a look found, and decides what to take or to give back: one at a time, unless
    /// there is no other worker that may want it.
    pub(crate) fn looked(&mut self, seen: &Seen, now: Instant) {
        let share = self.share(seen);
        (self.others, self.able) = (seen.others, seen.able);
        let wanted: Vec<usize> =
            (0..self.roles.len()).filter(|it| self.roles[*it].is_wanted()).collect();
        let is_moving = wanted.iter().any(|it| !self.roles[*it].is_kept());
        self.look_at = Some(now + if wanted.len() == share { self.pause() } else { LOOK });
        let leaving = || Leaving { since: now, ended: None };
        if share == 0 && !self.attends {
            // Nothing is handled here: others need not wait for one after the other.
            wanted.iter().for_each(|it| _ = self.leaving.entry(*it).or_insert_with(leaving));
        }
        if is_moving {
            return;
        }
        let free: Vec<usize> =
            seen.free.iter().copied().filter(|it| !self.roles[*it].is_wanted()).collect();
        let staying: Vec<usize> =
            wanted.into_iter().filter(|it| !self.leaving.contains_key(it)).collect();
        // What takes long holds up no other.
        let drains = self.leaving.values().any(|it| now < it.since + self.lease);
        if staying.len() > share && !drains {
            self.leaving.extend(staying.last().map(|it| (*it, leaving())));
        } else if self.attends {
            let lacks = share.saturating_sub(staying.len());
            let at_once = if seen.others == 0 { lacks } else { lacks.min(1) };
            // Workers that look at the same time try for different ones, and not for the same again.
            let from = seen.before + self.in_vain;
            for turn in 0..at_once.min(free.len()) {
                self.roles[free[(from + turn) % free.len()]].want(now);
            }
        }
    }

    /// How many partitions the worker should have. Those that came first have what is left over.
    fn share(&self, seen: &Seen) -> usize {
        if !self.joins() {
            return if seen.others > 0 { 0 } else { self.roles.len() };
        }
        let (all, workers) = (self.roles.len(), seen.others + 1);
        all / workers + usize::from(seen.before < all % workers)
    }

    fn pause(&self) -> Duration {
        (self.lease / 3).min(LOOK_MAX)
    }
}

#[cfg(test)]
mod tests;
