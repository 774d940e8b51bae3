//! Four workers and the roles of a consumer, one or one for each partition: statements that are late,
//! lost, or answered to nobody, connections that break, processes that are stopped and go on, are
//! killed, leave and join, and lose the broker. 10 seeds of each; `SEEDS=n` plays more;
//! `REPLAY_SEED=n` repeats one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lab::seeds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::role_lease::{Former, Found, Role, Step, Term};
use super::share::{Move, Seen, Share};

const SEEDS: u64 = 10;
const WORKERS: usize = 4;
const LEASE_MILLIS: u64 = 3_000;
const LEASE: Duration = Duration::from_millis(LEASE_MILLIS);
const TICK: Duration = Duration::from_millis(20);

/// Ticks with trouble, and then without.
const TROUBLED: u32 = 3_000;
const QUIET: u32 = 1_000;
const TWO_LEASES: u32 = 300;

/// What the database has.
struct Database {
    rows: Vec<Option<Row>>,
    /// Workers that have said that they are there: since which look, and until when.
    members: Vec<(usize, Instant)>,
    /// Who has connections besides the one that the roles are kept on.
    present: BTreeSet<usize>,
    open: Vec<Work>,
    tokens: u128,
}

/// Begun under a token, and not committed.
struct Work {
    owner: usize,
    partition: usize,
    token: Uuid,
}

struct Row {
    token: Uuid,
    /// `None` if it gave the role back with nothing under way.
    owner: Option<usize>,
    expires_at: Instant,
    /// Owners before that may not have been ended.
    unended: Vec<String>,
}

/// A statement on its way.
struct Asked {
    next: Move,
    since: Instant,
    /// When the database does it, unless it never arrives.
    done_at: Option<Instant>,
    answered_at: Instant,
    answer: Option<Answer>,
}

#[derive(Clone)]
enum Answer {
    Found(Found),
    Taken(Option<Uuid>),
    Renewed(Option<i64>),
    Seen(Seen),
    Done,
}

struct Worker {
    owner: usize,
    share: Share,
    /// As the statements carry them.
    tokens: Vec<Uuid>,
    asked: Option<Asked>,
    stopped_until: Instant,
    without_broker_until: Instant,
    leaves: bool,
    /// The terms in which its sessions began.
    sessions: Vec<Option<Term>>,
}

struct World {
    random: StdRng,
    now: Instant,
    partitions: Option<usize>,
    database: Database,
    workers: Vec<Worker>,
    owners: usize,
    troubled: bool,
    begun: u32,
    taken: u32,
}

impl Database {
    fn execute(&mut self, owner: usize, token: Uuid, next: &Move, now: Instant) -> Answer {
        match next {
            Move::Role(partition, step) => self.step((owner, *partition), token, step, now),
            Move::Look { joins } => Answer::Seen(self.look_around(owner, *joins, now)),
            Move::GiveBack(partition) => {
                if let Some(row) = self.rows[*partition].as_mut().filter(|it| it.token == token) {
                    (row.owner, row.expires_at) = (None, now);
                }
                Answer::Done
            }
            Move::Wait { .. } => Answer::Done,
        }
    }

    fn step(
        &mut self,
        (worker, partition): (usize, usize),
        token: Uuid,
        step: &Step,
        now: Instant,
    ) -> Answer {
        let held = &mut self.rows[partition];
        match step {
            Step::Look => Answer::Found(self.look(partition, now)),
            Step::Take(former) => {
                let expected = former.as_ref().map(|it| it.token);
                if held.as_ref().map(|it| it.token) != expected {
                    return Answer::Taken(None);
                }
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
            Step::Renew => match held.as_mut().filter(|row| row.token == token) {
                Some(row) => {
                    row.expires_at = now + LEASE;
                    row.unended.clear();
                    Answer::Renewed(Some(1))
                }
                None => Answer::Renewed(None),
            },
            Step::Connect | Step::RenewClaims | Step::Wait { .. } => Answer::Done,
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
            before: place.unwrap_or(0),
            free: (0..self.rows.len()).filter(is_free).collect(),
        }
    }

    fn end(&mut self, owner: usize) {
        self.open.retain(|it| it.owner != owner);
        self.present.remove(&owner);
    }
}

impl World {
    fn new(seed: u64, partitions: Option<usize>) -> Self {
        let count = partitions.unwrap_or(1);
        let database = Database {
            rows: (0..count).map(|_| None).collect(),
            members: Vec::new(),
            present: BTreeSet::new(),
            open: Vec::new(),
            tokens: 0,
        };
        let random = StdRng::seed_from_u64(seed);
        let (now, workers) = (Instant::now(), Vec::new());
        let (owners, troubled, begun, taken) = (0, true, 0, 0);
        let mut world =
            Self { random, now, partitions, database, workers, owners, troubled, begun, taken };
        for _ in 0..WORKERS {
            let worker = world.worker();
            world.workers.push(worker);
        }
        world
    }

