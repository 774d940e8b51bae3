//! Jobs: `worker/transactional.rs` and `worker/leased.rs` without their servers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::RngExt;
use uuid::Uuid;

use super::record_model::LEASE;
use super::{Fate, Nature, OfProcess, World, id_of};
use crate::engine::report::Outcome;
use crate::engine::{Begin, Decision, Item, Path, Report, begin};
use crate::message::MessageId;
use crate::record::{ClaimReply, UNFINISHED_MAX};
use crate::{BreakerState, Status, Verdict};

/// After trouble with the database.
const PAUSE: Duration = Duration::from_secs(1);

/// What an engine started as one.
pub(super) struct Job {
    pub(super) session: u64,
    /// To be claimed, or all that share a transaction.
    items: VecDeque<Item>,
    /// Handlers at work.
    busy: usize,
    /// Reported together, where the events share a place.
    done: Vec<Report>,
    /// Its claims are not answered.
    is_claiming: bool,
    /// When its transaction began the role was ours.
    had_role: bool,
    /// Its connection was ended.
    pub(super) is_broken: bool,
    began: Instant,
}

/// How many attempts were started, and when one failed first.
pub(super) type Tried = (u32, Option<Instant>);

/// An event that was claimed.
pub(super) struct Task {
    pub(super) session: u64,
    pub(super) job: u64,
    pub(super) item: Item,
    pub(super) token: Uuid,
    pub(super) tried: Tried,
    /// The lease, as renewed.
    pub(super) until: Instant,
    pub(super) began: Instant,
    pub(super) is_broken: bool,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    /// It is claimed, and begins when it is told to.
    Waiting,
    Handling,
    /// The job is done with it: this is to be written down, or the claim to be given back.
    Ended(Option<Verdict>),
    /// The claim is given back for as long as it takes, and this is reported.
    Releasing(Report),
}

/// What is known of an event that no handler has any more.
pub(super) struct Ended {
    pub(super) session: u64,
    pub(super) item: Item,
    pub(super) token: Uuid,
    pub(super) tried: Tried,
    pub(super) verdict: Option<Verdict>,
}

impl World {
    pub(super) fn begin_job(&mut self, worker: usize, items: Vec<Item>) {
        let (number, process) = (self.number(), &self.workers[worker]);
        let is_fast = items[0].path == Path::Fast;
        assert!(self.shares || !is_fast, "only a transaction is shared");
        let job = Job {
            session: process.session_id().expect("it started them"),
            items: items.into(),
            busy: 0,
            done: Vec::new(),
            is_claiming: !is_fast,
            had_role: self.records.has_role(process.token),
            is_broken: false,
            began: self.now,
        };
        self.workers[worker].jobs.insert(number, job);
        let most = if is_fast { 200 } else { self.commit_max(30) };
        self.of_process_after(worker, 1, most, OfProcess::Job(number));
    }

    pub(super) fn job(&mut self, worker: usize, number: u64) {
        let process = &mut self.workers[worker];
        let Some(job) = process.jobs.get_mut(&number) else { return };
        if job.items.front().is_some_and(|it| it.path == Path::Fast) {
            let job = process.jobs.remove(&number).expect("just found");
            self.share(worker, job);
        } else {
            let count = if self.shares { 1 } else { job.items.len() };
            let items: Vec<Item> = job.items.drain(..count).collect();
            self.claim(worker, number, &items);
        }
    }

    /// Ends a shared transaction.
    fn share(&mut self, worker: usize, job: Job) {
        let items: Vec<Item> = job.items.iter().cloned().collect();
        let undone = |path| items.iter().map(move |it| Report::undone(it, path)).collect();
        let fate = self.fate(worker);
        if job.is_broken || fate == Fate::Refused {
            return self.end_job(worker, job.session, undone(Path::Fast));
        }
        let is_known = |it: &&Item| self.records.rows.contains_key(&id_of(it.id().seq));
        let known: Vec<_> = items.iter().filter(|it| !job.had_role || is_known(it)).collect();
        let guilty: Vec<u64> = known.iter().map(|it| it.id().seq).collect();
        if !guilty.is_empty() {
            return self.end_job(worker, job.session, undone_but(&items, &guilty));
        }
        for item in &items {
            let seq = item.id().seq;
            if self.nature(seq) == Nature::Killer {
                return self.crash(worker);
            }
            let verdict = self.verdict(seq, job.began);
            if let Verdict::Processed { .. } = verdict {
                continue;
            }
            let mut reports = undone_but(&items, &[seq]);
            if let Decision::GiveBack(trouble) = self.decide(seq, verdict, (1, None)) {
                let report = reports.iter_mut().find(|it| it.id == item.id()).expect("all");
                *report = Report::trouble(item, trouble);
            }
            return self.end_job(worker, job.session, reports);
        }
        for item in &items {
            let seq = item.id().seq;
            self.records.record(id_of(seq), seq, self.now);
            self.effect(seq);
        }
        let reports = match fate {
            Fate::Done => items.iter().map(Report::processed).collect(),
            Fate::Refused | Fate::Unheard => undone(Path::Fast),
        };
        self.end_job(worker, job.session, reports);
    }

