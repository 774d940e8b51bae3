//! One session: from "the slot is ours" to "something broke" or "asked to stop".
//!
//! The loop waits for one thing at a time, tells the core, and does what the core says. Statements
//! and reads of the stream's tail run beside it as jobs; the hot path (log in, messages out,
//! answers in, confirmations out) never waits for one.

mod hold;
mod jobs;
mod open;
mod owed;
mod parking;
mod scan;
mod settle;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pgoutput::Lsn;
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::hold::Hold;
use self::jobs::{Done, Job, Owner};
use self::owed::Owed;
use self::parking::Parking;
use self::scan::Scan;
use self::settle::Settling;
use self::watch::Watch;
use crate::broker::{Answers, Publisher, TailReader};
use crate::config::Config;
use crate::core::{Input, Mode, Place, Request, State};
use crate::database::store::{SlotReader, Written};
use crate::database::{Source, Store, answered};
use crate::error::Error;
use crate::reporter::Reporter;

pub(crate) use self::settle::MarkCounts;

/// How often timeouts are looked at, marks flushed and the status reported.
const TICK: Duration = Duration::from_millis(20);

/// Silence of the server after which it is asked to say something.
const HEARTBEAT_AFTER: Duration = Duration::from_secs(5);

/// Silence of the server after which the connection counts as dead. TCP would take minutes.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The broker stored nothing for so long: another of its servers is tried. An election takes up to
/// 9 seconds.
const STRANDED_AFTER: Duration = Duration::from_secs(10);

/// Messages handed to the broker before answers and the log get their turn.
const SENDS_AT_ONCE: usize = 512;

/// A loop that turned longer ago was held up, by the machine or by a signal. Somebody else may have
/// the slot by now.
const HELD_UP: Duration = Duration::from_secs(1);

/// How long a stop may take to bring in the broker's answers and write the marks.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// How long the last thing that a stop writes may take.
const LAST_POSITION_MAX: Duration = Duration::from_secs(5);

