//! The log as a source: a slot brings what is committed, and is told how far everything is resolved.

mod awaited_slot;
mod effects;
mod jobs;
mod log_stream;
mod mark_jobs;
mod notices;
mod open;
mod replay_jobs;
mod replay_source;
mod scan_jobs;
mod wal_reader;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use pgoutput::Lsn;
use servers::NatsLink;
use tokio::sync::watch;
use tracing::{info, warn};

use self::awaited_slot::AwaitedSlot;
use self::jobs::Done;
use self::log_stream::LogStream;
use self::mark_jobs::MarkStores;
use self::replay_source::OpenReplay;
use super::history_watch::{self, HistoryWatch};
use super::{Ended, Job, Opened, Source};
use crate::config::Config;
use crate::engine::{Decides, Effect, Engine, Input, LastEvent, Outcome, Send};
use crate::error::Error;
use crate::nats::TailReader;
use crate::postgres::sql::{Books, Rows, Scanner, SlotReader};
use crate::postgres::{self, Opening, answered};
use crate::reporter::Reporter;

/// How long the last thing that a stop writes may take.
const LAST_POSITION_MAX: Duration = Duration::from_secs(5);

/// The slot as it was when the session began.
struct OpenSlot {
    system_id: u64,
    timeline: u32,
    /// What was committed when the slot was created: the log does not bring it.
    start_snapshot: String,
    /// The process that reads the slot for us: while it does, nobody else publishes from it.
    reader: i32,
    /// What it was confirmed to.
    confirmed: Lsn,
    /// What decides which events take a sequence of the stream.
    rules: i64,
}

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
    log: Log,
    tail: TailReader,
    books: Arc<Books>,
    rows: Arc<Rows>,
    marks: MarkStores,
    /// The cursor of the scan that waits for room.
    scanner: Option<Box<Scanner>>,
    /// What the replay that is under way reads.
    replay: Option<OpenReplay>,
    history: HistoryWatch,
    /// The last event that this session knows to be stored.
    last_event: Option<LastEvent>,
}

impl Source for Replication {
    type Engine = Engine;
    type Done = Done;

    async fn open(
        config: &Arc<Config>,
        opening: &Opening,
        client: &Client,
        link: watch::Receiver<NatsLink>,
        once: bool,
        unfenced: Option<String>,
    ) -> Result<Opened<Self>, Error> {
        Box::pin(open::open(config, opening, client, link, once, unfenced)).await
    }

    fn timeline(&self) -> Option<u32> {
        Some(self.slot.timeline)
    }

    async fn receive(&mut self, into: &mut Vec<Input>) -> Result<(), Error> {
        match &mut self.log {
            Log::Read(log) => log.receive(into).await,
            Log::Awaited(_) => std::future::pending().await,
        }
    }

