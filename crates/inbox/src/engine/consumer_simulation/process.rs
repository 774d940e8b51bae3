//! A worker: the role, the sessions, and what feeds them.

mod drawn_places;
mod rates;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rand::RngExt;
use uuid::Uuid;

use super::broker_model::{ACK_WAIT, seq_of};
use super::handling::{Job, Task};
use super::record_model::{LEASE, RoleAnswer};
use super::{
    AGGREGATES, BACKOFF, Fate, Happening, LARGE, Nature, OfProcess, OfSession, World, id_of,
};
use crate::engine::{
    ConsumerEngine, ConsumerStart, Delivered, Effect, HoldLimits, Item, Notice, Path,
    RedriveSchedule, Role, RoleLease, Step, Surroundings, Term,
};
use crate::message::MessageId;
use crate::{BreakerState, Status, Summary};

const LANES: usize = 4;
pub(super) const BATCH: usize = 6;

/// As in `consumer_engine/groups.rs`.
const CLAIMING_MAX: usize = 2;

/// As in `capacity.rs`.
const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;

const DAY: Duration = Duration::from_hours(24);

pub(super) struct Process {
    /// Which of the processes that this worker was.
    pub(super) life: u64,
    is_alive: bool,
    pub(super) stalled_until: Instant,
    role: RoleLease,
    pub(super) token: Uuid,
    has_trouble: bool,
    is_asked_to_stop: bool,
    pub(super) session: Option<Session>,
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) tasks: BTreeMap<u64, Task>,
    /// Of the tasks, those whose verdicts are being written down as one group.
    pub(super) writing: Vec<u64>,
}

pub(super) struct Session {
    pub(super) id: u64,
    /// When so many events were begun.
    begun: Vec<(Instant, usize)>,
    /// The role's, when it began.
    token: Uuid,
    pub(super) engine: ConsumerEngine,
    pub(super) feed: VecDeque<Delivered>,
    /// Read from the stream, to be fed before anything new.
    pub(super) bringing: VecDeque<Delivered>,
    pub(super) is_behind: bool,
    pub(super) consumer_seq: u64,
    pub(super) floor: (u64, Instant),
    pub(super) room: usize,
    pub(super) is_closed: bool,
    pub(super) redrive: RedriveSchedule,
    /// Started and not reported.
    pub(super) at_work: HashSet<u64>,
    /// Delivered, and the broker was told nothing final.
    unanswered: HashSet<u64>,
    /// Failed whatever the event, since the breaker was closed.
    pub(super) failing: HashSet<u64>,
    /// A probe was not asked: another one may be started at once.
    pub(super) may_probe: bool,
    /// When there is a turn in any case.
    turn_at: Option<Instant>,
    /// How many handlers it may have at work.
    places: usize,
}

impl Process {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            life: 0,
            is_alive: false,
            stalled_until: now,
            role: RoleLease::new(LEASE, now),
            token: Uuid::nil(),
            has_trouble: false,
            is_asked_to_stop: false,
            session: None,
            jobs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            writing: Vec::new(),
        }
    }

    pub(super) fn session_id(&self) -> Option<u64> {
        self.session.as_ref().map(|it| it.id)
    }

    /// The term of the role that it may begin a session in.
    fn active_term(&self, now: Instant) -> Option<Term> {
        match self.role.role() {
            Role::Active { term, until } if now < until && !self.has_trouble => Some(term),
            Role::Unknown | Role::Standby | Role::Leaving | Role::Active { .. } => None,
        }
    }

    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.active_term(now).is_some()
    }
}

impl World {
    pub(super) fn start_process(&mut self, worker: usize) {
        let life = self.number();
        let process = Process { life, is_alive: true, ..Process::new(self.now) };
        self.workers[worker] = process;
        self.of_process_after(worker, 0, 10, OfProcess::Role);
        self.of_process_after(worker, 0, 10, OfProcess::Begin);
    }

    /// Its connections end with it.
    pub(super) fn crash(&mut self, worker: usize) {
        if self.workers[worker].is_alive {
            let owner = self.owner(worker);
            self.records.present.remove(&owner);
            self.workers[worker] = Process::new(self.now);
            self.after(0, 5_000, Happening::Start { worker });
        }
    }

    pub(super) fn ask_to_stop(&mut self, worker: usize) {
        let now = self.now;
        let process = &mut self.workers[worker];
        if let Some(session) = process.session.as_mut().filter(|_| process.stalled_until <= now) {
            process.is_asked_to_stop = true;
            session.engine.stop(now);
            self.turn(worker);
        }
    }

    fn owner(&self, worker: usize) -> String {
        format!("{worker}:{}", self.workers[worker].life)
    }