    /// A process that has just begun.
    fn worker(&mut self) -> Worker {
        self.owners += 1;
        self.database.present.insert(self.owners);
        let count = self.partitions.unwrap_or(1);
        Worker {
            owner: self.owners,
            share: Share::new(self.partitions, LEASE, self.now),
            tokens: vec![Uuid::nil(); count],
            asked: None,
            stopped_until: self.now,
            without_broker_until: self.now,
            leaves: false,
            sessions: vec![None; count],
        }
    }

    fn play(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        for index in 0..WORKERS {
            self.deliver(index);
            if self.troubled {
                self.trouble(index);
            }
            let worker = &mut self.workers[index];
            if worker.stopped_until <= self.now {
                let attends = !worker.leaves && worker.without_broker_until <= self.now;
                worker.share.attend(attends, self.now);
                self.hear(index);
                self.ask(index);
                for partition in 0..self.database.rows.len() {
                    self.act(index, partition);
                }
                self.leave(index);
            }
        }
    }

    /// The database does what has arrived, whether the worker is stopped or not.
    fn deliver(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(asked) = worker.asked.as_mut() else { return };
        if asked.done_at.is_some_and(|at| at <= self.now) {
            asked.done_at = None;
            let token = match &asked.next {
                Move::Role(partition, _) | Move::GiveBack(partition) => worker.tokens[*partition],
                Move::Look { .. } | Move::Wait { .. } => Uuid::nil(),
            };
            asked.answer = Some(self.database.execute(worker.owner, token, &asked.next, self.now));
        }
    }

    fn trouble(&mut self, index: usize) {
        let soon = Duration::from_millis(self.random.random_range(0..3 * LEASE_MILLIS));
        match self.random.random_range(0..2_000) {
            0..4 => self.workers[index].stopped_until = self.now + soon,
            // Its connections break, all but the one that it notices last.
            4..8 => self.database.end(self.workers[index].owner),
            8..10 => self.kill(index, soon),
            10..12 => self.workers[index].without_broker_until = self.now + 2 * soon,
            12..14 => self.workers[index].leaves = true,
            _ => {}
        }
    }

    /// The process ends, and another one begins some time later.
    fn kill(&mut self, index: usize, pause: Duration) {
        self.database.end(self.workers[index].owner);
        self.workers[index] = self.worker();
        self.workers[index].stopped_until = self.now + pause;
    }

    /// A process that is to stop ends once all sessions have, and gives up what it still has.
    fn leave(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if !worker.leaves || worker.sessions.iter().any(Option::is_some) {
            return;
        }
        let owner = worker.owner;
        if self.database.open.iter().any(|it| it.owner == owner) {
            return;
        }
        for row in self.database.rows.iter_mut().flatten() {
            if worker.tokens.contains(&row.token) {
                row.expires_at = self.now;
            }
        }
        self.database.members.retain(|it| it.0 != owner);
        self.kill(index, LEASE);
    }

    /// An answer arrives, or is not waited for any longer.
    fn hear(&mut self, index: usize) {
        let now = self.now;
        let worker = &mut self.workers[index];
        let share = &mut worker.share;
        let Some(asked) = &worker.asked else { return };
        if asked.answered_at > now || asked.answer.is_none() {
            if asked.since + share.patience() <= now {
                share.failed(now);
                worker.asked = None;
            }
            return;
        }
        let Some(Asked { next, since, answer: Some(answer), .. }) = worker.asked.take() else {
            return;
        };
        match (next, answer) {
            (Move::Role(_, Step::Connect), _) => {
                self.database.present.insert(worker.owner);
                share.connected(now);
            }
            (Move::Role(of, Step::RenewClaims), _) => share.claims_renewed(of, now),
            (Move::Role(of, Step::Evict(_)), _) => share.evicted(of, now),
            (Move::Role(of, _), Answer::Found(found)) => share.looked_for(of, found, now),
            (Move::Role(of, _), Answer::Taken(token)) => {
                worker.tokens[of] = token.unwrap_or(worker.tokens[of]);
                self.taken += u32::from(token.is_some());
                share.taken(of, token, now);
            }
            (Move::Role(of, _), Answer::Renewed(server)) => share.renewed(of, server, (since, now)),
            (Move::Look { .. }, Answer::Seen(seen)) => share.looked(&seen, now),
            (Move::GiveBack(of), _) => share.given_back(of, now),
            (next, _) => unreachable!("{next:?} has another answer"),
        }
    }