    fn watch_connections(&self, engine: &mut Engine, now: Duration) {
        if self.marks.second.as_ref().is_some_and(|it| it.is_closed()) {
            engine.outcome(now, Outcome::SecondWriterBroke);
        }
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job<Done>>, Error> {
        self.carry_out_effect(effect, reporter)
    }

    fn finish(
        &mut self,
        done: Done,
        engine: &mut Engine,
        now: Duration,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        let outcome = match done {
            Done::Nothing => return Ok(()),
            Done::Compared(found) => {
                reporter.compared(found);
                return Ok(());
            }
            Done::Asked(held_back) => {
                if let Some(what) = held_back {
                    // It lives.
                    if let Log::Read(log) = &mut self.log {
                        log.listen_anew();
                    }
                    reporter.held_back(what);
                }
                return Ok(());
            }
            Done::Stuck(found) => {
                let owed = found.as_ref().map(|it| it.owed);
                if let Some(stuck) = found {
                    reporter.stuck(stuck);
                }
                Outcome::Owed(owed)
            }
            Done::SecondWriter(store) => {
                self.marks.second = store;
                let is_open = self.marks.second.is_some();
                if is_open {
                    let waiting = engine.marks_waiting();
                    info!(waiting, "marks are late: writing them over a second connection too");
                }
                Outcome::SecondWriter(is_open)
            }
            Done::Unmarked(found) => Outcome::Unmarked(found.map(|(found, look)| {
                self.marks.look = look;
                found
            })),
            Done::Scanned(scanned) => self.scanned(scanned)?,
            Done::SlotMade(store) => {
                self.log.awaited()?.made(store);
                Outcome::SlotMade
            }
            Done::Replaying(begun) => {
                let (start, source) = *begun;
                self.replay = Some(source);
                Outcome::ReplayBegun(Some(start))
            }
            Done::ReplayRead(of, page) => self.replay_page(of, page),
            Done::Outcome(outcome) => outcome,
        };
        let mut failed = None;
        if let Outcome::TailFailed(why) = &outcome {
            failed = Some(why.clone());
        }
        self.last_event = LastEvent::later(outcome.last_event(), self.last_event);
        engine.outcome(now, outcome);
        if let Some(why) = failed {
            let wait = engine.publishing().breaker().1.unwrap_or_default();
            warn!(error = why, "the stream does not answer, trying again in {wait:.1?}");
            reporter.trouble(why);
        }
        Ok(())
    }

    fn next_send(engine: &mut Engine, _: Instant) -> Option<Send<'_>> {
        engine.next_send()
    }

    fn tick(&mut self, engine: &mut Engine, now: Duration) -> Result<(), Error> {
        if self.books.is_closed() || self.rows.is_closed() || self.marks.first.is_closed() {
            // Also how a server that shuts down is noticed: it ends these connections at once, but
            // waits for the replication connection for as long as that has something unconfirmed.
            return Err(Error::Stalled("the server closed the connection for statements"));
        }
        let silence = match &mut self.log {
            Log::Read(log) => {
                if !engine.wants_log() {
                    log.listen_anew();
                }
                log.last_heard().elapsed()
            }
            Log::Awaited(_) => Duration::ZERO, // whoever awaits it watches the server
        };
        engine.tick(now, silence);
        Ok(())
    }

    fn watch_history(&mut self, now: Duration) -> Option<Job<Done>> {
        if !self.history.is_due(now) {
            return None;
        }
        let (rows, tail) = (Arc::clone(&self.rows), self.tail.clone());
        let stream = self.config.stream.name.clone();
        Some(jobs::long_job(async move {
            history_watch::compare(&rows, &tail, &stream).await.map(Done::Compared)
        }))
    }

    async fn close(self, engine: &Engine) -> Result<Ended, Error> {
        let log = match self.log {
            Log::Read(log) => log,
            Log::Awaited(slot) if slot.is_made() => return Ok(Ended::SlotIsThere),
            Log::Awaited(_) => return Ok(Ended::Stopped),
        };
        let (slot, before) = (&self.config.slot, self.slot.confirmed);
        let reader = SlotReader { slot: slot.clone(), pid: self.slot.reader };
        let (confirmed, place) = engine.last_position(before);
        // What the jobs left on the same connection is executed before.
        let stored = async {
            let (stream, end) = (&self.config.stream.name, engine.publishing().last_seq());
            self.books.note_stream_end(stream, end, self.last_event).await?;
            self.books.checkpoint(&reader, confirmed, place, self.slot.rules).await
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

    async fn fail(self, error: &Error) -> Result<(), Error> {
        let (config, books) = (Arc::clone(&self.config), Arc::clone(&self.books));
        drop(self); // whoever takes the slot over waits for that
        if let Error::Unusable { .. } = error {
            // Says which rows wait, if some do.
            let waits = books.check_former();
            answered("look for a former outbox", waits).await?;
        }
        if let Error::Table(_) = error {
            // The log keeps the shape in which rows were written; the table is what can be mended.
            answered("distrust the slot", books.distrust_slot(&config.slot)).await?;
        }
        Ok(())
    }
}
