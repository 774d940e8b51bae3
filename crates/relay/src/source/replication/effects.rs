//! What the engine wants done becomes jobs beside the session's loop.

use std::sync::Arc;

use tracing::debug;

use super::jobs::{self, Job, Owner, note_look};
use super::{Replication, mark_jobs};
use crate::engine::{Effect, End};
use crate::error::Error;
use crate::postgres::sql::{LookedBy, SlotReader};

impl Replication {
    pub(super) fn end(&self, end: End) -> Error {
        match end {
            End::Refused(reason) => Error::Refused(reason),
            End::Silence => Error::Stalled("the server fell silent"),
            End::WalLimit => Error::WalLimit { slot: self.config.slot.clone() },
            End::ClaimLost => Error::Stalled("a claim was not renewed in time"),
        }
    }

    /// `None` if there is nothing to be done.
    pub(super) fn job(&mut self, effect: Effect) -> Option<Job> {
        match effect {
            Effect::Mark { .. }
            | Effect::OpenSecondWriter
            | Effect::CloseSecondWriter
            | Effect::TakeWatermark
            | Effect::StoreWatermark(_)
            | Effect::SweepOn { .. }
            | Effect::ReadStreamBack { .. }
            | Effect::Seek { .. }
            | Effect::MarkSwept { .. }
            | Effect::NoteSweep => self.marking_job(effect),
            Effect::OpenScan(_)
            | Effect::ReadScan(_)
            | Effect::CloseScan
            | Effect::AbandonScan { .. }
            | Effect::WatchScan { .. }
            | Effect::MarkScanned { .. }
            | Effect::NoteGapFilled { .. }
            | Effect::NoteScan => self.scan_job(effect),
            Effect::LookForReplay => Some(self.look_for_replay()),
            Effect::BeginReplay(id) => Some(self.begin_replay(id)),
            Effect::ReadReplay { id, after } => self.read_replay(id, after),
            Effect::NoteReplay(note) => Some(self.note_replay(note)),
            Effect::SendCopy { replay, copy, after } => Some(self.send_copy(replay, copy, after)),
            _ => self.book_job(effect),
        }
    }

    /// Of the stream's tail, the slot and the dead letters.
    fn book_job(&self, effect: Effect) -> Option<Job> {
        let (books, rows) = (Arc::clone(&self.store), Arc::clone(&self.rows));
        let (slot, pid) = (self.config.slot.clone(), self.slot.reader);
        Some(match effect {
            Effect::ReadTail { from, delay } => {
                let owner = Owner { store: books, slot, pid };
                jobs::read_tail(self.tail.clone(), owner, from, self.slot.system_id, delay)
            }
            Effect::Park(batch) => jobs::park(rows, SlotReader { slot, pid }, batch),
            Effect::NoteFailure { id, reason, pause } => {
                jobs::note_failure(rows, id, reason, pause)
            }
            Effect::Checkpoint { place } => {
                jobs::checkpoint(books, SlotReader { slot, pid }, place, self.slot.rules)
            }
            Effect::Heartbeat => jobs::heartbeat(books),
            Effect::LeaveServer => jobs::leave_server(self.tail.clone()),
            Effect::LookAtSlot => jobs::look(books, slot),
            Effect::MakeUpForMarks => jobs::make_up_for_marks(rows),
            _ => return None,
        })
    }

    fn marking_job(&mut self, effect: Effect) -> Option<Job> {
        Some(match effect {
            Effect::Mark { statement, marks } => {
                let second = self.marks.second.as_ref().filter(|_| statement.is_on_second());
                let store = Arc::clone(second.unwrap_or(&self.marks.first));
                jobs::mark(store, self.config.stream.name.clone(), marks, statement)
            }
            Effect::OpenSecondWriter => mark_jobs::open_second(Arc::clone(&self.config)),
            Effect::CloseSecondWriter => {
                debug!("marks keep up again");
                self.marks.second = None;
                return None;
            }
            Effect::TakeWatermark => self.take_watermark(),
            Effect::StoreWatermark(pass) => {
                self.marks.look = None;
                self.store_watermark(pass)
            }
            Effect::SweepOn { pass, found } => self.sweep_on(pass, found),
            Effect::ReadStreamBack { found, resolved_before } => {
                self.read_stream_back(found, resolved_before)
            }
            Effect::Seek { pass, found, verdict } => self.seek(pass, found, verdict),
            Effect::MarkSwept { found, verdict } => self.mark_swept(found, verdict),
            Effect::NoteSweep => {
                let store = Arc::clone(&self.marks.first);
                note_look(store, self.config.slot.clone(), LookedBy::Sweeper)
            }
            _ => return None,
        })
    }

    fn scan_job(&mut self, effect: Effect) -> Option<Job> {
        Some(match effect {
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
                note_look(Arc::clone(&self.store), self.config.slot.clone(), LookedBy::Scanner)
            }
            _ => return None,
        })
    }
}
