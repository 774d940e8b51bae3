//! One session: from "the slot is ours" to "something broke" or "asked to stop".
//!
//! The loop waits for one thing at a time, tells the engine, and does what the engine says. Statements
//! and reads of the stream's tail run beside it as jobs; the hot path (log in, messages out,
//! answers in, confirmations out) never waits for one.

mod bookkeeping;
mod effects;
mod jobs;
mod mark_jobs;
mod open;
mod scan_jobs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pgoutput::Lsn;
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::jobs::{Done, Job, Owner};
use self::mark_jobs::MarkStores;
use crate::config::Config;
use crate::engine::{
    Backfill, Checkpoint, Input, Liveness, Marking, Mode, OwedMarks, Parking, Place, Request,
    SlotWatch, State,
};
use crate::error::Error;
use crate::nats::{Answers, Publisher, TailReader};
use crate::postgres::sql::Scanner;
use crate::postgres::{Store, answered};
use crate::reporter::Reporter;
use crate::source::Source;

/// How often timeouts are looked at, marks flushed and the status reported.
const TICK: Duration = Duration::from_millis(20);

/// Messages handed to the broker before answers and the log get their turn.
const SENDS_AT_ONCE: usize = 512;

/// A loop that turned longer ago was held up, by the machine or by a signal. Somebody else may have
/// the slot by now.
const HELD_UP: Duration = Duration::from_secs(1);

/// How long a stop may take to bring in the broker's answers and write the marks.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// How long the last thing that a stop writes may take.
const LAST_POSITION_MAX: Duration = Duration::from_secs(5);

/// A publishing session over the slot.
pub(crate) struct Session {
    config: Arc<Config>,
    state: State,
    source: Source,
    publisher: Publisher,
    answers: Answers,
    tail: TailReader,
    /// Tells a reading of the tail that its connection was replaced.
    reconnected: Arc<Notify>,
    /// Keeps the slot's books. Nothing waits for rows here, and for nothing for long.
    store: Arc<Store>,
    /// Marks what was scanned, and parks: waits for whoever has dead letters or rows locked.
    rows: Arc<Store>,
    owed_marks: OwedMarks,
    jobs: FuturesUnordered<Job>,
    marking: Marking,
    stores: MarkStores,
    backfill: Backfill,
    /// The cursor of the scan that waits for room.
    scanner: Option<Box<Scanner>>,
    parking: Parking,
    start_snapshot: String,
    system_id: u64,
    timeline: u32,
    /// The process that reads the slot for us: while it does, nobody else publishes from it.
    reader: i32,
    /// What the slot was confirmed to when the session began.
    confirmed_before: Lsn,
    checkpoint: Checkpoint,
    slot_watch: SlotWatch,
    liveness: Liveness,
    started: Instant,
    tick: Interval,
    /// What came in and the engine was not told yet.
    answered: Vec<Input>,
    logged: Vec<Input>,
    mode: Mode,
    /// Set once the session is to end: nothing new is taken in.
    draining_since: Option<Instant>,
    /// With `--once`: done when everything before this is resolved.
    until: Option<Lsn>,
}

impl Session {
    /// Runs until asked to stop; then lets the broker answer, marks, confirms and leaves.
    ///
    /// # Errors
    ///
    /// Whatever broke first. Nothing is lost by it: what was not confirmed comes again.
    pub(crate) async fn run(
        mut self,
        stop: &CancellationToken,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        self.tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.begin_first_scan();
        let mut turned = Instant::now();
        loop {
            self.perform(reporter)?;
            if self.is_drained() {
                return self.close(reporter).await;
            }
            let reads = self.is_reading();
            let sends = self.state.has_send();
            tokio::select! {
                () = stop.cancelled(), if self.draining_since.is_none() => self.drain("on request"),
                answered = self.answers.receive(&mut self.answered) => answered?,
                Some(done) = self.jobs.next() => self.finish(done?, reporter)?,
                ready = self.publisher.ready(), if sends => ready?,
                received = self.source.receive(&mut self.logged), if reads => received?,
                _ = self.tick.tick() => self.tick(reporter)?,
            }
            if self.publisher.reconnected() {
                self.reconnected.notify_one();
                self.apply(Input::LinkLost);
            }
            if let Some(denied) = self.publisher.denied() {
                self.apply(denied);
            }
            self.take_in();
            if std::mem::replace(&mut turned, Instant::now()).elapsed() > HELD_UP {
                // Nothing is sent before the stream was read, and the slot seen to be ours.
                self.apply(Input::LinkLost);
            }
            self.send()?;
        }
    }

