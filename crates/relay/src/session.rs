//! One session: from "the slot is ours" to "something broke" or "asked to stop".
//!
//! The loop waits for one thing at a time, tells the engine, and does what the engine says. Statements
//! and reads of the stream's tail run beside it as jobs; the hot path (log in, messages out,
//! answers in, confirmations out) never waits for one.

mod effects;
mod jobs;
mod mark_jobs;
mod notices;
mod open;
mod replay_jobs;
mod replay_source;
mod scan_jobs;
mod wal_reader;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pgoutput::Lsn;
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::jobs::{Done, Job};
use self::mark_jobs::MarkStores;
use crate::config::Config;
use crate::engine::{Engine, Input, Outcome, Place};
use crate::error::Error;
use crate::nats::{Answers, Publisher, TailReader};
use crate::postgres::sql::Scanner;
use crate::postgres::{Store, answered};
use crate::reporter::Reporter;
use crate::source::LogStream;

/// How often timeouts are looked at, marks flushed and the status reported.
const TICK: Duration = Duration::from_millis(20);

/// Messages handed to the broker before answers and the log get their turn.
const SENDS_AT_ONCE: usize = 512;

/// A loop that turned longer ago was held up, by the machine or by a signal. Somebody else may have
/// the slot by now.
const HELD_UP: Duration = Duration::from_secs(1);

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
}

/// A publishing session over the slot.
pub(crate) struct Session {
    config: Arc<Config>,
    slot: OpenSlot,
    engine: Engine,
    source: LogStream,
    publisher: Publisher,
    answers: Answers,
    tail: TailReader,
    /// Tells a reading of the tail that its connection was replaced.
    reconnected: Arc<Notify>,
    /// Keeps the slot's books. Nothing waits for rows here, and for nothing for long.
    store: Arc<Store>,
    /// Marks what was scanned, and parks: waits for whoever has dead letters or rows locked.
    rows: Arc<Store>,
    marks: MarkStores,
    /// The cursor of the scan that waits for room.
    scanner: Option<Box<Scanner>>,
    /// What the replay that is under way reads.
    replay: Option<replay_source::Source>,
    jobs: FuturesUnordered<Job>,
    started: Instant,
    tick: Interval,
    /// What came in and the engine was not told yet.
    answered: Vec<Input>,
    logged: Vec<Input>,
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
        let mut turned = Instant::now();
        loop {
            self.watch_second_writer();
            let now = self.now();
            self.engine.turn(now);
            self.carry_out(reporter)?;
            if self.engine.is_drained(now) {
                return self.close(reporter).await;
            }
            let (reads, sends) = (self.engine.wants_log(), self.engine.has_send());
            let rests_until = self.engine.copies_rest_until(now);
            let rested = self.started + rests_until.unwrap_or_default();
            tokio::select! {
                () = stop.cancelled(), if !self.engine.is_draining() => {
                    self.engine.stop(self.now(), "on request");
                }
                answered = self.answers.receive(&mut self.answered) => answered?,
                Some(done) = self.jobs.next() => self.finish(done?, reporter)?,
                ready = self.publisher.ready(), if sends => ready?,
                received = self.source.receive(&mut self.logged), if reads => received?,
                // New events end a rest too, and ticks; where few come both are seldom.
                () = tokio::time::sleep_until(rested.into()), if rests_until.is_some() => {}
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
            self.send(reporter)?;
        }
    }

    /// Since the session began.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells the engine what came in. One look at the clock for all of it.
    fn take_in(&mut self) {
        let now = self.now();
        for input in self.answered.drain(..).chain(self.logged.drain(..)) {
            self.engine.apply(now, input);
        }
    }

    fn apply(&mut self, input: Input) {
        self.engine.apply(self.now(), input);
    }

