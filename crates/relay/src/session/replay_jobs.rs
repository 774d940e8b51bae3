//! Carries out what the engine decides about replays.

use std::sync::Arc;

use tracing::{info, warn};
use uuid::Uuid;

use super::Session;
use super::jobs::{Done, Job, job, long_job, tolerate};
use super::replay_source::{PAGE, Page, Source, readdressed};
use crate::describe;
use crate::engine::{Outcome, ReplayNote, ReplayPage, ReplayRow, ReplayStart};
use crate::error::Error;
use crate::postgres::sql::{ReplayedRow, SlotReader, TakenReplay};
use crate::replay_selection::ReplaySource;

impl Session {
    pub(super) fn look_for_replay(&self) -> Job {
        let (store, slot) = (Arc::clone(&self.store), self.config.slot.clone());
        job(async move {
            let found = not_now(store.next_replay(&slot).await)?;
            Ok(Outcome::ReplayFound(found.flatten()).into())
        })
    }

    pub(super) fn begin_replay(&self, id: Uuid) -> Job {
        let (store, tail, reader) = (Arc::clone(&self.store), self.tail.clone(), self.reader());
        long_job(async move {
            let last_sequence = match tail.last_sequence().await {
                Ok(last) => last,
                Err(error) => return Ok(not_begun(&error)),
            };
            let Some(Some(taken)) = not_now(store.take_replay(&reader, id, last_sequence).await)?
            else {
                return Ok(Outcome::ReplayBegun(None).into());
            };
            let stored = match tail.replayed(taken.stream_seq + 1, id).await {
                Ok(read) => read,
                Err(error) => return Ok(not_begun(&error)),
            };
            info!(replay = %id, place = taken.place, already_stored = stored.len(), "replaying");
            let start = ReplayStart {
                id,
                place: taken.place,
                published: taken.published,
                seq: taken.stream_seq,
                stored,
                per_second: taken.per_second,
            };
            let messages = tail.messages();
            Ok(Done::Replaying(start, Source { taken: Arc::new(taken), messages }))
        })
    }

    /// `None` if there is no replay.
    pub(super) fn read_replay(&self, id: Uuid, after: i64) -> Option<Job> {
        let source = self.replay.clone().filter(|it| it.taken.id == id)?;
        let (store, system_id) = (Arc::clone(&self.store), self.slot.system_id);
        Some(job(async move {
            Ok(match source.taken.source {
                ReplaySource::Table => {
                    let rows = not_now(store.replayed_rows(id, after, PAGE).await)?;
                    Done::ReplayRead(rows.map(Page::Rows))
                }
                ReplaySource::Stream => match source.messages(after, system_id).await {
                    Ok(page) => Done::ReplayRead(Some(Page::Messages(page))),
                    Err(error) => {
                        let error = describe(&error);
                        warn!(error, "cannot read what is to be replayed, trying again");
                        Done::ReplayRead(None)
                    }
                },
            })
        }))
    }

    pub(super) fn note_replay(&self, note: ReplayNote) -> Job {
        let (store, reader) = (Arc::clone(&self.store), self.reader());
        job(async move {
            let wish = not_now(store.note_replay(&reader, &note).await)?;
            if note.is_done && wish.is_some() {
                info!(replay = %note.id, published = note.published, "replayed");
            }
            Ok(Outcome::ReplayNoted { problems: note.problems.len(), wish }.into())
        })
    }

    /// Makes events of what was read.
    pub(super) fn replay_page(&self, page: Option<Page>) -> Result<Outcome, Error> {
        let Some(source) = &self.replay else { return Ok(Outcome::ReplayRead(None)) };
        Ok(Outcome::ReplayRead(match page {
            None => None,
            Some(Page::Messages(page)) => Some(page),
            Some(Page::Rows(rows)) => {
                let is_end = rows.len() < PAGE;
                let rows: Result<Vec<_>, _> =
                    rows.iter().map(|row| self.replayed_row(row, &source.taken)).collect();
                let rows = rows?;
                let read_to = rows.last().map_or(source.taken.last_place, |it| it.place);
                Some(ReplayPage { rows, read_to, is_end })
            }
        }))
    }

    fn replayed_row(&self, row: &ReplayedRow, replay: &TakenReplay) -> Result<ReplayRow, Error> {
        let (place, event) = (row.place()?, row.event()?);
        let position = row.position(self.slot.system_id, self.slot.timeline)?;
        let outgoing = match row.scanned()? {
            None => Err("its row is gone".to_owned()),
            Some(scanned) => {
                Ok(readdressed(self.source.rows().scanned(scanned)?, replay, position))
            }
        };
        Ok(ReplayRow { place, event, outgoing })
    }

    fn reader(&self) -> SlotReader {
        SlotReader { slot: self.config.slot.clone(), pid: self.slot.reader }
    }
}

/// Nobody waits for a replay: what somebody has locked is tried again.
fn not_now<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if error.is_contention() => Ok(tolerate(Err(error))),
        outcome => outcome.map(Some),
    }
}

fn not_begun(error: &Error) -> Done {
    warn!(error = describe(error), "cannot begin a replay now, trying again");
    Outcome::ReplayBegun(None).into()
}
