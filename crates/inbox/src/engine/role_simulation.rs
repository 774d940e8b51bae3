//! Four workers and one role: statements that are late, lost, or answered to nobody, connections that
//! break, processes that are stopped and go on. 200 seeds; `SEEDS=n` plays more; `REPLAY_SEED=n`
//! repeats one.

use std::time::{Duration, Instant};

use lab::seeds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::role_lease::{Former, Found, Role, RoleLease, Step, Term};

const SEEDS: u64 = 80;
const WORKERS: usize = 4;
const LEASE_MILLIS: u64 = 3_000;
const LEASE: Duration = Duration::from_millis(LEASE_MILLIS);
const TICK: Duration = Duration::from_millis(20);

/// Ticks with trouble, and then without.
const TROUBLED: u32 = 3_000;
const QUIET: u32 = 1_000;

/// What the database has.
#[derive(Default)]
struct Database {
    row: Option<Row>,
    /// Who has connections besides the one that the role is kept on.
    present: [bool; WORKERS],
    /// Begun under a token, and not committed.
    open: Vec<(usize, Uuid)>,
    tokens: u128,
}

struct Row {
    token: Uuid,
    owner: usize,
    expires_at: Instant,
    /// Owners before that may not have been ended.
    unended: Vec<String>,
}

/// A statement on its way.
struct Asked {
    step: Step,
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
    Done,
}

struct Worker {
    lease: RoleLease,
    /// As the statements carry it.
    token: Uuid,
    asked: Option<Asked>,
    stopped_until: Instant,
    /// The term in which its session began.
    session: Option<Term>,
}

struct World {
    random: StdRng,
    now: Instant,
    database: Database,
    workers: [Worker; WORKERS],
    troubled: bool,
    begun: u32,
}