    /// Hands over what may be sent and what the connection takes without waiting.
    fn send(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        for _ in 0..SENDS_AT_ONCE {
            if !self.engine.has_send() || !self.publisher.is_ready() {
                break;
            }
            if let Some(send) = self.engine.next_send() {
                let index = send.index;
                reporter.sending(&send);
                if let Some(refusal) = self.publisher.send(&send)? {
                    self.apply(Input::Unsendable { index, refusal });
                }
            } else if let Some(end) = self.engine.next_end() {
                self.publisher.end(end)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, done: Done, reporter: &mut Reporter) -> Result<(), Error> {
        let outcome = match done {
            Done::Nothing => return Ok(()),
            Done::Stuck(found) => {
                if let Some(stuck) = found {
                    reporter.stuck(stuck);
                }
                Outcome::Owed(found.map(|it| it.owed))
            }
            Done::SecondWriter(store) => {
                self.marks.second = store;
                let is_open = self.marks.second.is_some();
                if is_open {
                    let waiting = self.engine.marks_waiting();
                    info!(waiting, "marks are late: writing them over a second connection too");
                }
                Outcome::SecondWriter(is_open)
            }
            Done::Unmarked(found) => Outcome::Unmarked(found.map(|(found, look)| {
                self.marks.look = look;
                found
            })),
            Done::Scanned(scanned) => self.scanned(scanned)?,
            Done::Replaying(begun) => {
                let (start, source) = *begun;
                self.replay = Some(source);
                Outcome::ReplayBegun(Some(start))
            }
            Done::ReplayRead(of, page) => self.replay_page(of, page),
            Done::Outcome(outcome) => outcome,
        };
        let failed = match &outcome {
            Outcome::TailFailed(why) => Some(why.clone()),
            _ => None,
        };
        self.engine.outcome(self.now(), outcome);
        if let Some(why) = failed {
            let wait = self.engine.publishing().breaker().1.unwrap_or_default();
            warn!(error = why, "the stream does not answer, trying again in {wait:.1?}");
            reporter.trouble(why);
        }
        Ok(())
    }

    fn watch_second_writer(&mut self) {
        if self.marks.second.as_ref().is_some_and(|it| it.client().is_closed()) {
            self.engine.outcome(self.now(), Outcome::SecondWriterBroke);
        }
    }

    fn tick(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        let closed = |store: &Store| store.client().is_closed();
        if closed(&self.store) || closed(&self.rows) || closed(&self.marks.first) {
            // Also how a server that shuts down is noticed: it ends these connections at once, but
            // waits for the replication connection for as long as that has something unconfirmed.
            return Err(Error::Stalled("the server closed the connection for statements"));
        }
        if !self.engine.wants_log() {
            self.source.listen_anew();
        }
        self.engine.tick(self.now(), self.source.last_heard().elapsed());
        reporter.report(&self.engine, false);
        Ok(())
    }

    async fn close(self, reporter: &mut Reporter) -> Result<(), Error> {
        reporter.report(&self.engine, true);
        let (slot, before) = (&self.config.slot, self.slot.confirmed);
        let last = self.engine.last_position();
        let confirmed = last.map_or(before, |it| it.max(before));
        if last.is_some() {
            // Exactly there, so that nobody can move the slot without it being seen. What the jobs
            // left on the same connection is executed before.
            // And nobody who writes to the stream, or purges it, until there is a relay again can
            // make events count as published.
            let place = Some(Place { commit_lsn: confirmed, ordinal: 0, seq: None });
            let stored = self.store.checkpoint_at(slot, self.slot.reader, confirmed, place);
            let late = Error::Stalled("the last position could not be written down");
            tokio::time::timeout(LAST_POSITION_MAX, stored).await.unwrap_or(Err(late))?;
        }
        self.source.confirm(confirmed);
        if !self.source.stop(confirmed).await && confirmed > before {
            answered("advance the slot", self.store.advance_slot(slot, confirmed)).await?;
        }
        let (publishing, counts) = (self.engine.publishing(), self.engine.publishing().counts());
        info!(
            %confirmed,
            unresolved = publishing.unresolved(),
            published = counts.acked,
            batches = counts.batches,
            resyncs = counts.resyncs,
            "stopped"
        );
        Ok(())
    }
}