    /// Tells the engine what came in. One look at the clock for all of it.
    fn take_in(&mut self) {
        let now = self.started.elapsed();
        for input in self.answered.drain(..).chain(self.logged.drain(..)) {
            self.state.apply(now, input);
        }
    }

    fn apply(&mut self, input: Input) {
        self.state.apply(self.started.elapsed(), input);
    }

    fn is_reading(&self) -> bool {
        self.draining_since.is_none()
            && !self.backfill.holds_the_log_back()
            && self.state.has_room()
    }

    /// Hands over what may be sent and what the connection takes without waiting.
    fn send(&mut self) -> Result<(), Error> {
        for _ in 0..SENDS_AT_ONCE {
            if !self.state.has_send() || !self.publisher.is_ready() {
                break;
            }
            if let Some(send) = self.state.next_send() {
                let index = send.index;
                if let Some(refusal) = self.publisher.send(&send)? {
                    self.apply(Input::Unsendable { index, refusal });
                }
            } else if let Some(end) = self.state.next_end() {
                self.publisher.end(end)?;
            }
        }
        Ok(())
    }

    /// Does what the engine asks for: requests, marks, confirmation.
    fn perform(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        while let Some(request) = self.state.next_request() {
            match request {
                Request::ReadTail { from, delay, why } => {
                    warn!(why, unresolved = self.state.unresolved(), "reading the stream's tail");
                    reporter.trouble(why);
                    let (tail, store) = (self.tail.clone(), Arc::clone(&self.store));
                    let owner = Owner { store, slot: self.config.slot.clone(), pid: self.reader };
                    let (reconnected, system_id) = (Arc::clone(&self.reconnected), self.system_id);
                    self.jobs.push(jobs::read_tail(
                        tail,
                        owner,
                        reconnected,
                        from,
                        system_id,
                        delay,
                    ));
                }
                Request::Park { index, dead } => {
                    let (event, reason) = (dead.event.id, &dead.reason);
                    if dead.blocked_by.is_none() {
                        warn!(%event, reason, "parking an event that cannot be published");
                    }
                    self.parking.ask(index, dead);
                }
                Request::NoteFailure { id, attempts, reason, pause } => {
                    warn!(event = %id, attempts, %reason, "trying again in {pause:?}");
                    reporter.trouble(reason.clone());
                    let store = Arc::clone(&self.rows);
                    self.jobs.push(jobs::note_failure(store, id, reason, pause));
                }
                Request::AskForMarks(ids) => {
                    self.jobs.push(jobs::look_for_marks(Arc::clone(&self.store), ids));
                }
                Request::TellDoubt { known, counted } => {
                    info!(
                        known,
                        counted,
                        "the stream has lost messages: what was published is known from marks and \
                         from the number of messages"
                    );
                }
                Request::Stop(reason) => return Err(Error::Refused(reason)),
            }
        }
        let now = self.started.elapsed();
        self.park(now);
        self.settle(now, reporter);
        self.confirm(now);
        Ok(())
    }

    fn finish(&mut self, done: Done, reporter: &mut Reporter) -> Result<(), Error> {
        match done {
            Done::Tail(tail) => self.apply(Input::Tail(tail)),
            Done::TailFailed(why) => {
                reporter.trouble(why.clone());
                self.apply(Input::TailFailed(why.clone()));
                let wait = self.state.breaker().1.unwrap_or_default();
                warn!(error = why, "the stream does not answer, trying again in {wait:.1?}");
            }
            Done::Marks(marks) => self.apply(Input::Marks(marks)),
            Done::Purged(purged @ 1..) => info!(purged, "removed old dead letters"),
            Done::FailureNoted | Done::LookNoted | Done::Purged(_) => {}
            Done::Parked(parked) => self.parked(parked),
            Done::NotParked(batch) => self.not_parked(batch),
            Done::OwedSettled(found) => self.owed_settled(found, reporter),
            Done::Marked { statement, marked } => {
                let marked = marked.as_ref().map(|it| (it.rows, &*it.without_row));
                self.marking.marked(self.started.elapsed(), statement, marked);
            }
            Done::SecondWriter(store) => self.second_opened(store),
            Done::Observed(watermark) => self.marking.observed(watermark),
            Done::Unmarked(found) => self.found(found),
            Done::SweepTail { found, tail, is_whole } => {
                self.stream_read(found, &tail.stored, is_whole);
            }
            Done::Swept(swept) => self.swept(swept),
            Done::Scanned(read) => self.scanned(read)?,
            Done::ScanMarked { batches, published, marked } => {
                self.scan_marked(batches, published, marked);
            }
            Done::ScanWatched(is_in_the_way) => self.backfill.watched(is_in_the_way),
            Done::ScanPostponed => self.backfill.postponed(self.started.elapsed()),
            Done::ScanClosed => self.scan_closed(),
            Done::GapFilled(is_noted) => self.backfill.gap_noted(is_noted),
            Done::Heartbeat | Done::LeftServer => {}
            Done::Checkpointed(end) => self.checkpoint.written(end),
            Done::Looked(health) => self.looked(health, reporter)?,
        }
        Ok(())
    }

