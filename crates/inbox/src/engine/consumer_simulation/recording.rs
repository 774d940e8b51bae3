//! Verdicts under leases are written in groups: `record` and `write` of `worker/leased.rs`.

use super::handling::Ended;
use super::process::BATCH;
use super::{Fate, OfProcess, World, id_of};
use crate::engine::{Decision, Path, Report};

/// The statements of a group, in their order. Each is committed by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statement {
    Complete,
    Fail,
    Release,
    /// Of each event one.
    Park,
}

struct Write {
    ended: Ended,
    decision: Option<Decision>,
    is_ours: bool,
}

impl Write {
    fn statement(&self) -> Statement {
        match self.decision {
            Some(Decision::Complete { .. }) => Statement::Complete,
            Some(Decision::Fail { .. }) => Statement::Fail,
            Some(Decision::Park { .. } | Decision::Expire(_)) => Statement::Park,
            Some(Decision::GiveBack(_)) | None => Statement::Release,
        }
    }

    fn report(&self) -> Report {
        let item = &self.ended.item;
        match &self.decision {
            None => Report::undone(item, item.path),
            Some(Decision::GiveBack(trouble)) => Report::trouble(item, trouble.clone()),
            Some(_) if !self.is_ours => Report::undone(item, Path::Careful),
            Some(Decision::Expire(trouble)) => Report::expired(item, trouble.clone()),
            Some(Decision::Complete { .. }) => Report::processed(item),
            Some(Decision::Fail { delay, .. }) => Report::retried(item, *delay),
            Some(Decision::Park { .. }) => Report { answered: true, ..Report::dead(item) },
        }
    }
}

impl World {
    /// How long a statement takes that is committed, in milliseconds: so many at most, mostly.
    pub(super) fn commit_max(&mut self, usual: u64) -> u64 {
        let is_slow = self.mix.slow_commits && self.chance(0.1);
        if is_slow { 6_000 } else { usual }
    }

    /// Takes what there is, unless the former group is being written.
    pub(super) fn begin_write(&mut self, worker: usize) {
        if self.workers[worker].writing.is_empty() {
            self.workers[worker].writing = self.ended_tasks(worker, BATCH);
            if !self.workers[worker].writing.is_empty() {
                let most = self.commit_max(20);
                self.of_process_after(worker, 1, most, OfProcess::Write);
            }
        }
    }

    /// Not given up: without its record an event would be handled again.
    pub(super) fn write(&mut self, worker: usize) {
        let numbers = self.workers[worker].writing.clone();
        let mut group = Vec::new();
        for number in &numbers {
            let ended = self.ended_task(worker, *number);
            let verdict = ended.verdict.clone();
            let decision = verdict.map(|it| self.decide(ended.item.id().seq, it, ended.tried));
            group.push(Write { ended, decision, is_ours: false });
        }
        if !self.write_group(worker, &mut group) {
            return self.of_process_after(worker, 1, 1_000, OfProcess::Write);
        }
        self.workers[worker].writing.clear();
        numbers.iter().for_each(|it| _ = self.workers[worker].tasks.remove(it));
        for write in &group {
            self.tell(worker, write.ended.session, write.report());
        }
        self.begin_write(worker);
        self.turn(worker);
    }

    /// Whether all of it is done, as far as anybody knows.
    fn write_group(&mut self, worker: usize, group: &mut [Write]) -> bool {
        for statement in [Statement::Complete, Statement::Fail, Statement::Release] {
            let mut of_it: Vec<_> =
                group.iter_mut().filter(|it| it.statement() == statement).collect();
            if of_it.is_empty() {
                continue;
            }
            let fate = self.fate(worker);
            if fate != Fate::Refused {
                of_it.iter_mut().for_each(|it| self.write_one(it));
            }
            if fate != Fate::Done {
                return false;
            }
        }
        for write in group.iter_mut().filter(|it| it.statement() == Statement::Park) {
            let fate = self.fate(worker);
            if fate != Fate::Refused {
                self.write_one(write);
            }
            if fate != Fate::Done {
                return false;
            }
        }
        true
    }

    fn write_one(&mut self, write: &mut Write) {
        let (id, token) = (id_of(write.ended.item.id().seq), write.ended.token);
        write.is_ours = match &write.decision {
            Some(Decision::Complete { .. }) => self.records.complete(id, token),
            Some(Decision::Fail { delay, .. }) => self.records.fail(id, token, self.now, *delay),
            Some(Decision::Park { .. } | Decision::Expire(_)) => self.records.park(id, token),
            Some(Decision::GiveBack(_)) | None => {
                let has_failed = write.decision.is_some();
                self.records.release(id, token, self.now, has_failed);
                true
            }
        };
    }
}