    pub(super) fn of_process_after(
        &mut self,
        worker: usize,
        least: u64,
        most: u64,
        what: OfProcess,
    ) {
        let life = self.workers[worker].life;
        self.after(least, most, Happening::OfProcess { worker, life, what });
    }

    pub(super) fn of_session_after(
        &mut self,
        worker: usize,
        least: u64,
        most: u64,
        what: OfSession,
    ) {
        if let Some(session) = self.workers[worker].session_id() {
            self.after(least, most, Happening::OfSession { worker, session, what });
        }
    }

    pub(super) fn of_process(&mut self, worker: usize, what: OfProcess) {
        match what {
            OfProcess::Role => self.role(worker),
            OfProcess::Begin => self.begin_session(worker),
            OfProcess::Job(job) => self.job(worker, job),
            OfProcess::Task(task) => self.task(worker, task),
            OfProcess::Write => self.write(worker),
        }
    }

    pub(super) fn of_session(&mut self, worker: usize, what: OfSession) {
        match what {
            OfSession::Turn => {}
            OfSession::Source => self.source(worker),
            OfSession::Redrive => self.redrive(worker),
            OfSession::Loaded(load, count) => self.loaded(worker, load, count),
        }
        self.turn(worker);
    }

    pub(super) fn fate(&mut self, worker: usize) -> Fate {
        let is_away = self.away.0 <= self.now && self.now < self.away.1;
        if !is_away && !self.chance(self.mix.statements) {
            return Fate::Done;
        }
        self.workers[worker].has_trouble |= is_away || self.random.random();
        if is_away || self.random.random() { Fate::Refused } else { Fate::Unheard }
    }

    fn role(&mut self, worker: usize) {
        let now = self.now;
        self.lose_leases(worker);
        self.workers[worker].role.prepared();
        let step = self.workers[worker].role.next(now);
        if let Step::Wait { until } = step {
            let life = self.workers[worker].life;
            let what = OfProcess::Role;
            return self.at(until, Happening::OfProcess { worker, life, what });
        }
        let (fate, owner) = (self.fate(worker), self.owner(worker));
        let token = self.workers[worker].token;
        // Also the role's own connection was ended, if the worker's were: it learns of it now.
        let is_there = step == Step::Connect || self.records.present.contains(&owner);
        let answer = (fate != Fate::Refused && is_there)
            .then(|| self.records.on_role(&step, &owner, token, now));
        if let Some(RoleAnswer::Evicted(former)) = &answer {
            self.break_connections(former);
        }
        let process = &mut self.workers[worker];
        match answer.filter(|_| fate == Fate::Done) {
            None => {
                process.role.failed(now);
                process.has_trouble = true;
            }
            Some(RoleAnswer::Found(found)) => process.role.looked(found, now),
            Some(RoleAnswer::Taken(token)) => {
                process.token = token.unwrap_or(process.token);
                process.role.taken(token, now);
            }
            Some(RoleAnswer::Renewed(ours)) => {
                process.has_trouble &= !ours;
                process.role.renewed(ours.then_some(1), now, now);
            }
            Some(RoleAnswer::Evicted(_)) => process.role.evicted(now),
            Some(RoleAnswer::Done) if step == Step::Connect => {
                process.has_trouble = false;
                process.role.connected(now);
                self.records.present.insert(owner);
            }
            Some(RoleAnswer::Done) => {
                process.role.claims_renewed(now);
                self.renew_leases(worker);
            }
        }
        self.of_process_after(worker, 1, 20, OfProcess::Role);
        // While the session has something else to do the role may be lost and taken again.
        self.of_session_after(worker, 0, 300, OfSession::Turn);
    }

    fn break_connections(&mut self, owner: &str) {
        for worker in 0..2 {
            if self.owner(worker) == owner {
                self.workers[worker].jobs.values_mut().for_each(|it| it.is_broken = true);
                self.workers[worker].tasks.values_mut().for_each(|it| it.is_broken = true);
            }
        }
    }

