//! One session: from "the source is open" to "something broke" or "asked to stop".
//!
//! The loop waits for one thing at a time, tells the engine, and does what the engine says. Statements
//! and reads of the stream's tail run beside it as jobs; the hot path (events in, messages out,
//! answers in, confirmations out) never waits for one. Where events come from is the
//! [source](crate::source)'s business.

// What is added to an enum of ours is to be thought of here.
#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::{BrokerInput, Engine, LogInput};
use crate::error::Error;
use crate::nats::{Answers, Publisher, TailReader};
use crate::reporter::Reporter;
use crate::source::{Ended, Job, Opened, Source};

/// How often timeouts are looked at, marks flushed and the status reported.
const TICK: Duration = Duration::from_millis(20);

/// Messages handed to the broker before answers and the log get their turn.
const SENDS_AT_ONCE: usize = 512;

/// A publishing session over a source.
pub(crate) struct Session {
    source: Source,
    engine: Engine,
    publisher: Publisher,
    answers: Answers,
    tail: TailReader,
    jobs: FuturesUnordered<Job>,
    started: Instant,
    tick: Interval,
    /// What came in and the engine was not told yet.
    answered: Vec<BrokerInput>,
    logged: Vec<LogInput>,
}

impl Session {
    pub(crate) fn new(opened: Opened) -> Self {
        let Opened { source, engine, publisher, answers, tail, started, .. } = opened;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            source,
            engine,
            publisher,
            answers,
            tail,
            jobs: FuturesUnordered::new(),
            started,
            tick,
            answered: Vec::new(),
            logged: Vec::new(),
        }
    }

    /// Runs until asked to stop; then lets the broker answer, marks, confirms or gives back, and
    /// leaves.
    ///
    /// # Errors
    ///
    /// Whatever broke first. Nothing is lost by it: what was not confirmed or marked comes again.
    pub(crate) async fn run(
        mut self,
        stop: &CancellationToken,
        reporter: &mut Reporter,
    ) -> Result<Ended, Error> {
        let Err(error) = self.publish(stop, reporter).await else {
            reporter.report(&self.engine.figures(), true);
            return self.source.close(&self.engine).await;
        };
        let Self { source, jobs, .. } = self;
        drop(jobs); // and with them what their connections have under way
        source.fail(&error).await?;
        Err(error)
    }

    async fn publish(
        &mut self,
        stop: &CancellationToken,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        loop {
            let now = self.now();
            self.decide(now, reporter)?;
            if self.engine.is_drained(now) {
                return Ok(());
            }
            self.wait(now, stop, reporter).await?;
            self.take_in()?;
            // The clock is read anew: the process may have been held up until now.
            self.engine.before_sending(self.now());
            self.send(reporter)?;
        }
    }

    /// Since the session began.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Lets the engine decide, and begins what it asks for.
    fn decide(&mut self, now: Duration, reporter: &mut Reporter) -> Result<(), Error> {
        self.source.watch_connections(&mut self.engine, now);
        self.engine.turn(now);
        while let Some(effect) = self.engine.next_effect() {
            self.jobs.extend(self.source.carry_out(effect, reporter)?);
        }
        Ok(())
    }

    /// Waits for one thing to happen.
    async fn wait(
        &mut self,
        now: Duration,
        stop: &CancellationToken,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        let (reads, sends) = (self.engine.wants_log(), self.engine.has_send());
        let wakes_at = self.engine.wakes_at(now);
        let wake = self.started + wakes_at.unwrap_or_default();
        // Not biased: each arm is served for one turn, and under load answers, the log and the
        // connection are ready at the same time for long. With answers first the log is read when no
        // answer has come, so that the window runs empty; with the log first it is read until the
        // window is full, before an answer counts. With either first, jobs and the tick, which writes
        // marks and sees timeouts, may wait for as long as the load lasts. Drawn by lot, each waits for
        // some turns, and a turn takes in all that its arm has.
        tokio::select! {
            () = stop.cancelled(), if !self.engine.is_draining() => {
                self.engine.stop(self.now(), "on request");
            }
            answered = self.answers.receive(&mut self.answered) => answered?,
            Some(done) = self.jobs.next() => {
                self.source.finish(done?, &mut self.engine, self.started.elapsed(), reporter)?;
            }
            ready = self.publisher.ready(), if sends => ready?,
            received = self.source.receive(&mut self.logged), if reads => received?,
            () = tokio::time::sleep_until(wake.into()), if wakes_at.is_some() => {}
            _ = self.tick.tick() => {
                self.source.tick(&mut self.engine, self.started.elapsed())?;
                self.jobs.extend(self.source.watch_history(self.started.elapsed()));
                reporter.report(&self.engine.figures(), false);
            }
        }
        Ok(())
    }

    /// Tells the engine what came in. One look at the clock for all of it.
    fn take_in(&mut self) -> Result<(), Error> {
        let now = self.now();
        if self.publisher.reconnected() {
            self.publisher.check_server()?;
            self.tail.connection_replaced();
            self.engine.apply(now, BrokerInput::LinkLost);
        }
        if let Some(denied) = self.publisher.denied()? {
            self.engine.apply(now, denied);
        }
        for input in self.answered.drain(..) {
            self.engine.apply(now, input);
        }
        for input in self.logged.drain(..) {
            self.engine.apply(now, input);
        }
        Ok(())
    }

    /// Hands over what may be sent and what the connection takes without waiting.
    fn send(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        if self.engine.has_send() && !self.publisher.is_connected() {
            self.engine.apply(self.now(), BrokerInput::LinkLost);
        }
        for _ in 0..SENDS_AT_ONCE {
            if !self.engine.has_send() || !self.publisher.is_ready() {
                break;
            }
            if let Some(send) = self.engine.next_send(|| self.started.elapsed()) {
                let index = send.index;
                reporter.sending(&send);
                if let Some(refusal) = self.publisher.send(&send)? {
                    let input = BrokerInput::Unsendable { index, refusal };
                    self.engine.apply(self.now(), input);
                }
            } else if let Some(end) = self.engine.next_end() {
                self.publisher.end(end)?;
            } else {
                break;
            }
        }
        Ok(())
    }
}