/// How often the whole table is looked at for rows that nobody should have left there, where an index
/// leads to those that may be expected.
const WHOLE_EVERY: Duration = Duration::from_hours(1);

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
    owed: Owed,
    jobs: FuturesUnordered<Job>,
    settling: Settling,
    scan: Scan,
    parking: Parking,
    start_snapshot: String,
    system_id: u64,
    timeline: u32,
    /// The process that reads the slot for us: while it does, nobody else publishes from it.
    reader: i32,
    /// What the slot was confirmed to when the session began.
    confirmed_before: Lsn,
    hold: Hold,
    watch: Watch,
    started: Instant,
    tick: Interval,
    /// What came in and the core was not told yet.
    answered: Vec<Input>,
    logged: Vec<Input>,
    mode: Mode,
    /// Events resolved so far, and when the last of them was.
    resolved: u64,
    progressed: Instant,
    heartbeat_sent: bool,
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
        if self.scan.holds_the_log_back() {
            self.start_scan();
        }
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

    /// Tells the core what came in. One look at the clock for all of it.
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
        self.draining_since.is_none() && !self.scan.holds_the_log_back() && self.state.has_room()
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

    /// Does what the core asks for: requests, marks, confirmation.
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
        let reader = || SlotReader { slot: self.config.slot.clone(), pid: self.reader };
        self.jobs.extend(self.parking.next(&self.rows, reader));
        self.settle(reporter);
        self.confirm();
        Ok(())
    }

    /// Lets PostgreSQL forget what is resolved, as far as that is written down.
    fn confirm(&mut self) {
        if self.state.is_in_doubt() {
            return; // what an earlier session wrote down is all that tells
        }
        let (resolved, events) = (self.state.confirmed(), self.state.settled_of_the_log());
        let has_place = || self.state.place().is_some();
        if self.hold.is_due(resolved, events, Instant::now(), has_place) {
            let (store, slot) = (Arc::clone(&self.store), self.config.slot.clone());
            let place = match self.state.place() {
                Some(place) if self.scan.is_clear() => Written::Place(place),
                Some(place) => Written::Place(Place { seq: None, ..place }),
                None => Written::Nothing,
            };
            self.jobs.push(jobs::hold(store, slot, self.reader, place));
        }
        self.source.confirm(self.hold.allow(resolved, events));
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
            Done::Marked { statement, marked } => self.settling.marked(statement, marked),
            Done::MarksHelp(store) => self.settling.helped(store),
            Done::Observed(watermark) => self.settling.observed(watermark),
            Done::Unmarked(found) => self.settling.found(found, &mut self.jobs),
            Done::SweepTail { found, tail, is_whole } => {
                self.settling.stream_read(found, &tail, is_whole, &mut self.jobs);
            }
            Done::Swept(swept) => self.settling.swept(swept, &mut self.jobs),
            Done::Scanned(read) => self.scanned(read)?,
            Done::ScanMarked { batches, published, marked } => {
                self.scan_marked(batches, published, marked);
            }
            Done::ScanWatched(is_in_the_way) => self.scan.watched(is_in_the_way),
            Done::ScanPostponed => self.scan.postponed(),
            Done::ScanClosed => self.scan_closed(),
            Done::GapFilled(is_noted) => self.scan.gap_filled(is_noted),
            Done::Heartbeat | Done::LeftServer => {}
            Done::Held(held) => self.hold.written(held),
            Done::Looked(health) => self.looked(health, reporter)?,
        }
        Ok(())
    }

    fn tick(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        self.apply(Input::Tick);
        let closed = |store: &Store| store.client().is_closed();
        if closed(&self.store) || closed(&self.rows) || self.settling.is_disconnected() {
            // Also how a server that shuts down is noticed: it ends these connections at once, but
            // waits for the replication connection for as long as that has something unconfirmed.
            return Err(Error::Stalled("the server closed the connection for statements"));
        }
        self.listen()?;
        self.watch_progress();
        self.watch_slot();
        self.watch_mode();
        self.watch_scan();
        self.rescan();
        self.settle_owed();
        self.purge();
        self.settling.observe_if_due(&mut self.jobs, &self.state);
        if self.until.is_some_and(|until| self.state.confirmed() >= until)
            && self.draining_since.is_none()
            && self.scan.is_resting()
            && !self.settling.owes_marks()
        {
            self.drain("everything there was is published");
        }
        self.report(reporter, false);
        Ok(())
    }

    /// Tells a server that has nothing to say from one that is no longer there.
    fn listen(&mut self) -> Result<(), Error> {
        if !self.is_reading() {
            self.source.listen_anew();
        }
        let silence = self.source.last_heard().elapsed();
        if silence > SILENCE_MAX {
            return Err(Error::Stalled("the server fell silent"));
        }
        if silence < HEARTBEAT_AFTER {
            self.heartbeat_sent = false;
        } else if !std::mem::replace(&mut self.heartbeat_sent, true) {
            self.jobs.push(jobs::heartbeat(Arc::clone(&self.store)));
        }
        Ok(())
    }

    /// A server that lost the others of its cluster may answer what is asked, and store nothing.
    fn watch_progress(&mut self) {
        let resolved = self.state.counts().resolved();
        if self.state.is_idle() || std::mem::replace(&mut self.resolved, resolved) != resolved {
            self.progressed = Instant::now();
        } else if self.progressed.elapsed() > STRANDED_AFTER {
            self.progressed = Instant::now();
            self.jobs.push(jobs::leave_server(self.tail.clone()));
        }
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
            let settled = self.state.is_idle() && self.settling.is_idle() && !self.scan.is_busy();
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
        let place = Written::Place(Place { commit_lsn: confirmed, ordinal: 0, seq: None });
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
        let confirmed = self.hold.confirmed();
        let (marks, scanned) = (self.settling.counts(), self.scan.scanned());
        reporter.report(&self.state, confirmed, &marks, scanned, last);
    }
}
