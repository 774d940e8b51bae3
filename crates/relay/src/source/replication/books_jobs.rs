//! Carries out what the engine decides about what is written down, and about the slot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use pgoutput::Lsn;

use super::jobs::{STATEMENT_MAX, job};
use super::{Log, Replication};
use crate::engine::{BooksEffect, BooksInput};
use crate::error::Error;
use crate::postgres::sql::SlotReader;
use crate::source::{Done, Job, tail_read, unless_contended};

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
                let (config, reader) = (Arc::clone(&self.config), self.reader());
                let (rules, event) = (self.rules, self.last_event);
                job(async move {
                    let written = async {
                        books.note_stream_end(&config.stream.name, stream_end, event).await?;
                        books.checkpoint(&reader, at, place, rules).await
                    };
                    // Nothing is confirmed meanwhile, and everything else goes on.
                    let what = "cannot write down what may be confirmed";
                    let written = unless_contended(written.await, what)?;
                    Ok(BooksInput::Checkpointed(written.map(|()| at)).into())
                })
            }
            BooksEffect::Heartbeat => {
                job(async move { books.heartbeat(&slot).await.map(Done::Asked) })
            }
            BooksEffect::LookAtSlot => {
                job(async move { Ok(BooksInput::Slot(books.slot_health(&slot).await?).into()) })
            }
            BooksEffect::AwaitSlot => return Ok(self.log.awaited()?.job()),
        }))
    }

    /// Reads the tail, then makes sure that the slot is still ours.
    ///
    /// A relay that was paused while another took its slot over wakes up here: its messages were
    /// refused, and it must not try again with the right sequence.
    pub(in crate::source) fn read_tail(&self, from: u64, delay: Duration) -> Job {
        let (tail, books) = (self.tail.clone(), Arc::clone(&self.books));
        let (system_id, event) = (self.slot.history.system_id, self.last_event);
        let SlotReader { slot, pid } = self.reader();
        async move {
            let read = tail.since(from, system_id, delay, event).await;
            let reader = tokio::time::timeout(STATEMENT_MAX, books.slot_reader(&slot)).await;
            match reader.unwrap_or(Err(Error::Stalled("a statement never answered")))? {
                Some(reader) if reader == pid => Ok(tail_read(read).into()),
                _ => Err(Error::SlotBusy { slot }),
            }
        }
        .boxed()
    }
}