    fn tick(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        self.apply(Input::Tick);
        let closed = |store: &Store| store.client().is_closed();
        if closed(&self.store) || closed(&self.rows) || closed(&self.stores.first) {
            // Also how a server that shuts down is noticed: it ends these connections at once, but
            // waits for the replication connection for as long as that has something unconfirmed.
            return Err(Error::Stalled("the server closed the connection for statements"));
        }
        self.keep_books(self.started.elapsed())?;
        self.watch_mode();
        self.keep_scanning(self.started.elapsed());
        self.observe_if_due(self.started.elapsed());
        if self.until.is_some_and(|until| self.state.confirmed() >= until)
            && self.draining_since.is_none()
            && self.backfill.is_resting()
            && !self.marking.owes_marks()
        {
            self.drain("everything there was is published");
        }
        self.report(reporter, false);
        Ok(())
    }

    fn watch_mode(&mut self) {
        if std::mem::replace(&mut self.mode, self.state.mode()) != self.state.mode() {
            error!(
                stream = self.config.stream.name,
                "others keep writing to the stream: changing to keyed mode, which keeps the order \
                 of each aggregate only. Give the relay a stream of its own, or set relay.mode = \
                 \"keyed\""
            );
        }
    }

    fn drain(&mut self, why: &str) {
        info!(unresolved = self.state.unresolved(), "stopping: {why}");
        self.draining_since = Some(Instant::now());
    }

    fn is_drained(&self) -> bool {
        self.draining_since.is_some_and(|since| {
            let settled =
                self.state.is_idle() && self.marking.is_idle() && !self.backfill.is_busy();
            settled || since.elapsed() > DRAIN_MAX
        })
    }

    async fn close(self, reporter: &mut Reporter) -> Result<(), Error> {
        self.report(reporter, true);
        // In doubt, nothing: what an earlier session wrote down is counted from where the slot is.
        let confirmed = match self.state.is_in_doubt() {
            true => self.confirmed_before,
            false => self.state.confirmed().max(self.confirmed_before),
        };
        let (slot, reader) = (&self.config.slot, self.reader);
        // Exactly there, so that nobody can move the slot without it being seen. What the jobs left
        // on the same connection is executed before.
        // And nobody who writes to the stream, or purges it, until there is a relay again can make
        // events count as published.
        let place = Some(Place { commit_lsn: confirmed, ordinal: 0, seq: None });
        if !self.state.is_in_doubt() {
            let held = self.store.hold_at(slot, reader, confirmed, place);
            let late = Error::Stalled("the last position could not be written down");
            tokio::time::timeout(LAST_POSITION_MAX, held).await.unwrap_or(Err(late))?;
        }
        self.source.confirm(confirmed);
        if !self.source.stop(confirmed).await && confirmed > self.confirmed_before {
            answered("advance the slot", self.store.advance_slot(slot, confirmed)).await?;
        }
        let counts = self.state.counts();
        info!(
            %confirmed,
            unresolved = self.state.unresolved(),
            published = counts.acked,
            batches = counts.batches,
            resyncs = counts.resyncs,
            "stopped"
        );
        Ok(())
    }

    fn report(&self, reporter: &mut Reporter, last: bool) {
        let confirmed = self.checkpoint.confirmed();
        let (marks, scanned) = (self.marking.counts(), self.backfill.scanned());
        reporter.report(&self.state, confirmed, &marks, scanned, last);
    }
}
