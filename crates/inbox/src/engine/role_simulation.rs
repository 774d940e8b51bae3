//! Workers and the roles of a consumer, one or one for each partition: statements that are late,
//! lost, or answered to nobody, connections that break, processes that are stopped and go on, are
//! killed, leave and join, and lose the broker. 10 seeds of each; `SEEDS=n` plays more;
//! `REPLAY_SEED=n` repeats one.

mod roles_model;

use std::time::{Duration, Instant};

use lab::seeds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use self::roles_model::{Answer, Database, Work};
use super::role_lease::{Role, Step, Term};
use super::share::{Move, Renewed, Share};

const SEEDS: u64 = 10;
const LEASE_MILLIS: u64 = 3_000;
const LEASE: Duration = Duration::from_millis(LEASE_MILLIS);
const TICK: Duration = Duration::from_millis(20);

/// Ticks with trouble, and then without.
const TROUBLED: u32 = 3_000;
const QUIET: u32 = 1_000;
const THREE_LEASES: u32 = 450;

/// A statement on its way.
struct Asked {
    next: Move,
    since: Instant,
    /// When the database does it, unless it never arrives.
    done_at: Option<Instant>,
    answered_at: Instant,
    answer: Option<Answer>,
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

impl Worker {
    fn is_active(&self, partition: usize, now: Instant) -> bool {
        matches!(self.share.role(partition), Role::Active { until, .. } if now < until)
    }
}

impl World {
    fn new(seed: u64, partitions: Option<usize>, workers: usize) -> Self {
        let count = partitions.unwrap_or(1);
        let rows = (0..count).map(|_| None).collect();
        let database = Database { rows, ..Database::default() };
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            now: Instant::now(),
            partitions,
            database,
            workers: Vec::new(),
            owners: 0,
            troubled: true,
            begun: 0,
            taken: 0,
        };
        for _ in 0..workers {
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
        self.arrive();
        for index in 0..self.workers.len() {
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

    /// What nobody waits for comes to the database all the same.
    fn arrive(&mut self) {
        let now = self.now;
        for (_, owner, tokens, next) in
            self.database.late.extract_if(.., |it| it.0 <= now).collect::<Vec<_>>()
        {
            self.execute(owner, &tokens, &next);
        }
        for (_, work) in self.database.claims.extract_if(.., |it| it.0 <= now).collect::<Vec<_>>() {
            self.begun += u32::from(self.database.claim(work));
        }
    }

    /// The database does what has arrived, whether the worker is stopped or not.
    fn deliver(&mut self, index: usize) {
        let worker = &self.workers[index];
        let Some(asked) = worker.asked.as_ref() else { return };
        if asked.done_at.is_some_and(|at| at <= self.now) {
            let (owner, tokens, next) = (worker.owner, worker.tokens.clone(), asked.next.clone());
            let answer = Some(self.execute(owner, &tokens, &next));
            if let Some(asked) = &mut self.workers[index].asked {
                (asked.done_at, asked.answer) = (None, answer);
            }
        }
    }

    fn execute(&mut self, owner: usize, tokens: &[Uuid], next: &Move) -> Answer {
        if let Move::GiveBack(partition, _) = next
            && self.database.has(*partition, tokens[*partition])
        {
            assert!(!self.database.is_at_work(owner, *partition), "it is given back in the middle");
        }
        let before =
            self.database.rows.iter().map(|it| it.as_ref().map(|it| it.token)).collect::<Vec<_>>();
        self.database.lock(next, self.troubled, &mut self.random);
        let answer = self.database.execute(owner, tokens, next, self.now);
        if let (Move::Role(of, _), Answer::Taken(Some(_))) = (next, &answer) {
            // Also of one that is stopped: it goes on where it was.
            let has_it = |it: &&Worker| {
                it.owner != owner
                    && before[*of] == Some(it.tokens[*of])
                    && it.is_active(*of, self.now)
                    && self.database.present.contains(&it.owner)
            };
            assert!(
                !self.workers.iter().any(|it| has_it(&it)),
                "it is taken from a worker at work"
            );
        }
        answer
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
        let (owner, tokens) = (worker.owner, worker.tokens.clone());
        if (0..tokens.len()).any(|it| self.database.is_at_work(owner, it)) {
            return;
        }
        for (partition, token) in tokens.into_iter().enumerate() {
            self.database.release(partition, token, false, self.now);
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
                let tokens = worker.tokens.clone();
                let late = asked.done_at.map(|at| (at, worker.owner, tokens, asked.next.clone()));
                self.database.late.extend(late);
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
            (Move::Role(_, Step::RenewClaims), _) => share.claims_renewed(now),
            (Move::Role(of, Step::Evict(_)), _) => share.evicted(of, now),
            (Move::Role(of, _), Answer::Found(found)) => share.looked_for(of, found, now),
            (Move::Role(of, _), Answer::Taken(token)) => {
                worker.tokens[of] = token.unwrap_or(worker.tokens[of]);
                self.taken += u32::from(token.is_some());
                share.taken(of, token, now);
            }
            (Move::Renew(these), Answer::Renewed(renewed)) => {
                for (of, it) in these.into_iter().zip(renewed) {
                    let lost_at = self.database.lost.get(&worker.tokens[of]);
                    let had_it = lost_at.is_none_or(|it| since <= *it);
                    let goes_on = matches!(it, Renewed::By(_));
                    assert!(!goes_on || had_it, "it goes on in a partition that is another's");
                    share.renewed(of, it, (since, now));
                }
            }
            (Move::Look { .. }, Answer::Seen(seen)) => share.looked(&seen, now),
            (Move::GiveBack(of, _), _) => share.given_back(of, now),
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
            let is_at_work = self.database.is_at_work(worker.owner, leaving);
            if worker.sessions[leaving].is_none() && !is_at_work {
                worker.share.drained(leaving, false);
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
            Role::Standby | Role::Leaving => false,
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
        let is_over = row.is_some_and(|row| row.expires_at < until);
        assert!(!is_over, "it believes in its lease for longer than the database");
        self.database.present.insert(owner);
        let most = if self.troubled { LEASE_MILLIS } else { 50 };
        let at = self.now + Duration::from_millis(self.random.random_range(0..most));
        self.database.claims.push((at, Work { owner, partition, token }));
    }

    /// How many partitions each worker is active in.
    fn active(&self) -> Vec<usize> {
        let count = |it: &Worker| {
            (0..self.database.rows.len()).filter(|of| it.is_active(*of, self.now)).count()
        };
        self.workers.iter().map(count).collect()
    }
}

/// How many partitions each of so many workers has.
fn shares(partitions: usize, workers: usize) -> Vec<usize> {
    (0..workers).map(|it| (partitions + it) / workers).collect()
}

// proves: G-EFFECT-3, G-EFFECT-6
#[test]
fn never_two_workers_act_and_in_the_end_one_does() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, None, 4);
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
        let mut drawn = StdRng::seed_from_u64(!seed);
        let (partitions, workers) = (drawn.random_range(1..8), drawn.random_range(3..6));
        let mut world = World::new(seed, Some(partitions), workers);
        world.play(TROUBLED);
        world.troubled = false;
        // Some may be stopped for three leases yet, or without the broker for six.
        world.play(4 * THREE_LEASES);
        let mut active = world.active();
        active.sort_unstable();
        assert_eq!(active, shares(partitions, workers), "each has its share");
        let taken = world.taken;
        world.play(QUIET);
        assert_eq!(world.taken, taken, "nothing moves when nothing happens");

        world.kill(0, 4 * LEASE);
        world.workers[1].stopped_until = world.now + 4 * LEASE;
        world.play(THREE_LEASES);
        let mut active = world.active().split_off(2);
        active.sort_unstable();
        assert_eq!(active, shares(partitions, workers - 2), "all are taken within three leases");
        assert!(world.begun > 0, "somebody was at work");
    }
}

/// It was stopped with its statement on the way, and the role is free again when that arrives: the
/// next one had it, and is stopped too, in the middle of its work.
// proves: G-EFFECT-3
#[test]
fn a_role_that_another_worker_had_in_between_is_taken_only_when_that_one_is_ended() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, None, 2);
        world.troubled = false;
        let is_taking = |it: &Worker| {
            let asked = it.asked.as_ref().filter(|it| it.done_at.is_some());
            asked.is_some_and(|it| matches!(it.next, Move::Role(_, Step::Take(_))))
        };
        let late = loop {
            world.tick();
            if let Some(late) = world.workers.iter().position(is_taking) {
                break late;
            }
        };
        let arrives = world.now + 2 * LEASE;
        world.workers[late].stopped_until = arrives;
        let asked = world.workers[late].asked.as_mut().expect("it takes the role");
        (asked.done_at, asked.answered_at) = (Some(arrives), arrives);
        while world.database.open.is_empty() {
            world.tick();
        }
        assert!(world.now + LEASE < arrives, "the next one began at once");
        world.workers[1 - late].stopped_until = arrives + 2 * LEASE;
        world.play(2 * THREE_LEASES);
        assert_eq!(world.active().iter().sum::<usize>(), 1, "one has the role");
    }
}
