//! What only a session over the slot does, by the part of the engine that asks for it.
//!
//! Every match here names every effect: one that is added and not carried out does not compile.

use std::sync::Arc;

use pgoutput::Lsn;
use tracing::debug;

use super::jobs::{self, note_look};
use super::{Log, Replication, mark_jobs};
use crate::engine::{BooksEffect, MarkingEffect, ReplayEffect, ScanEffect};
use crate::error::Error;
use crate::reporter::Reporter;
use crate::source::Job;

impl Replication {
    /// Lets PostgreSQL forget everything before.
    pub(in crate::source) fn confirm(&self, lsn: Lsn) -> Result<(), Error> {
        match &self.log {
            Log::Read(log) => {
                log.confirm(lsn);
                Ok(())
            }
            Log::Awaited(_) => Err(Error::bug("a slot is confirmed that is not there")),
        }
    }

    pub(in crate::source) fn books_job(
        &mut self,
        effect: BooksEffect,
    ) -> Result<Option<Job>, Error> {
        let (books, slot) = (Arc::clone(&self.books), self.config.slot.clone());
        Ok(Some(match effect {
            BooksEffect::Checkpoint { at, place, stream_end } => {
                let end = (self.config.stream.name.clone(), stream_end);
                jobs::checkpoint(
                    books,
                    self.reader(),
                    (at, place),
                    self.slot.rules,
                    end,
                    self.last_event,
                )
            }
            BooksEffect::Heartbeat => jobs::heartbeat(books, slot),
            BooksEffect::LookAtSlot => jobs::look(books, slot),
            BooksEffect::AwaitSlot => return Ok(self.log.awaited()?.job()),
        }))
    }

    pub(in crate::source) fn marking_job(&mut self, effect: MarkingEffect) -> Option<Job> {
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

    pub(in crate::source) fn scan_job(&mut self, effect: ScanEffect) -> Result<Option<Job>, Error> {
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

    pub(in crate::source) fn replay_job(
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