    fn end_job(&mut self, worker: usize, of: u64, reports: Vec<Report>) {
        for report in reports {
            self.tell(worker, of, report);
        }
        if let Some(session) = self.workers[worker].session.as_mut().filter(|it| it.id == of) {
            session.engine.job_ended();
        }
        self.turn(worker);
    }

    fn claim(&mut self, worker: usize, job: u64, items: &[Item]) {
        let fate = self.fate(worker);
        let token = self.records.token();
        for item in items {
            let seq = item.id().seq;
            let reply = if fate == Fate::Refused {
                ClaimReply::Contended
            } else {
                let tokens = (self.workers[worker].token, token);
                self.records.claim((id_of(seq), seq), tokens, self.shares, self.now)
            };
            let report = match fate {
                Fate::Done => self.begin(worker, (job, token), item, reply),
                Fate::Refused | Fate::Unheard => Some(Report::waits(item, PAUSE, item.path)),
            };
            if let Some(report) = report {
                self.report(worker, job, report);
            }
        }
        if !self.shares {
            self.claimed(worker, job);
        }
        self.go_on(worker, job);
    }

    fn claimed(&mut self, worker: usize, number: u64) {
        let (now, process) = (self.now, &mut self.workers[worker]);
        let Some(job) = process.jobs.get_mut(&number) else { return };
        job.is_claiming = false;
        let ids = process.tasks.values().filter(|it| it.job == number && it.is_waiting());
        let ids = ids.map(|it| it.item.id()).collect();
        if let Some(session) = process.session.as_mut().filter(|it| it.id == job.session) {
            session.engine.claimed(now, ids);
        }
    }

    pub(super) fn hand_over(&mut self, worker: usize, ids: &[MessageId]) {
        for number in self.waiting(worker, ids) {
            let task = self.workers[worker].tasks.get_mut(&number).expect("just found");
            (task.stage, task.began) = (Stage::Handling, self.now);
            let seq = task.item.id().seq;
            self.handle_for_a_while(worker, number, seq);
        }
    }

    pub(super) fn withdraw(&mut self, worker: usize, ids: &[MessageId]) {
        for number in self.waiting(worker, ids) {
            self.ended(worker, number, None);
        }
    }

    /// Where the lease was lost there is nothing to be told any more.
    fn waiting(&self, worker: usize, ids: &[MessageId]) -> Vec<u64> {
        let of_session = self.workers[worker].session_id();
        let is_told = |it: &Task| {
            Some(it.session) == of_session && it.is_waiting() && ids.contains(&it.item.id())
        };
        let tasks = self.workers[worker].tasks.iter();
        tasks.filter(|(_, it)| is_told(it)).map(|(number, _)| *number).collect()
    }

    fn handle_for_a_while(&mut self, worker: usize, number: u64, seq: u64) {
        let is_slow = self.nature(seq) == Nature::Slow;
        let (least, most) = if is_slow { (3_000, 40_000) } else { (1, 200) };
        self.of_process_after(worker, least, most, OfProcess::Task(number));
    }

