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
    /// Look which workers there are, and which partitions are free, and say that this one is there;
    /// or, if it does not join, that it is not.
    Look {
        joins: bool,
    },
    /// Give this partition to whoever takes it.
    GiveBack(usize),
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
    /// Nothing is at work on it any more.
    is_drained: bool,
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
        self.leaving.iter().filter(|it| !it.1.is_drained).map(|it| *it.0).collect()
    }

    /// Nothing is at work on a partition that is to be given back.
    pub(crate) fn drained(&mut self, partition: usize) {
        if let Some(leaving) = self.leaving.get_mut(&partition) {
            leaving.is_drained = true;
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
        let is_ready = |it: &(&usize, &Leaving)| it.1.is_drained && roles[*it.0].is_kept();
        if let Some((partition, _)) = self.leaving.iter().find(is_ready) {
            return Move::GiveBack(*partition);
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
        self.roles[partition].taken(token, now);
    }

    pub(crate) fn evicted(&mut self, partition: usize, now: Instant) {
        self.roles[partition].evicted(now);
    }

    pub(crate) fn renewed(
        &mut self,
        partition: usize,
        server: Option<i64>,
        (since, now): (Instant, Instant),
    ) {
        let was_kept = self.roles[partition].is_kept();
        self.roles[partition].renewed(server, since, now);
        if was_kept != self.roles[partition].is_kept() {
            // Not before the others have connected anew: what they have seems free until then.
            self.look_at = self.look_at.map(|_| now.max(self.looks_from));
        }
    }

    pub(crate) fn claims_renewed(&mut self, partition: usize, now: Instant) {
        self.roles[partition].claims_renewed(now);
    }

    pub(crate) fn given_back(&mut self, partition: usize, now: Instant) {
        self.roles[partition].given_back(now);
        self.leaving.remove(&partition);
        self.look_at = Some(now);
    }

    /// Takes in what a look found, and decides what to take or to give back, one at a time.
    pub(crate) fn looked(&mut self, seen: &Seen, now: Instant) {
        let share = self.share(seen);
        (self.others, self.able) = (seen.others, seen.able);
        let wanted: Vec<usize> =
            (0..self.roles.len()).filter(|it| self.roles[*it].is_wanted()).collect();
        let is_moving = wanted.iter().any(|it| !self.roles[*it].is_kept());
        self.look_at = Some(now + if wanted.len() == share { self.pause() } else { LOOK });
        let leaving = || Leaving { since: now, is_drained: false };
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
        } else if staying.len() < share && self.attends && !free.is_empty() {
            // Workers that look at the same time try for different ones.
            self.roles[free[seen.before % free.len()]].want(now);
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
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn seen(others: usize, before: usize, free: &[usize]) -> Seen {
        Seen { others, able: others, before, free: free.to_vec() }
    }

    /// Does what comes next until nothing is due but a look, as a database would where nobody has a
    /// role.
    fn settle(share: &mut Share, now: Instant) {
        let mut before = None;
        loop {
            let next = share.next(now);
            if before.replace(next.clone()) == Some(next.clone()) {
                return;
            }
            match next {
                Move::Role(_, Step::Connect) => share.connected(now),
                Move::Role(of, Step::Look) => share.looked_for(of, Found::Free(None), now),
                Move::Role(of, Step::Take(_)) => share.taken(of, Some(Uuid::from_u128(1)), now),
                Move::Role(of, Step::Renew) => share.renewed(of, Some(1), (now, now)),
                Move::Role(of, Step::RenewClaims) => share.claims_renewed(of, now),
                Move::Look { .. } | Move::GiveBack(_) => {}
                Move::Wait { .. } => return,
                other @ Move::Role(..) => panic!("{other:?}"),
            }
        }
    }

    fn kept(share: &Share) -> Vec<usize> {
        (0..share.roles.len()).filter(|it| share.roles[*it].is_kept()).collect()
    }

    fn alone_with_four(now: Instant) -> Share {
        let mut share = Share::new(Some(4), LEASE, now);
        share.prepared();
        settle(&mut share, now);
        for (free, had) in [(&[0, 1, 2, 3][..], 1), (&[1, 2, 3], 2), (&[2, 3], 3), (&[3], 4)] {
            assert_eq!(share.next(now), Move::Look { joins: true });
            share.looked(&seen(0, 0, free), now);
            settle(&mut share, now);
            assert_eq!(kept(&share).len(), had, "one at a time");
        }
        share
    }

    #[test]
    fn who_is_alone_takes_all_one_by_one_and_gives_the_second_worker_half_of_them() {
        let now = Instant::now();
        let mut share = alone_with_four(now);
        for left in [3, 2] {
            share.looked(&seen(1, 0, &[]), now);
            assert_eq!(share.role(left), Role::Leaving, "its session ends");
            assert!(matches!(share.next(now), Move::Wait { .. }), "it is not drained");
            share.drained(left);
            assert_eq!(share.next(now), Move::GiveBack(left));
            share.given_back(left, now);
            assert_eq!(share.next(now), Move::Look { joins: true });
        }
        share.looked(&seen(1, 0, &[]), now);
        assert_eq!((kept(&share), share.leaving()), (vec![0, 1], vec![]));
    }

    #[test]
    fn what_is_left_over_is_of_those_who_came_first() {
        let share = Share::new(Some(7), LEASE, Instant::now());
        let of = |before| share.share(&seen(2, before, &[]));
        assert_eq!([of(0), of(1), of(2)], [3, 2, 2]);
        assert_eq!(share.share(&seen(9, 8, &[])), 0, "more workers than partitions");
    }

    #[test]
    fn who_has_no_broker_leaves_all_to_others_if_there_are_any() {
        let now = Instant::now();
        let mut share = alone_with_four(now);
        share.attend(false, now);
        assert_eq!(share.next(now), Move::Look { joins: true }, "nobody else is there");
        share.looked(&seen(0, 0, &[]), now);
        assert_eq!((kept(&share).len(), share.leaving()), (4, vec![]));
        share.looked(&seen(1, 0, &[]), now);
        assert_eq!(share.leaving(), [3], "it may have been about to stop");
        share.drained(3);
        share.given_back(3, now);
        assert_eq!(share.next(now), Move::Look { joins: false });
        share.looked(&seen(1, 0, &[]), now);
        assert_eq!(share.leaving(), [0, 1, 2]);
    }

    #[test]
    fn who_cannot_handle_events_leaves_them_for_a_while_to_others_that_can() {
        let now = Instant::now();
        let mut share = alone_with_four(now);
        assert!(!share.rest(now), "nobody else is there");
        share.looked(&Seen { able: 0, ..seen(1, 0, &[]) }, now);
        assert!(!share.rest(now), "the other one cannot either");
        share.looked(&seen(1, 0, &[]), now);
        assert!(share.rest(now) && !share.rest(now), "once");
        share.attend(true, now);
        share.drained(3);
        share.given_back(3, now);
        assert_eq!(share.next(now), Move::Look { joins: false });
        share.looked(&seen(1, 0, &[]), now);
        assert_eq!(share.leaving(), [0, 1, 2]);
        let later = now + 5 * LEASE;
        share.attend(true, later);
        assert!(share.joins(), "it may be mended");
        assert!(share.rest(later), "it is not");
        share.attend(true, later);
        assert!(!share.joins());
        share.looked(&seen(0, 0, &[]), later);
        share.attend(true, later);
        assert!(share.attends, "nobody else is there any more");
    }

    #[test]
    fn a_partition_that_somebody_else_was_faster_with_is_not_waited_for() {
        let now = Instant::now();
        let mut share = Share::new(Some(2), LEASE, now);
        settle(&mut share, now);
        share.looked(&seen(0, 0, &[0, 1]), now);
        assert_eq!(share.next(now), Move::Role(0, Step::Look));
        share.looked_for(0, Found::Held, now);
        settle(&mut share, now);
        assert!(kept(&share).is_empty() && !share.roles[0].is_wanted());
    }

    /// Its handlers do not end.
    #[test]
    fn a_partition_that_is_not_drained_holds_up_no_other() {
        let now = Instant::now();
        let mut share = alone_with_four(now);
        share.looked(&seen(1, 0, &[]), now);
        share.looked(&seen(3, 0, &[]), now);
        assert_eq!(share.leaving(), [3], "one at a time");
        let later = now + LEASE;
        share.looked(&seen(3, 0, &[]), later);
        assert_eq!(share.leaving(), [2, 3]);
        settle(&mut share, later);
        share.drained(2);
        assert_eq!(share.next(later), Move::GiveBack(2));
        share.given_back(2, later);
        share.looked(&seen(0, 0, &[2]), later);
        settle(&mut share, later);
        assert_eq!((kept(&share).len(), share.leaving()), (4, vec![3]), "all others are gone");
    }

    /// It has lost its connections, as all have, and is the first one that is back.
    #[test]
    fn who_is_back_after_an_outage_waits_for_the_others() {
        let now = Instant::now();
        let mut share = alone_with_four(now);
        share.failed(now);
        share.connected(now);
        settle(&mut share, now);
        let back = now + Duration::from_secs(2);
        assert_eq!(share.next(back - Duration::from_millis(1)), Move::Role(0, Step::Renew));
        settle(&mut share, back - Duration::from_millis(1));
        assert_eq!(share.next(back - Duration::from_millis(1)), Move::Wait { until: back });
        assert_eq!(share.next(back), Move::Look { joins: true });
    }

    #[test]
    fn one_that_was_lost_while_it_was_to_be_given_back_is_no_longer() {
        let now = Instant::now();
        let mut share = alone_with_four(now);
        share.looked(&seen(1, 0, &[]), now);
        share.renewed(3, None, (now, now));
        settle(&mut share, now);
        assert_eq!((kept(&share), share.leaving()), (vec![0, 1, 2], vec![]));
    }

    /// Each statement takes so long that the renewals alone fill the time.
    #[test]
    fn who_has_many_partitions_and_a_slow_database_says_all_the_same_that_it_is_there() {
        const STATEMENT: Duration = Duration::from_millis(20);
        let (began, lease) = (Instant::now(), Duration::from_secs(30));
        let mut now = began;
        let mut share = Share::new(Some(64), lease, now);
        share.prepared();
        let mut looked = Vec::new();
        while kept(&share).len() < 64 || looked.len() < 200 {
            let last = looked.last().copied().unwrap_or(began);
            assert!(now - last < lease / 2, "it looks no more: {} are kept", kept(&share).len());
            let next = share.next(now);
            now += STATEMENT;
            match next {
                Move::Role(_, Step::Connect) => share.connected(now),
                Move::Role(of, Step::Look) => share.looked_for(of, Found::Free(None), now),
                Move::Role(of, Step::Take(_)) => share.taken(of, Some(Uuid::new_v4()), now),
                Move::Role(of, Step::Renew) => share.renewed(of, Some(1), (now - STATEMENT, now)),
                Move::Role(of, Step::RenewClaims) => {
                    // Of none there is nothing to ask.
                    now -= if share.roles[of].is_kept() { Duration::ZERO } else { STATEMENT };
                    share.claims_renewed(of, now);
                }
                Move::Look { .. } => {
                    looked.push(now);
                    let free: Vec<usize> =
                        (0..64).filter(|it| !share.roles[*it].is_wanted()).collect();
                    share.looked(&seen(0, 0, &free), now);
                }
                Move::Wait { until } => now = until,
                other @ (Move::Role(..) | Move::GiveBack(_)) => panic!("{other:?}"),
            }
        }
    }
}
