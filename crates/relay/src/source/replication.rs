//! The log as a source: a slot brings what is committed, and is told how far everything is resolved.

mod books_jobs;
mod jobs;
mod log_stream;
mod mark_jobs;
mod open;
mod replay_jobs;
mod replay_source;
mod scan_jobs;
mod slot_creation;
mod wal_reader;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tracing::info;

use self::jobs::long_job;
use self::log_stream::LogStream;
use self::mark_jobs::MarkStores;
pub(super) use self::open::{open, start};
pub(crate) use self::replay_source::{OpenReplay, Page};
use self::slot_creation::AwaitedSlot;
use super::stream_comparison::{self, HistoryWatch};
use super::{Done, Ended, Job};
use crate::config::Config;
use crate::engine::{BooksInput, Engine, LastEvent, LogInput, MarkingInput, Seen};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::sql::{Books, Rows, Scanner, SlotReader};
use crate::postgres::{self, OpenSlot, Store, answered};
use crate::reporter::Reporter;

/// How long the last thing that a stop writes may take.
const LAST_POSITION_MAX: Duration = Duration::from_secs(5);

/// What brings events, besides scans of the table.
enum Log {
    Read(Box<LogStream>),
    /// Nothing yet.
    Awaited(Box<AwaitedSlot>),
}

impl Log {
    /// How the table's rows are read.
    fn rows(&self) -> &postgres::Rows {
        match self {
            Self::Read(log) => log.rows(),
            Self::Awaited(slot) => &slot.rows,
        }
    }

    fn awaited(&mut self) -> Result<&mut AwaitedSlot, Error> {
        match self {
            Self::Read(_) => Err(Error::bug("a slot is awaited that is read")),
            Self::Awaited(slot) => Ok(slot),
        }
    }
}

/// A slot that is ours.
pub(crate) struct Replication {
    config: Arc<Config>,
    slot: OpenSlot,
    /// What decides which events take a sequence of the stream.
    rules: i64,
    log: Log,
    tail: TailReader,
    books: Arc<Books>,
    rows: Arc<Rows>,
    marks: MarkStores,
    /// The cursor of the scan that waits for room.
    scanner: Option<Box<Scanner>>,
    /// Whether the last scan got no connection.
    unconnected: Arc<AtomicBool>,
    /// What the replay that is under way reads.
    replay: Option<OpenReplay>,
    history: HistoryWatch,
    /// The last event that this session knows to be stored.
    pub(super) last_event: Option<LastEvent>,
}

impl Replication {
    pub(super) fn timeline(&self) -> u32 {
        self.slot.history.timeline
    }

    /// Cancel safe: what is taken is appended.
    pub(super) async fn receive(&mut self, into: &mut Vec<LogInput>) -> Result<(), Error> {
        match &mut self.log {
            Log::Read(log) => log.receive(into).await,
            Log::Awaited(_) => std::future::pending().await,
        }
    }

    pub(super) fn watch_connections(&self, engine: &mut Engine, now: Duration) {
        if self.marks.second.as_ref().is_some_and(|it| it.is_closed()) {
            engine.apply(now, MarkingInput::SecondWriterBroke);
        }
    }

    /// Whether the servers are there. While the engine wants nothing of the log, that is not silent.
    pub(super) fn look(&mut self, wants_log: bool) -> Result<Seen, Error> {
        if self.books.is_closed() || self.rows.is_closed() || self.marks.first.is_closed() {
            // Also how a server that shuts down is noticed: it ends these connections at once, but
            // waits for the replication connection for as long as that has something unconfirmed.
            return Err(Error::Stalled("the server closed the connection for statements"));
        }
        let silence = match &mut self.log {
            Log::Read(log) => {
                if !wants_log {
                    log.listen_anew();
                }
                log.last_heard().elapsed()
            }
            Log::Awaited(_) => Duration::ZERO, // the job that makes the slot watches the server
        };
        Ok(Seen { silence, has_free: true })
    }

    /// A server that fell silent lives.
    pub(super) fn lives(&mut self) {
        match &mut self.log {
            Log::Read(log) => log.listen_anew(),
            Log::Awaited(_) => {}
        }
    }

    /// Keeps the connection over which the slot is locked.
    pub(super) fn slot_made(&mut self, store: Box<Store>) -> Result<BooksInput, Error> {
        self.log.awaited()?.made(store);
        Ok(BooksInput::SlotMade)
    }

    /// What the slot that is made waits for.
    pub(super) fn tell_waits(&self, reporter: &mut Reporter) {
        match &self.log {
            Log::Read(_) => {}
            Log::Awaited(slot) => reporter.waiting(slot.waits_for()),
        }
    }

    fn reader(&self) -> SlotReader {
        SlotReader { slot: self.config.slot.clone(), pid: self.slot.reader }
    }

    pub(super) fn tail(&self) -> TailReader {
        self.tail.clone()
    }

    pub(super) fn watch_history(&mut self, now: Duration) -> Option<Job> {
        if !self.history.is_due(now) {
            return None;
        }
        let (rows, tail) = (Arc::clone(&self.rows), self.tail.clone());
        let config = Arc::clone(&self.config);
        Some(long_job(async move {
            stream_comparison::compare(&config, &rows, &tail).await.map(Done::Compared)
        }))
    }

    pub(super) async fn close(self, engine: &Engine) -> Result<Ended, Error> {
        let log = match self.log {
            Log::Read(log) => log,
            Log::Awaited(slot) if slot.is_made() => return Ok(Ended::SlotIsThere),
            Log::Awaited(_) => return Ok(Ended::Stopped),
        };
        let (slot, before) = (&self.config.slot, self.slot.confirmed);
        let reader = SlotReader { slot: slot.clone(), pid: self.slot.reader };
        let Some((confirmed, place)) = engine.last_position(before) else {
            return Err(Error::bug("an engine over the log has no position"));
        };
        // What the jobs left on the same connection is executed before.
        let stored = async {
            let (stream, end) = (&self.config.stream.name, engine.publishing().last_seq());
            self.books.note_stream_end(stream, end, self.last_event).await?;
            self.books.checkpoint(&reader, confirmed, place, self.rules).await
        };
        let late = Error::Stalled("the last position could not be written down");
        tokio::time::timeout(LAST_POSITION_MAX, stored).await.unwrap_or(Err(late))?;
        log.confirm(confirmed);
        if !log.stop(confirmed).await && confirmed > before {
            answered("advance the slot", self.books.advance_slot(slot, confirmed)).await?;
        }
        let (publishing, counts) = (engine.publishing(), engine.publishing().counts());
        info!(
            %confirmed,
            unresolved = publishing.unresolved(),
            published = counts.acked,
            batches = counts.batches,
            resyncs = counts.resyncs,
            "stopped"
        );
        Ok(Ended::Stopped)
    }

    pub(super) async fn fail(self, error: &Error) -> Result<(), Error> {
        let (config, books) = (Arc::clone(&self.config), Arc::clone(&self.books));
        drop(self); // the next reader of the slot waits for that
        if let Error::Table(_) = error {
            // The log keeps the shape in which rows were written, and the table's name; the table is
            // what can be mended.
            answered("distrust the slot", books.distrust_slot(&config.slot)).await?;
        }
        if let Error::Table(_) | Error::Unusable { .. } = error {
            // Says which rows wait, if some do.
            let waits = books.check_former();
            answered("look for a former outbox", waits).await?;
        }
        Ok(())
    }
}