    fn ask(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if worker.asked.is_some() {
            return;
        }
        worker.share.prepared();
        for leaving in worker.share.leaving() {
            let is_of_it = |it: &&Work| (it.owner, it.partition) == (worker.owner, leaving);
            let open = self.database.open.iter().find(is_of_it);
            if worker.sessions[leaving].is_none() && open.is_none() {
                worker.share.drained(leaving);
            }
        }
        let next = worker.share.next(self.now);
        if matches!(next, Move::Wait { .. }) {
            return;
        }
        let slow = self.troubled && self.random.random_bool(0.1);
        let most = if slow { 2 * LEASE_MILLIS } else { 50 };
        let done = self.now + Duration::from_millis(self.random.random_range(0..most));
        let lost = self.troubled && self.random.random_bool(0.05);
        worker.asked = Some(Asked {
            next,
            since: self.now,
            done_at: (!lost).then_some(done),
            answered_at: done + Duration::from_millis(self.random.random_range(0..most)),
            answer: None,
        });
    }

    /// Begins and ends work, as the session of a partition does, under the token.
    fn act(&mut self, index: usize, partition: usize) {
        let worker = &mut self.workers[index];
        let owner = worker.owner;
        if self.random.random_bool(0.05) {
            self.database.open.retain(|it| (it.owner, it.partition) != (owner, partition));
        }
        // It has other things to do: what became of the role meanwhile it does not see.
        if self.random.random_bool(0.9) {
            return;
        }
        let (role, token) = (worker.share.role(partition), worker.tokens[partition]);
        worker.sessions[partition] = worker.sessions[partition].filter(|term| match role {
            Role::Active { term: now, .. } => now == *term,
            Role::Standby => false,
            Role::Unknown => true,
        });
        if worker.leaves {
            worker.sessions[partition] = None;
            return;
        }
        let Role::Active { term, until } = role else { return };
        // Before another session begins the last one's handlers have ended.
        let open = |it: &&Work| it.partition == partition;
        let is_left = |it: &Work| it.owner == owner && it.token != token;
        if until <= self.now || self.database.open.iter().filter(open).any(is_left) {
            return;
        }
        let began = *worker.sessions[partition].get_or_insert(term);
        assert_eq!(began.token, token, "it does not see that the role was lost since it began");
        let row = self.database.rows[partition].as_ref().filter(|row| row.token == token);
        let Some(row) = row else { return };
        assert!(until <= row.expires_at, "it believes in its lease for longer than the database");
        let strangers = self.database.open.iter().filter(open).filter(|it| it.owner != owner);
        assert_eq!(strangers.count(), 0, "another worker's work may still be committed");
        self.database.present.insert(owner);
        self.database.open.push(Work { owner, partition, token });
        self.begun += 1;
    }

    /// How many partitions each worker is active in.
    fn active(&self) -> Vec<usize> {
        let is_active = |worker: &Worker, of: usize| matches!(worker.share.role(of), Role::Active { until, .. } if self.now < until);
        let count =
            |it: &Worker| (0..self.database.rows.len()).filter(|of| is_active(it, *of)).count();
        self.workers.iter().map(count).collect()
    }
}

// proves: G-EFFECT-3, G-EFFECT-6
#[test]
fn never_two_workers_act_and_in_the_end_one_does() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, None);
        world.play(TROUBLED);
        world.troubled = false;
        world.play(QUIET);
        assert_eq!(world.active().iter().sum::<usize>(), 1, "one has the role");
        assert!(world.begun > 0, "somebody was at work");
    }
}

// proves: G-EFFECT-3, G-EFFECT-6
#[test]
fn never_two_workers_act_in_a_partition_and_in_the_end_all_are_shared_out() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, Some(6));
        world.play(TROUBLED);
        world.troubled = false;
        // Some may be stopped for three leases yet, or without the broker for six.
        world.play(6 * TWO_LEASES);
        let mut shares = world.active();
        shares.sort_unstable();
        assert_eq!(shares, [1, 1, 2, 2], "each has its share");
        let taken = world.taken;
        world.play(QUIET);
        assert_eq!(world.taken, taken, "nothing moves when nothing happens");

        world.kill(0, 3 * LEASE);
        world.workers[1].stopped_until = world.now + 3 * LEASE;
        world.play(TWO_LEASES);
        assert_eq!(world.active()[2..], [3, 3], "all are taken within two leases");
        assert!(world.begun > 0, "somebody was at work");
    }
}
