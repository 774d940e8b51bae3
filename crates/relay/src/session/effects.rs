//! What the engine wants done becomes jobs beside the loop.

use std::sync::Arc;

use tracing::debug;

use super::jobs::{self, Job, note_look};
use super::{Session, mark_jobs};
use crate::engine::{Effect, Effects};
use crate::postgres::sql::Looker;

impl Session {
    pub(super) fn carry_out(&mut self, effects: Effects) {
        for effect in effects {
            let job = self.job(effect);
            self.jobs.extend(job);
        }
    }

    fn job(&mut self, effect: Effect) -> Option<Job> {
        Some(match effect {
            Effect::Mark { statement, marks } => {
                let second = self.stores.second.as_ref().filter(|_| statement.is_on_second());
                let store = Arc::clone(second.unwrap_or(&self.stores.first));
                jobs::mark(store, self.config.stream.name.clone(), marks, statement)
            }
            Effect::OpenSecondWriter => mark_jobs::open_second(Arc::clone(&self.config)),
            Effect::CloseSecondWriter => {
                debug!("marks keep up again");
                self.stores.second = None;
                return None;
            }
            Effect::TakeWatermark => self.take_watermark(),
            Effect::StoreWatermark(pass) => {
                self.stores.look = None;
                self.store_watermark(pass)
            }
            Effect::SweepOn { pass, found } => self.sweep_on(pass, found),
            Effect::ReadStreamBack { found, resolved_before } => {
                self.read_stream_back(found, resolved_before)
            }
            Effect::Seek { pass, found, verdict } => self.seek(pass, found, verdict),
            Effect::MarkSwept { found, verdict } => self.mark_swept(found, verdict),
            Effect::NoteSweep => {
                let store = Arc::clone(&self.stores.first);
                note_look(store, self.config.slot.clone(), Looker::Sweeper)
            }
            Effect::OpenScan(open) => self.open_scan(open),
            Effect::ReadScan(read) => return self.read_scan(read),
            Effect::CloseScan => return self.close_scan(),
            Effect::AbandonScan { gives_way } => {
                self.abandon_scan(gives_way);
                return None;
            }
            Effect::WatchScan { process } => self.watch_scan(process),
            Effect::MarkScanned { batches, published } => self.mark_scanned(batches, published),
            Effect::NoteGapFilled { rows } => self.note_gap_filled(rows),
            Effect::NoteScan => {
                note_look(Arc::clone(&self.store), self.config.slot.clone(), Looker::Scanner)
            }
        })
    }
}
