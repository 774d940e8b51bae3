//! Jobs: `worker/transactional.rs` and `worker/leased.rs` without their servers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::RngExt;
use uuid::Uuid;

use super::record_model::LEASE;
use super::{Fate, Nature, OfProcess, World, id_of};
use crate::engine::report::Outcome;
use crate::engine::{Begin, Decision, Item, Path, Report, begin};
use crate::record::{ClaimReply, UNFINISHED_MAX};
use crate::{BreakerState, Verdict};

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
    /// When its transaction began the role was ours.
    had_role: bool,
    /// Its connection was ended.
    pub(super) is_broken: bool,
    began: Instant,
}

/// An event that was claimed.
pub(super) struct Task {
    pub(super) session: u64,
    job: u64,
    item: Item,
    token: Uuid,
    attempts: u32,
    /// The lease, as renewed.
    until: Instant,
    began: Instant,
    pub(super) is_broken: bool,
    stage: Stage,
}

enum Stage {
    Handling,
    /// The job is done with it.
    Writing(Verdict),
    /// The claim is given back for as long as it takes, and this is reported.
    Releasing(Report),
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
            had_role: self.records.has_role(process.token),
            is_broken: false,
            began: self.now,
        };
        self.workers[worker].jobs.insert(number, job);
        self.of_process_after(worker, 1, if is_fast { 200 } else { 30 }, OfProcess::Job(number));
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
            if let Decision::GiveBack(trouble) = self.decide(verdict, 1) {
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
        self.go_on(worker, job);
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
        let attempts = match begin(item, reply, self.random.random()) {
            Begin::Handle { attempts } => attempts,
            Begin::Alone => {
                self.records.release(id, token, self.now);
                return Some(Report::undone(item, Path::Alone));
            }
            Begin::Crashed { .. } => {
                self.records.park_crashed(id);
                return Some(Report::dead(item));
            }
            Begin::Forgotten => unreachable!("nothing is forgotten"),
            Begin::Nothing(report) => return Some(report),
        };
        if let Some(reason) = &item.convicted {
            let verdict = Verdict::retry(reason);
            let written = self.write_failure(worker, item, (token, attempts), verdict);
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
            attempts,
            until: self.now + LEASE,
            began: self.now,
            is_broken: false,
            stage: Stage::Handling,
        };
        let number = self.number();
        self.workers[worker].tasks.insert(number, task);
        self.workers[worker].jobs.get_mut(&job).expect("it is claimed").busy += 1;
        let is_slow = self.nature(item.id().seq) == Nature::Slow;
        let (least, most) = if is_slow { (3_000, 40_000) } else { (1, 200) };
        self.of_process_after(worker, least, most, OfProcess::Task(number));
        None
    }

    pub(super) fn task(&mut self, worker: usize, number: u64) {
        let Some(task) = self.workers[worker].tasks.remove(&number) else { return };
        match task.stage {
            Stage::Handling if task.until <= self.now => {
                let report = self.lost_report(&task.item);
                self.end_task(worker, task.job, report);
            }
            Stage::Handling if self.nature(task.item.id().seq) == Nature::Killer => {
                self.crash(worker);
            }
            Stage::Handling if self.shares => self.handled_in_transaction(worker, number, task),
            Stage::Handling => self.handled(worker, number, task),
            Stage::Writing(_) => self.write(worker, number, task),
            Stage::Releasing(_) => self.release(worker, number, task),
        }
    }

    fn handled_in_transaction(&mut self, worker: usize, number: u64, task: Task) {
        let (seq, undone) = (task.item.id().seq, Report::undone(&task.item, Path::Careful));
        let verdict = self.verdict(seq, task.began);
        let claim = (task.token, task.attempts);
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
        let (seq, job) = (task.item.id().seq, task.job);
        let verdict = self.verdict(seq, task.began);
        if let Verdict::Processed { .. } = verdict {
            let is_ours = self.records.ours(id_of(seq), task.token).is_some();
            assert!(is_ours, "{seq} had its effect under a lost lease");
            self.effect(seq);
        }
        self.keep_task(worker, number, Task { stage: Stage::Writing(verdict), ..task }, 20);
        if let Some(job) = self.workers[worker].jobs.get_mut(&job) {
            job.busy -= 1;
        }
        self.go_on(worker, job);
    }

    fn keep_task(&mut self, worker: usize, number: u64, task: Task, most: u64) {
        self.workers[worker].tasks.insert(number, task);
        self.of_process_after(worker, 1, most, OfProcess::Task(number));
    }

    /// Not given up: without its record an event would be handled again.
    fn write(&mut self, worker: usize, number: u64, task: Task) {
        let Stage::Writing(verdict) = &task.stage else { return };
        let (verdict, id) = (verdict.clone(), id_of(task.item.id().seq));
        let report = if let Verdict::Processed { .. } = verdict {
            let fate = self.fate(worker);
            let is_ours = fate != Fate::Refused && self.records.complete(id, task.token);
            let undone = Report::undone(&task.item, Path::Careful);
            let report = if is_ours { Report::processed(&task.item) } else { undone };
            (fate == Fate::Done).then_some(report)
        } else {
            self.write_failure(worker, &task.item, (task.token, task.attempts), verdict)
        };
        match report {
            Some(report) => {
                self.tell(worker, task.session, report);
                self.turn(worker);
            }
            None => self.keep_task(worker, number, task, 1_000),
        }
    }

    fn begin_release(&mut self, worker: usize, number: u64, task: Task, then: Report) {
        self.keep_task(worker, number, Task { stage: Stage::Releasing(then), ..task }, 100);
    }

    fn release(&mut self, worker: usize, number: u64, task: Task) {
        let fate = self.fate(worker);
        if fate != Fate::Refused {
            self.records.release(id_of(task.item.id().seq), task.token, self.now);
        }
        match task.stage {
            Stage::Releasing(then) if fate == Fate::Done => self.end_task(worker, task.job, then),
            Stage::Handling | Stage::Writing(_) | Stage::Releasing(_) => {
                self.keep_task(worker, number, task, 500)
            }
        }
    }

    /// The handler is not waited for any longer: somebody else may have the event.
    fn lost_report(&self, item: &Item) -> Report {
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
    fn tell(&mut self, worker: usize, of: u64, report: Report) {
        let (now, time, chance) = (self.now, self.time(), self.random.random());
        let session = self.workers[worker].session.as_mut().filter(|it| it.id == of);
        let Some(session) = session else { return };
        let seq = report.id.seq;
        session.at_work.remove(&seq);
        if let Outcome::Trouble(_) = report.outcome {
            session.failing.insert(seq);
            session.may_probe = false;
        } else if !report.answered {
            session.may_probe = true;
        }
        session.engine.reported(now, time, report, chance);
        if session.engine.status(None).handler.breaker == BreakerState::Closed {
            session.failing.clear();
        }
    }

    pub(super) fn renew_leases(&mut self, worker: usize) {
        let (now, records) = (self.now, &mut self.records);
        for task in self.workers[worker].tasks.values_mut() {
            if records.renew(id_of(task.item.id().seq), task.token, now) {
                task.until = now + LEASE;
            } else {
                task.until = now;
            }
        }
        self.lose_leases(worker);
    }

    pub(super) fn lose_leases(&mut self, worker: usize) {
        for number in self.handling(worker) {
            if self.workers[worker].tasks.get(&number).is_some_and(|it| it.until <= self.now) {
                self.task(worker, number);
            }
        }
    }

    fn handling(&self, worker: usize) -> Vec<u64> {
        let tasks = self.workers[worker].tasks.iter();
        tasks.filter(|(_, it)| it.is_handled()).map(|(number, _)| *number).collect()
    }

    pub(super) fn abandon_all(&mut self, worker: usize) {
        for number in self.handling(worker) {
            let Some(task) = self.workers[worker].tasks.remove(&number) else { continue };
            let report = self.lost_report(&task.item);
            self.begin_release(worker, number, task, report);
        }
    }

    /// What is being written down is not given up with the session.
    pub(super) fn end_jobs(&mut self, worker: usize, session: u64) {
        let process = &mut self.workers[worker];
        process.jobs.retain(|_, it| it.session != session);
        process
            .tasks
            .retain(|_, it| it.session != session || matches!(it.stage, Stage::Writing(_)));
    }
}

impl Task {
    fn is_handled(&self) -> bool {
        matches!(self.stage, Stage::Handling)
    }
}

/// One of a shared transaction was not to be: it goes carefully from now on, and the others anew.
fn undone_but(items: &[Item], guilty: &[u64]) -> Vec<Report> {
    let path = |it: &Item| if guilty.contains(&it.id().seq) { Path::Careful } else { Path::Fast };
    items.iter().map(|it| Report::undone(it, path(it))).collect()
}
