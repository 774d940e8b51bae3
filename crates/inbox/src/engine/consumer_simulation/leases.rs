//! Leases of what is claimed: renewed, lost and given up.

use super::handling::Stage;
use super::record_model::LEASE;
use super::{World, id_of};

impl World {
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

    pub(super) fn handling(&self, worker: usize) -> Vec<u64> {
        let tasks = self.workers[worker].tasks.iter();
        tasks.filter(|(_, it)| it.is_handled()).map(|(number, _)| *number).collect()
    }

    pub(super) fn abandon_all(&mut self, worker: usize) {
        for number in self.handling(worker) {
            if !self.shares {
                self.ended(worker, number, None);
                continue;
            }
            let Some(task) = self.workers[worker].tasks.remove(&number) else { continue };
            let report = self.lost_report(&task.item);
            self.begin_release(worker, number, task, report);
        }
    }

    /// What is being written down is not given up with the session.
    pub(super) fn end_jobs(&mut self, worker: usize, session: u64) {
        let process = &mut self.workers[worker];
        process.jobs.retain(|_, it| it.session != session);
        process.tasks.retain(|_, it| it.session != session || matches!(it.stage, Stage::Ended(_)));
    }
}
