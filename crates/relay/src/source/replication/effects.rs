//! What the engine wants done becomes jobs beside the session's loop.
//!
//! Every match here names every effect: one that is added and not carried out does not compile.

use std::sync::Arc;

use tracing::debug;

use super::jobs::{self, Job, Owner, note_look};
use super::{Log, Replication, mark_jobs};
use crate::engine::{
    BooksEffect, BrokerEffect, Effect, End, LastEvent, MarkingEffect, ReplayEffect, Resolved,
    RowsEffect, ScanEffect,
};
use crate::error::Error;
use crate::postgres::sql::SlotReader;
use crate::reporter::Reporter;
use crate::source::STREAM_IS_SHORTER;

impl Replication {
    /// `None` if it is done, and nothing comes of it.
    pub(super) fn carry_out_effect(
        &mut self,
        effect: Effect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job>, Error> {
        match effect {
            Effect::Books(effect) => self.books_job(effect),
            Effect::Rows(effect) => Ok(Some(self.rows_job(effect))),
            Effect::Marking(effect) => Ok(self.marking_job(effect)),
            Effect::Scan(effect) => self.scan_job(effect),
            Effect::Replay(effect) => self.replay_job(effect, reporter),
            Effect::Broker(effect) => Ok(Some(self.broker_job(effect))),
            Effect::Confirm(lsn) => match &self.log {
                Log::Read(log) => {
                    log.confirm(lsn);
                    Ok(None)
                }
                Log::Awaited(_) => Err(Error::bug("a slot is confirmed that is not there")),
            },
            Effect::Measure(resolved) => {
                self.last_event = LastEvent::later(Resolved::last_of(&resolved), self.last_event);
                reporter.resolved(&resolved);
                Ok(None)
            }
            Effect::Tell(notice) => {
                self.tell(notice, reporter);
                Ok(None)
            }
            Effect::End(end) => Err(self.end(end)),
        }
    }

    fn end(&self, end: End) -> Error {
        match end {
            End::Refused(reason) => Error::Refused(reason),
            End::Silence => Error::Stalled("the server fell silent"),
            End::StreamIsShorter => Error::Stalled(STREAM_IS_SHORTER),
            End::LeaveFence(reason) => Error::Unfenced { reason },
            End::ClaimLost => Error::bug("a session over the log has no claims"),
        }
    }

    fn books_job(&mut self, effect: BooksEffect) -> Result<Option<Job>, Error> {
        let (books, slot) = (Arc::clone(&self.books), self.config.slot.clone());
        Ok(Some(match effect {
            BooksEffect::Checkpoint { at, place, stream_end } => {
                let reader = SlotReader { slot, pid: self.slot.reader };
                let end = (self.config.stream.name.clone(), stream_end);
                jobs::checkpoint(books, reader, (at, place), self.slot.rules, end, self.last_event)
            }
            BooksEffect::Heartbeat => jobs::heartbeat(books, slot),
            BooksEffect::LookAtSlot => jobs::look(books, slot),
            BooksEffect::AwaitSlot => return Ok(self.log.awaited()?.job()),
        }))
    }

    fn rows_job(&self, effect: RowsEffect) -> Job {
        let rows = Arc::clone(&self.rows);
        match effect {
            RowsEffect::Park(batch) => {
                let (slot, pid) = (self.config.slot.clone(), self.slot.reader);
                jobs::park(rows, SlotReader { slot, pid }, batch)
            }
            RowsEffect::NoteFailure { id, reason, pause } => {
                jobs::note_failure(rows, id, reason, pause)
            }
            RowsEffect::MakeUpForMarks => jobs::make_up_for_marks(rows),
        }
    }

    fn broker_job(&self, effect: BrokerEffect) -> Job {
        let tail = self.tail.clone();
        match effect {
            BrokerEffect::ReadTail { from, delay } => {
                let (slot, pid) = (self.config.slot.clone(), self.slot.reader);
                let owner = Owner { books: Arc::clone(&self.books), slot, pid };
                let known = (self.slot.system_id, self.last_event);
                jobs::read_tail(tail, owner, from, known, delay)
            }
            BrokerEffect::LeaveServer => jobs::leave_server(tail),
        }
    }

    fn marking_job(&mut self, effect: MarkingEffect) -> Option<Job> {
        Some(match effect {
            MarkingEffect::Mark { statement, marks } => {
                let second = self.marks.second.as_ref().filter(|_| statement.is_on_second());
                let store = Arc::clone(second.unwrap_or(&self.marks.first));
                jobs::mark(store, self.config.stream.name.clone(), marks, statement)
            }
            MarkingEffect::OpenSecondWriter => mark_jobs::open_second(Arc::clone(&self.config)),
            MarkingEffect::CloseSecondWriter => {
                debug!("marks keep up again");
                self.marks.second = None;
                return None;
            }
            MarkingEffect::TakeWatermark => self.take_watermark(),
            MarkingEffect::StoreWatermark(pass) => {
                self.marks.look = None;
                self.store_watermark(pass)
            }
            MarkingEffect::SweepOn { pass, found } => self.sweep_on(pass, found),
            MarkingEffect::ReadStreamBack { found, resolved_before } => {
                self.read_stream_back(found, resolved_before)
            }
            MarkingEffect::Seek { pass, found, verdict } => self.seek(pass, found, verdict),
            MarkingEffect::MarkSwept { found, verdict } => self.mark_swept(found, verdict),
            MarkingEffect::NoteSweep => {
                let (marks, slot) = (Arc::clone(&self.marks.first), self.config.slot.clone());
                note_look(async move { marks.note_sweep(&slot).await })
            }
        })
    }

    fn scan_job(&mut self, effect: ScanEffect) -> Result<Option<Job>, Error> {
        Ok(Some(match effect {
            ScanEffect::Open(open) => self.open_scan(open),
            ScanEffect::Read(read) => self.read_scan(read)?,
            ScanEffect::Close => self.close_scan()?,
            ScanEffect::Abandon { gives_way } => {
                self.abandon_scan(gives_way);
                return Ok(None);
            }
            ScanEffect::Watch { process } => self.watch_scan(process),
            ScanEffect::Mark { batches, published } => self.mark_scanned(batches, published),
            ScanEffect::NoteGapFilled { rows } => self.note_gap_filled(rows),
            ScanEffect::Note => {
                let (books, slot) = (Arc::clone(&self.books), self.config.slot.clone());
                note_look(async move { books.note_scan(&slot).await })
            }
        }))
    }

    fn replay_job(
        &mut self,
        effect: ReplayEffect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job>, Error> {
        Ok(Some(match effect {
            ReplayEffect::LookFor => self.look_for_replay(),
            ReplayEffect::Begin(id) => self.begin_replay(id),
            ReplayEffect::Read { id, after } => self.read_replay(id, after)?,
            ReplayEffect::Note(note) => self.note_replay(note)?,
            ReplayEffect::End => {
                self.end_replay(reporter);
                return Ok(None);
            }
        }))
    }
}

#[cfg(test)]
mod tests;