impl Database {
    fn execute(&mut self, worker: usize, token: Uuid, step: &Step, now: Instant) -> Answer {
        match step {
            Step::Look => Answer::Found(self.look(now)),
            Step::Take(former) => {
                let expected = former.as_ref().map(|it| it.token);
                if self.row.as_ref().map(|it| it.token) != expected {
                    return Answer::Taken(None);
                }
                self.tokens += 1;
                let token = Uuid::from_u128(self.tokens);
                // As `take_role` has it: whoever dies now leaves them to the next one.
                let unended = match self.row.take() {
                    Some(Row { owner, mut unended, .. }) => {
                        unended.push(owner.to_string());
                        unended
                    }
                    None => Vec::new(),
                };
                self.row = Some(Row { token, owner: worker, expires_at: now + LEASE, unended });
                Answer::Taken(Some(token))
            }
            Step::Evict(owner) => {
                self.end(owner.parse().expect("a worker's number"));
                Answer::Done
            }
            Step::Renew => match self.row.as_mut().filter(|row| row.token == token) {
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

    fn look(&self, now: Instant) -> Found {
        let Some(row) = &self.row else { return Found::Free(None) };
        if row.expires_at > now && self.present[row.owner] {
            return Found::Held;
        }
        let (owner, unended) = (row.owner.to_string(), row.unended.clone());
        Found::Free(Some(Former { token: row.token, owner, unended }))
    }

    fn end(&mut self, owner: usize) {
        self.open.retain(|(worker, _)| *worker != owner);
        self.present[owner] = false;
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let worker = || Worker {
            lease: RoleLease::new(LEASE, now),
            token: Uuid::nil(),
            asked: None,
            stopped_until: now,
            session: None,
        };
        Self {
            random: StdRng::seed_from_u64(seed),
            now,
            database: Database { present: [true; WORKERS], ..Database::default() },
            workers: std::array::from_fn(|_| worker()),
            troubled: true,
            begun: 0,
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        for index in 0..WORKERS {
            self.deliver(index);
            if self.troubled {
                self.trouble(index);
            }
            if self.workers[index].stopped_until <= self.now {
                self.hear(index);
                self.ask(index);
                self.act(index);
            }
        }
    }

    /// The database does what has arrived, whether the worker is stopped or not.
    fn deliver(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(asked) = worker.asked.as_mut() else { return };
        if asked.done_at.is_some_and(|at| at <= self.now) {
            asked.done_at = None;
            let answer = self.database.execute(index, worker.token, &asked.step, self.now);
            asked.answer = Some(answer);
        }
    }

    fn trouble(&mut self, index: usize) {
        match self.random.random_range(0..2_000) {
            0..4 => {
                let millis = self.random.random_range(0..3 * LEASE_MILLIS);
                let until = self.now + Duration::from_millis(millis);
                self.workers[index].stopped_until = until;
            }
            // Its connections break, all but the one that it notices last.
            4..8 => self.database.end(index),
            _ => {}
        }
    }

    /// An answer arrives, or is not waited for any longer.
    fn hear(&mut self, index: usize) {
        let now = self.now;
        let worker = &mut self.workers[index];
        let lease = &mut worker.lease;
        let Some(asked) = &worker.asked else { return };
        if asked.answered_at > now || asked.answer.is_none() {
            if asked.since + lease.patience() <= now {
                lease.failed(now);
                worker.asked = None;
            }
            return;
        }
        let Some(Asked { step, since, answer: Some(answer), .. }) = worker.asked.take() else {
            return;
        };
        match (step, answer) {
            (Step::Connect, _) => {
                self.database.present[index] = true;
                lease.connected(now);
            }
            (Step::RenewClaims, _) => lease.claims_renewed(now),
            (Step::Evict(_), _) => lease.evicted(now),
            (_, Answer::Found(found)) => lease.looked(found, now),
            (_, Answer::Taken(token)) => {
                worker.token = token.unwrap_or(worker.token);
                lease.taken(token, now);
            }
            (_, Answer::Renewed(server)) => lease.renewed(server, since, now),
            (step, Answer::Done) => unreachable!("{step:?} has an answer"),
        }
    }

    fn ask(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if worker.asked.is_some() {
            return;
        }
        worker.lease.prepared();
        let step = worker.lease.next(self.now);
        if matches!(step, Step::Wait { .. }) {
            return;
        }
        let slow = self.troubled && self.random.random_bool(0.1);
        let most = if slow { 2 * LEASE_MILLIS } else { 50 };
        let done = self.now + Duration::from_millis(self.random.random_range(0..most));
        let lost = self.troubled && self.random.random_bool(0.05);
        worker.asked = Some(Asked {
            step,
            since: self.now,
            done_at: (!lost).then_some(done),
            answered_at: done + Duration::from_millis(self.random.random_range(0..most)),
            answer: None,
        });
    }

    /// Begins and ends work, as the session does, under the token.
    fn act(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if self.random.random_bool(0.05) {
            self.database.open.retain(|(of, _)| *of != index);
        }
        // It has other things to do: what became of the role meanwhile it does not see.
        if self.random.random_bool(0.9) {
            return;
        }
        let (role, token) = (worker.lease.role(), worker.token);
        worker.session = worker.session.filter(|term| match role {
            Role::Active { term: now, .. } => now == *term,
            Role::Standby => false,
            Role::Unknown => true,
        });
        let Role::Active { term, until } = role else { return };
        // Before another session begins the last one's handlers have ended.
        let is_left = |(of, under): &(usize, Uuid)| *of == index && *under != token;
        if until <= self.now || self.database.open.iter().any(is_left) {
            return;
        }
        let began = *worker.session.get_or_insert(term);
        assert_eq!(began.token, token, "it does not see that the role was lost since it began");
        let Some(row) = self.database.row.as_ref().filter(|row| row.token == token) else { return };
        assert!(until <= row.expires_at, "it believes in its lease for longer than the database");
        let strangers = self.database.open.iter().filter(|(of, _)| *of != index).count();
        assert_eq!(strangers, 0, "another worker's work may still be committed");
        self.database.present[index] = true;
        self.database.open.push((index, token));
        self.begun += 1;
    }

    fn active(&self) -> usize {
        let is_active = |worker: &&Worker| matches!(worker.lease.role(), Role::Active { until, .. } if self.now < until);
        self.workers.iter().filter(is_active).count()
    }
}

// proves: G-EFFECT-3, G-EFFECT-6
#[test]
fn never_two_workers_act_and_in_the_end_one_does() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed);
        for _ in 0..TROUBLED {
            world.tick();
        }
        world.troubled = false;
        for _ in 0..QUIET {
            world.tick();
        }
        assert_eq!(world.active(), 1, "one has the role");
        assert!(world.begun > 0, "somebody was at work");
    }
}