    /// What is known of an event without its handler.
    fn begin(
        &mut self,
        worker: usize,
        (job, token): (u64, Uuid),
        item: &Item,
        reply: ClaimReply,
    ) -> Option<Report> {
        let id = id_of(item.id().seq);
        let tried = match begin(item, reply, self.random.random()) {
            Begin::Handle { attempts, age } => (attempts, age.map(|it| self.now - it)),
            Begin::Alone => {
                self.records.release(id, token, self.now, false);
                return Some(Report::undone(item, Path::Alone));
            }
            Begin::Crashed { .. } => {
                self.records.park_crashed(id);
                return Some(Report::dead(item));
            }
            Begin::Forgotten => unreachable!("nothing is forgotten"),
            Begin::Nothing(report) => return Some(report),
        };
        if let Some(reason) = &item.at_fault {
            let verdict = Verdict::retry(reason);
            let written = self.write_failure(worker, item, (token, tried), verdict);
            return written.or(Some(Report::waits(item, PAUSE, item.path)));
        }
        let is_last = matches!(reply, ClaimReply::Claimed { unfinished, .. }
            if unfinished >= UNFINISHED_MAX.unsigned_abs());
        let is_alone = self.handling(worker).is_empty();
        assert!(!is_last || item.path == Path::Alone && is_alone, "{id} may be nobody's fault");
        let mut all = self.workers.iter().flat_map(|it| it.tasks.values());
        let is_here =
            |it: &Task| it.is_handled() && it.until > self.now && id_of(it.item.id().seq) == id;
        assert!(self.shares || !all.any(is_here), "{id} is being handled");
        let session = self.workers[worker].jobs[&job].session;
        let task = Task {
            session,
            job,
            item: item.clone(),
            token,
            tried,
            until: self.now + LEASE,
            began: self.now,
            is_broken: false,
            stage: if self.shares { Stage::Handling } else { Stage::Waiting },
        };
        let number = self.number();
        self.workers[worker].tasks.insert(number, task);
        self.workers[worker].jobs.get_mut(&job).expect("it is claimed").busy += 1;
        if self.shares {
            self.handle_for_a_while(worker, number, item.id().seq);
        }
        None
    }

    pub(super) fn task(&mut self, worker: usize, number: u64) {
        // Its claim may get its end before the handler does.
        let is_over = |it: &Task| matches!(it.stage, Stage::Ended(_));
        if self.workers[worker].tasks.get(&number).is_some_and(is_over) {
            return;
        }
        let Some(task) = self.workers[worker].tasks.remove(&number) else { return };
        match task.stage {
            Stage::Waiting | Stage::Handling if task.until <= self.now => {
                let report = self.lost_report(&task.item);
                self.left(worker, &task);
                self.end_task(worker, task.job, report);
            }
            Stage::Handling if self.nature(task.item.id().seq) == Nature::Killer => {
                self.crash(worker);
            }
            Stage::Handling if self.shares => self.handled_in_transaction(worker, number, task),
            Stage::Handling => self.handled(worker, number, task),
            Stage::Waiting | Stage::Ended(_) => unreachable!("nothing is due"),
            Stage::Releasing(_) => self.release(worker, number, task),
        }
    }

    fn handled_in_transaction(&mut self, worker: usize, number: u64, task: Task) {
        let (seq, undone) = (task.item.id().seq, Report::undone(&task.item, Path::Careful));
        let verdict = self.verdict(seq, task.began);
        let claim = (task.token, task.tried);
        if task.is_broken {
            return self.begin_release(worker, number, task, undone);
        }
        let report = if let Verdict::Processed { .. } = verdict {
            let fate = self.fate(worker);
            let is_ours = fate != Fate::Refused && self.records.complete(id_of(seq), task.token);
            if is_ours {
                self.effect(seq);
            }
            if fate != Fate::Done {
                return self.begin_release(worker, number, task, undone);
            }
            Some(if is_ours { Report::processed(&task.item) } else { undone })
        } else {
            self.write_failure(worker, &task.item, claim, verdict)
        };
        let later = Report::waits(&task.item, PAUSE, task.item.path);
        match report {
            Some(report) => self.end_task(worker, task.job, report),
            None => self.begin_release(worker, number, task, later),
        }
    }

    fn handled(&mut self, worker: usize, number: u64, task: Task) {
        let seq = task.item.id().seq;
        let verdict = self.verdict(seq, task.began);
        if let Verdict::Processed { .. } = verdict {
            let is_ours = self.records.ours(id_of(seq), task.token).is_some();
            assert!(is_ours, "{seq} had its effect under a lost lease");
            self.effect(seq);
        }
        self.workers[worker].tasks.insert(number, task);
        self.ended(worker, number, Some(verdict));
    }

    /// The handler has it no more: its place is free, and its claim is to get its end.
    pub(super) fn ended(&mut self, worker: usize, number: u64, verdict: Option<Verdict>) {
        let mut task = self.workers[worker].tasks.remove(&number).expect("it is under way");
        self.left(worker, &task);
        task.stage = Stage::Ended(verdict);
        let job = task.job;
        self.workers[worker].tasks.insert(number, task);
        self.begin_write(worker);
        if let Some(job) = self.workers[worker].jobs.get_mut(&job) {
            job.busy -= 1;
        }
        self.go_on(worker, job);
    }

    pub(super) fn ended_tasks(&self, worker: usize, most: usize) -> Vec<u64> {
        let tasks = self.workers[worker].tasks.iter();
        let ended = tasks.filter(|(_, it)| matches!(it.stage, Stage::Ended(_)));
        ended.map(|(number, _)| *number).take(most).collect()
    }