    fn begin_session(&mut self, worker: usize) {
        let now = self.now;
        let Some(term) = self.workers[worker].active_term(now) else {
            return self.of_process_after(worker, 50, 300, OfProcess::Begin);
        };
        let (id, rate) = self.rated();
        let start = ConsumerStart {
            term,
            shares: self.shares,
            lanes: LANES,
            batch: BATCH,
            limits: HoldLimits::of(self.mix.held_max),
            unacked_max: Some(self.mix.unacked_max),
            ack_wait: ACK_WAIT,
            backoff: BACKOFF,
            rate,
            counts: Summary::default(),
        };
        let session = Session {
            id,
            begun: Vec::new(),
            token: self.workers[worker].token,
            engine: ConsumerEngine::new(start, now),
            feed: VecDeque::new(),
            bringing: VecDeque::new(),
            is_behind: true,
            consumer_seq: 0,
            floor: (0, now),
            room: 0,
            is_closed: false,
            redrive: RedriveSchedule::new(now),
            at_work: HashSet::new(),
            unanswered: HashSet::new(),
            failing: HashSet::new(),
            may_probe: false,
            turn_at: None,
            places: LANES,
        };
        self.workers[worker].session = Some(session);
        self.of_session_after(worker, 0, 100, OfSession::Source);
        self.of_session_after(worker, 0, 100, OfSession::Redrive);
        self.turn(worker);
    }

    /// As `worker/session.rs`.
    pub(super) fn turn(&mut self, worker: usize) {
        let now = self.now;
        let is_paused = self.is_paused();
        loop {
            let process = &mut self.workers[worker];
            let life = process.life;
            let Some(session) = &mut process.session else { return };
            let database = process.has_trouble.then(|| "away".to_owned());
            let role = process.role.role();
            let operator = is_paused.then(|| "ada".to_owned());
            let places = session.draw_places(&mut self.random);
            session.engine.look(Surroundings { role, database, broker: None, operator, places });
            if is_paused && self.random.random_bool(0.01) {
                session.engine.close_breaker();
                session.failing.clear();
            }
            let (before, mut started) = (session.engine.status(None, Status::default()), 0);
            session.engine.turn(now);
            while let Some(effect) = self.workers[worker].next_effect() {
                if matches!(effect, Effect::End) {
                    return self.end_session(worker);
                }
                if let Effect::Start(items) = &effect {
                    started += items.len();
                    self.check_start(worker, items, &before, started);
                }
                self.carry_out(worker, effect);
            }
            let process = &mut self.workers[worker];
            let Some(session) = process.session.as_mut().filter(|_| process.life == life) else {
                return;
            };
            let id = session.id;
            let is_idle = session.is_closed
                && !process.jobs.values().any(|it| it.session == id)
                && !process.tasks.values().any(|it| it.session == id);
            if is_idle && session.engine.awaits_reports() {
                session.engine.reports_ended(now);
            } else if session.engine.is_fed() && !session.feed.is_empty() {
                session.take_in(now);
            } else {
                let due_at = session.next_due(now, &mut self.random);
                let is_known =
                    |at: &Instant| session.turn_at.is_some_and(|it| it > now && it <= *at);
                if let Some(at) = due_at.filter(|at| !is_known(at)) {
                    session.turn_at = Some(at);
                    let what = OfSession::Turn;
                    self.at(at, Happening::OfSession { worker, session: id, what });
                }
                return;
            }
        }
    }

    fn check_start(&self, worker: usize, items: &[Item], before: &Status, started: usize) {
        let process = &self.workers[worker];
        let session = process.session.as_ref().expect("it starts something");
        assert!(process.is_active(self.now), "started without the role, or the database");
        assert_eq!(process.token, session.token, "the role was lost since the session began");
        assert!(!self.is_paused(), "started although it is paused");
        for (at, item) in items.iter().enumerate() {
            let seq = item.id().seq;
            assert!(!session.at_work.contains(&seq), "{seq} is at work");
            let is_of_it = |it: &u64| it % AGGREGATES == seq % AGGREGATES;
            let mut others = session.at_work.iter();
            assert!(!others.any(is_of_it), "another of the aggregate of {seq} is at work");
            let mut same = items[..at].iter().filter(|it| is_of_it(&it.id().seq));
            assert!(same.all(|it| it.path == Path::Fast && it.id() < item.id()), "{seq} is early");
            let is_alone = items.len() == 1 && session.at_work.is_empty();
            assert!(item.path != Path::Alone || is_alone, "{seq} is not alone");
        }
        let jobs = process.jobs.values().filter(|it| it.session == session.id).count();
        let claiming = process.jobs.values().filter(|it| it.is_claiming()).count();
        let (count, most) =
            if self.shares { (jobs, session.places) } else { (claiming, CLAIMING_MAX) };
        assert!(count < most, "too many jobs at a time");
        assert!(!self.shares || items.len() <= BATCH, "{} in a job", items.len());
        self.check_rate(session, items.len());
        let paused = before.handler;
        let next_probe_at = paused.next_probe_at.filter(|_| !session.may_probe);
        let waits = next_probe_at.is_some_and(|at| at > self.time());
        match paused.breaker {
            BreakerState::Closed => {}
            BreakerState::HalfOpen => panic!("{items:?} started beside a probe"),
            // While it may be about one event, another one is a probe at once.
            BreakerState::Open if waits => assert!(session.failing.len() < 2, "probed too early"),
            BreakerState::Open => assert_eq!(started, 1, "one probe"),
        }
    }