    pub(super) fn ended_task(&self, worker: usize, number: u64) -> Ended {
        let Task { session, item, token, tried, stage, .. } = &self.workers[worker].tasks[&number];
        let Stage::Ended(verdict) = stage else { unreachable!("it is being written") };
        let (item, verdict) = (item.clone(), verdict.clone());
        Ended { session: *session, item, token: *token, tried: *tried, verdict }
    }

    pub(super) fn left(&mut self, worker: usize, task: &Task) {
        let session = self.workers[worker].session.as_mut().filter(|it| it.id == task.session);
        if let Some(session) = session.filter(|_| !self.shares) {
            session.engine.left(task.item.id());
        }
    }

    fn keep_task(&mut self, worker: usize, number: u64, task: Task, most: u64) {
        self.workers[worker].tasks.insert(number, task);
        self.of_process_after(worker, 1, most, OfProcess::Task(number));
    }

    pub(super) fn begin_release(&mut self, worker: usize, number: u64, task: Task, then: Report) {
        self.keep_task(worker, number, Task { stage: Stage::Releasing(then), ..task }, 100);
    }

    fn release(&mut self, worker: usize, number: u64, task: Task) {
        let fate = self.fate(worker);
        if fate != Fate::Refused {
            self.records.release(id_of(task.item.id().seq), task.token, self.now, false);
        }
        match task.stage {
            Stage::Releasing(then) if fate == Fate::Done => self.end_task(worker, task.job, then),
            Stage::Waiting | Stage::Handling | Stage::Ended(_) | Stage::Releasing(_) => {
                self.keep_task(worker, number, task, 500)
            }
        }
    }

    /// The handler is not waited for any longer: somebody else may have the event.
    pub(super) fn lost_report(&self, item: &Item) -> Report {
        match self.shares {
            true => Report::waits(item, PAUSE, item.path),
            false => Report::undone(item, Path::Careful),
        }
    }

    fn end_task(&mut self, worker: usize, job: u64, report: Report) {
        if let Some(job) = self.workers[worker].jobs.get_mut(&job) {
            job.busy -= 1;
        }
        self.report(worker, job, report);
        self.go_on(worker, job);
    }

    fn report(&mut self, worker: usize, job: u64, report: Report) {
        let Some(job) = self.workers[worker].jobs.get_mut(&job) else { return };
        if self.shares {
            job.done.push(report);
        } else {
            let session = job.session;
            self.tell(worker, session, report);
        }
    }

    /// The next of a job, or its end.
    fn go_on(&mut self, worker: usize, number: u64) {
        let Some(job) = self.workers[worker].jobs.get(&number) else { return };
        if job.busy > 0 {
            return self.turn(worker);
        }
        if !job.items.is_empty() {
            return self.of_process_after(worker, 1, 30, OfProcess::Job(number));
        }
        let job = self.workers[worker].jobs.remove(&number).expect("just found");
        self.end_job(worker, job.session, job.done);
    }

    /// Nobody listens any more if the session has ended.
    pub(super) fn tell(&mut self, worker: usize, of: u64, report: Report) {
        let (now, time, chance) = (self.now, self.time(), self.random.random());
        let session = self.workers[worker].session.as_mut().filter(|it| it.id == of);
        let Some(session) = session else { return };
        let seq = report.id.seq;
        session.at_work.remove(&seq);
        if let Outcome::Trouble(_) | Outcome::Expired(_) = report.outcome {
            session.failing.insert(seq);
            session.may_probe = false;
        } else if !report.answered {
            session.may_probe = true;
        }
        session.engine.reported(now, time, report, chance);
        if session.engine.status(None, Status::default()).handler.breaker == BreakerState::Closed {
            session.failing.clear();
        }
    }
}

impl Job {
    pub(super) fn is_claiming(&self) -> bool {
        self.is_claiming
    }
}

impl Task {
    /// A handler has it, or will.
    pub(super) fn is_handled(&self) -> bool {
        self.is_waiting() || self.is_begun()
    }

    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    pub(super) fn is_begun(&self) -> bool {
        matches!(self.stage, Stage::Handling)
    }
}

/// One of a shared transaction was not to be: it goes carefully from now on, and the others anew.
fn undone_but(items: &[Item], guilty: &[u64]) -> Vec<Report> {
    let path = |it: &Item| if guilty.contains(&it.id().seq) { Path::Careful } else { Path::Fast };
    items.iter().map(|it| Report::undone(it, path(it))).collect()
}