    /// These begin now: whatever it was when they were claimed, they may.
    fn check_handle(&self, worker: usize, ids: &[MessageId]) {
        let process = &self.workers[worker];
        let session = process.session.as_ref().expect("it hands something over");
        assert!(process.is_active(self.now), "begun without the role, or the database");
        assert_eq!(process.token, session.token, "the role was lost since the session began");
        assert!(!self.is_paused(), "begun although it is paused");
        assert!(!session.is_closed, "begun although it stops");
        let handled = process.tasks.values().filter(|it| it.is_begun()).count();
        assert!(handled + ids.len() <= session.places, "{handled} handlers, and {ids:?}");
        let is_open =
            session.engine.status(None, Status::default()).handler.breaker != BreakerState::Closed;
        assert!(!is_open || ids.len() == 1, "{ids:?} beside a probe");
    }

    fn carry_out(&mut self, worker: usize, effect: Effect) {
        let (now, size) = (self.now, if self.mix.large { LARGE.len() } else { 0 });
        let Some(session) = &mut self.workers[worker].session else { return };
        match effect {
            Effect::Start(items) => {
                session.begun.push((now, items.len()));
                session.at_work.extend(items.iter().map(|it| it.id().seq));
                self.begin_job(worker, items);
            }
            Effect::Handle(ids) => {
                self.check_handle(worker, &ids);
                self.hand_over(worker, &ids);
            }
            Effect::Withdraw(ids) => self.withdraw(worker, &ids),
            Effect::Acknowledge(reply) => {
                let seq = seq_of(&reply);
                session.unanswered.remove(&seq);
                assert!(self.records.was_resolved(id_of(seq)), "{seq} is acknowledged");
                if !self.chance(self.mix.lost) {
                    self.broker.acknowledge(&reply);
                }
            }
            Effect::InProgress(replies) => self.deliver_again_at(replies, now + ACK_WAIT),
            Effect::GiveBack(replies) => {
                replies.iter().for_each(|it| _ = session.unanswered.remove(&seq_of(it)));
                self.deliver_again_at(replies, now);
            }
            Effect::Leave(replies) => {
                replies.iter().for_each(|it| _ = session.unanswered.remove(&seq_of(it)));
                self.deliver_again_at(replies, now + DAY);
            }
            Effect::Load(load) => {
                let held = session.engine.status(None, Status::default()).held;
                assert!(held < 2 * self.mix.held_max, "read in spite of {held}");
                let most = load.seqs.len();
                let count = if self.chance(self.mix.lost) {
                    self.random.random_range(0..most)
                } else {
                    most
                };
                self.of_session_after(worker, 1, 200, OfSession::Loaded(load, count));
            }
            Effect::Request(room) => {
                let held = session.engine.status(None, Status::default()).held;
                assert!(room == 0 || room + held <= self.mix.held_max, "{room} beside {held}");
                assert!(room == 0 || held * size < HELD_BYTES_MAX, "{room} beside {held}");
                session.room = room;
            }
            Effect::Close => session.is_closed = true,
            Effect::AbandonAll => self.abandon_all(worker),
            Effect::Tell(Notice::AtFault { stream_seq, .. }) => {
                assert_eq!(self.nature(stream_seq), Nature::Downer, "{stream_seq} is blamed");
            }
            Effect::Tell(_) | Effect::End => {}
        }
    }

    fn end_session(&mut self, worker: usize) {
        let now = self.now;
        let Some(session) = self.workers[worker].session.take() else { return };
        let kept: Vec<_> = session.unanswered.difference(&session.at_work).collect();
        assert!(kept.is_empty(), "{kept:?} are not given back");
        self.end_jobs(worker, session.id);
        if !self.workers[worker].is_asked_to_stop {
            return self.of_process_after(worker, 0, 1_000, OfProcess::Begin);
        }
        if self.fate(worker) != Fate::Refused {
            self.records.release_role(self.workers[worker].token, now);
        }
        self.crash(worker);
    }
}

impl Process {
    fn next_effect(&mut self) -> Option<Effect> {
        self.session.as_mut().and_then(|it| it.engine.next_effect())
    }
}

impl Session {
    fn take_in(&mut self, now: Instant) {
        while let Some(delivered) = self.feed.pop_front() {
            self.unanswered.extend(delivered.reply.as_ref().map(seq_of));
            self.engine.delivered(now, delivered);
            if !self.engine.has_room() {
                return;
            }
        }
    }
}
