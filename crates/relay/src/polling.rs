//! Publishing without the log: rows are claimed in the table, published, and marked.
//!
//! For servers without logical decoding. Any number of nodes may do so side by side; an aggregate's
//! rows are claimed by one of them at a time. What is claimed goes through the same core as the
//! log's events, in keyed mode; whatever breaks ends the session, and with it the claims.
//!
//! What keeps events single: `Nats-Msg-Id` while the broker remembers it. For the time beyond, the
//! stream's newest messages are read when a session begins and after every trouble with the broker,
//! enough of them to hold whatever any node published and did not mark.

mod claims;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use pgoutput::Lsn;
use tokio::sync::{Notify, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::claims::{Claims, LEASE};
use crate::config::Config;
use crate::describe;
use crate::engine::MarkCounts;
use crate::engine::{Dead, Input, Limits, Mode, Origin, Publishing, Request, Settled, Start, Tail};
use crate::error::Error;
use crate::nats::{self, Answers, History, NatsLink, Publisher, TailReader};
use crate::postgres::sql::{ScannedRow, Stuck};
use crate::postgres::{Opening, Rows, Store, answered};
use crate::reporter::Reporter;

const TICK: Duration = Duration::from_millis(20);

/// A statement that has not answered by then never will.
const STATEMENT_MAX: Duration = Duration::from_secs(20);

/// How long a statement waits for others' locks.
const LOCKS_WAIT: &str = "2s";

/// How often a statement is made again that met others' locks, with pauses.
const CONTENDED_MAX: u32 = 5;

/// The pause between two of them.
const CONTENDED_PAUSE: Duration = Duration::from_secs(1);

/// How often it is looked whether rows are free that were locked when they were to be marked.
const OWED_EVERY: Duration = Duration::from_secs(1);

/// How long a stop may take.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Nodes whose unmarked messages the reading of the tail surely reaches.
const NODES_MAX: usize = 32;

/// There is no log, so no message has a position in it.
const NO_SYSTEM: u64 = 0;

type Job = BoxFuture<'static, Result<Done, Error>>;

enum Done {
    Claimed { store: Arc<Store>, rows: Vec<ScannedRow>, asked: Instant },
    Renewed { number: u32, asked: Instant },
    Parked { index: u64 },
    Finished { store: Arc<Store>, marked: u64 },
    Tail(Tail),
    TailFailed(String),
    OwedSettled { store: Arc<Store>, found: Option<Stuck> },
    Noted,
}

/// A session of one node.
pub(crate) struct Poll {
    config: Arc<Config>,
    rows: Rows,
    state: Publishing,
    publisher: Publisher,
    answers: Answers,
    tail: TailReader,
    /// Wakes whoever reads the tail over a connection that is gone.
    reconnected: Arc<Notify>,
    jobs: FuturesUnordered<Job>,
    claims: Claims,
    /// Connections without a claim.
    free: Vec<Arc<Store>>,
    is_claiming: bool,
    /// Claims that are being marked and given back.
    finishing: usize,
    look_at: Instant,
    /// When rows that were locked were last looked for.
    owed_at: Instant,
    /// When the last claim was given back: looks from before may have met its locks.
    gave_back: Instant,
    marks: MarkCounts,
    started: Instant,
    tick: Interval,
    answered: Vec<Input>,
    /// With `--once`: ends when there is nothing to claim.
    once: bool,
    draining_since: Option<Instant>,
}

impl Poll {
    /// Connects, and reads what the stream's newest messages are.
    pub(crate) async fn open(
        config: &Arc<Config>,
        opening: &Opening,
        client: &Client,
        link: watch::Receiver<NatsLink>,
        once: bool,
    ) -> Result<Self, Error> {
        let store = connect(config).await?;
        let checked = async {
            store.check_outbox().await?;
            store.check_marks_are_on_rows().await?;
            store.check_shards(config).await
        };
        opening.on(&store, "check what setup made", checked).await?;
        let tail = TailReader::new(client, &config.stream.name).await?;
        nats::stream_check::check(config, client, &tail).await?;
        let newest = tail.newest(reach(config), NO_SYSTEM).await?;
        let history = History { system_id: NO_SYSTEM, timeline: 0 };
        let stream = &config.stream.name;
        let (publisher, answers) =
            Publisher::new(client.clone(), stream, history, config.dedup, tail.limits(), link)
                .await?;
        info!(stream = config.stream.name, read_back = newest.stored.len(), "polling the outbox");
        let state = Publishing::new(Start {
            doubted: None,
            mode: Mode::Keyed,
            limits: Limits { events: config.window.events, bytes: config.window.bytes },
            ack_timeout: config.ack_timeout,
            resolved_before: Lsn(u64::MAX),
            tail: newest,
            batches: false,
            // What is parked has left the table, and nothing else brings it.
            dead: HashSet::new(),
            // What is claimed brings it along.
            tried: HashMap::new(),
            parking_blocks: false,
            max_attempts: config.max_attempts,
            seed: rand::random(),
        });
        Ok(Self {
            config: Arc::clone(config),
            rows: Rows::new(config.table.clone(), config.routing()),
            state,
            publisher,
            answers,
            tail,
            reconnected: Arc::new(Notify::new()),
            jobs: FuturesUnordered::new(),
            claims: Claims::default(),
            free: vec![store],
            is_claiming: false,
            finishing: 0,
            look_at: Instant::now(),
            owed_at: Instant::now(),
            gave_back: Instant::now(),
            marks: MarkCounts::default(),
            started: Instant::now(),
            tick: interval(TICK),
            answered: Vec::new(),
            once,
            draining_since: None,
        })
    }

    /// Runs until asked to stop; then what is claimed is published, marked and given back.
    ///
    /// # Errors
    ///
    /// Whatever broke first. The claims end with it, and somebody else takes their rows.
    pub(crate) async fn run(
        mut self,
        stop: &CancellationToken,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        self.tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.perform(reporter)?;
            self.claim_if_due();
            if self.is_drained() {
                info!(unresolved = self.state.unresolved(), "stopped");
                reporter.report_parts(&self.state, Lsn::ZERO, &self.marks, 0, true);
                return Ok(());
            }
            let sends = self.state.has_send();
            let looks = self.has_hands() && self.draining_since.is_none();
            tokio::select! {
                () = stop.cancelled(), if self.draining_since.is_none() => self.drain("on request"),
                answered = self.answers.receive(&mut self.answered) => answered?,
                Some(done) = self.jobs.next() => self.finish(done?, reporter)?,
                ready = self.publisher.ready(), if sends => ready?,
                () = tokio::time::sleep_until(self.look_at.into()), if looks => {}
                _ = self.tick.tick() => self.tick(reporter)?,
            }
            if self.publisher.reconnected() {
                self.reconnected.notify_waiters();
                self.apply(Input::LinkLost);
            }
            while let Some(denied) = self.publisher.denied() {
                self.apply(denied);
            }
            let now = self.started.elapsed();
            for input in self.answered.drain(..) {
                self.state.apply(now, input);
            }
            self.send()?;
        }
    }

    fn apply(&mut self, input: Input) {
        self.state.apply(self.started.elapsed(), input);
    }

    fn send(&mut self) -> Result<(), Error> {
        while self.state.has_send() && self.publisher.is_ready() {
            // Also after a long pause of the whole process, which looks like no time at all.
            if !self.claims.are_ours() {
                return Err(Error::Stalled("a claim was not renewed in time"));
            }
            let Some(send) = self.state.next_send() else { break };
            let index = send.index;
            if let Some(refusal) = self.publisher.send(&send)? {
                self.apply(Input::Unsendable { index, refusal });
            }
        }
        Ok(())
    }

    fn has_hands(&self) -> bool {
        let hands = self.claims.len() + self.finishing < self.config.poll.workers;
        hands && !self.is_claiming && self.state.has_room()
    }

    fn claim_if_due(&mut self) {
        if !self.has_hands() || self.draining_since.is_some() || Instant::now() < self.look_at {
            return;
        }
        self.is_claiming = true;
        let (config, free, asked) = (Arc::clone(&self.config), self.free.pop(), Instant::now());
        self.jobs.push(job(async move {
            let store = match free {
                Some(store) => store,
                None => connect(&config).await?,
            };
            let claimed = store.claim(config.poll.batch, LEASE).await;
            let rows = match claimed {
                // Somebody changes the table.
                Err(error) if error.is_contention() => {
                    warn!(error = describe(&error), "cannot claim rows, trying again");
                    store.finish_claim().await?;
                    Vec::new()
                }
                rows => rows?,
            };
            Ok(Done::Claimed { store, rows, asked })
        }));
    }

    fn claimed(
        &mut self,
        store: Arc<Store>,
        rows: &[ScannedRow],
        asked: Instant,
    ) -> Result<(), Error> {
        self.is_claiming = false;
        if rows.len() < self.config.poll.batch {
            self.look_at = Instant::now() + self.config.poll.interval;
        }
        if rows.is_empty() {
            self.free.push(store);
            let has_nothing = self.claims.len() + self.finishing == 0;
            if self.once && has_nothing && asked > self.gave_back {
                self.drain("there is nothing to claim");
            }
            return Ok(());
        }
        let rows: Result<Vec<_>, _> = rows.iter().map(|row| self.rows.scanned(row)).collect();
        let rows = rows?;
        let ids = rows.iter().map(|row| row.event.id).collect();
        let batch = self.claims.add(store, ids, asked);
        self.apply(Input::Scanned { batch, rows });
        Ok(())
    }

    fn perform(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        while let Some(request) = self.state.next_request() {
            match request {
                Request::ReadTail { from, delay, why } => {
                    warn!(why, unresolved = self.state.unresolved(), "reading the stream's tail");
                    reporter.trouble(why);
                    let from = from.saturating_sub(reach(&self.config)).max(1);
                    let reconnected = Arc::clone(&self.reconnected);
                    self.jobs.push(read_tail(self.tail.clone(), reconnected, from, delay));
                }
                Request::Park { index, dead } => {
                    let (event, reason) = (dead.event.id, &dead.reason);
                    warn!(%event, reason, "parking an event that cannot be published");
                    let store = self.claims.holder(event)?;
                    self.jobs.push(job(async move {
                        park(&store, &dead).await?;
                        Ok(Done::Parked { index })
                    }));
                }
                Request::NoteFailure { id, attempts, reason, pause } => {
                    warn!(event = %id, attempts, %reason, "trying again in {pause:?}");
                    reporter.trouble(reason.clone());
                    let store = self.claims.holder(id)?;
                    self.jobs.push(job(async move {
                        if let Err(error) = store.note_failure(id, &reason, pause).await {
                            warn!(error = describe(&error), "could not count an attempt");
                        }
                        Ok(Done::Noted)
                    }));
                }
                // There is no log to bring anything again.
                Request::AskForMarks(_) | Request::TellDoubt { .. } => {}
                Request::Stop(reason) => return Err(Error::Refused(reason)),
            }
        }
        let settled = self.state.take_settled();
        reporter.resolved(&settled);
        for settled in settled {
            if let Origin::Scan(number) = settled.origin {
                self.claims.settled(number, settled);
            }
        }
        self.give_back();
        Ok(())
    }

    /// Marks what is resolved whole, and lets go of it.
    fn give_back(&mut self) {
        while self.state.scans_resolved() > self.finishing
            && let Some((store, settled)) = self.claims.pop()
        {
            self.finishing += 1;
            let stream = self.config.stream.name.clone();
            self.jobs.push(job(async move {
                let marked = mark(&store, &stream, &settled).await?;
                store.finish_claim().await?;
                Ok(Done::Finished { store, marked })
            }));
        }
    }

    fn finish(&mut self, done: Done, reporter: &mut Reporter) -> Result<(), Error> {
        match done {
            Done::Claimed { store, rows, asked } => self.claimed(store, &rows, asked)?,
            Done::Renewed { number, asked } => self.claims.renewed(number, asked),
            Done::Parked { index } => self.apply(Input::Parked { index }),
            Done::Finished { store, marked } => {
                self.marks.marked += marked;
                self.finishing -= 1;
                self.gave_back = Instant::now();
                self.free.push(store);
                self.apply(Input::ScanMarked { batches: 1 });
            }
            Done::Tail(tail) => self.apply(Input::Tail(tail)),
            Done::TailFailed(why) => {
                warn!(error = why, "the stream does not answer, trying again");
                self.apply(Input::TailFailed(why));
            }
            Done::OwedSettled { store, found } => {
                self.free.push(store);
                if let Some(stuck) = found {
                    reporter.stuck(stuck);
                }
            }
            Done::Noted => {}
        }
        Ok(())
    }

    fn tick(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        self.apply(Input::Tick);
        if self.claims.is_cut_off() || self.free.iter().any(|it| it.client().is_closed()) {
            return Err(Error::Stalled("the server closed a connection for claims"));
        }
        if self.owed_at.elapsed() >= OWED_EVERY
            && let Some(store) = self.free.pop()
        {
            self.owed_at = Instant::now();
            self.jobs.push(job(async move {
                let found = store.mark_owed().await.inspect_err(|error| {
                    warn!(error = describe(error), "left rows to be marked later");
                });
                Ok(Done::OwedSettled { store, found: found.ok() })
            }));
        }
        for (number, store) in self.claims.due() {
            let asked = Instant::now();
            self.jobs.push(job(async move {
                store.renew_claim().await?;
                Ok(Done::Renewed { number, asked })
            }));
        }
        reporter.report_parts(&self.state, Lsn::ZERO, &self.marks, 0, false);
        Ok(())
    }

    fn drain(&mut self, why: &str) {
        info!(unresolved = self.state.unresolved(), "stopping: {why}");
        self.draining_since = Some(Instant::now());
    }

    fn is_drained(&self) -> bool {
        let empty = self.claims.len() + self.finishing == 0 && !self.is_claiming;
        self.draining_since.is_some_and(|since| empty || since.elapsed() > DRAIN_MAX)
    }
}

async fn connect(config: &Config) -> Result<Arc<Store>, Error> {
    let store = Store::connect(config, "tailpost poll").await?;
    answered("configure the session", store.wait_for_locks(Some(LOCKS_WAIT))).await?;
    Ok(Arc::new(store))
}

/// After a statement that met others' locks: waits, for it to be made again. Who has them for longer ends
/// the session, and with it the claims.
async fn contended(error: Error, times: &mut u32) -> Result<(), Error> {
    *times += 1;
    if !error.is_contention() || *times >= CONTENDED_MAX {
        return Err(error);
    }
    warn!(error = describe(&error), "somebody has the table locked, trying again");
    tokio::time::sleep(CONTENDED_PAUSE).await;
    Ok(())
}

async fn park(store: &Store, dead: &Dead) -> Result<(), Error> {
    let mut times = 0;
    while let Err(error) = store.park(dead, None).await {
        contended(error, &mut times).await?;
    }
    Ok(())
}

async fn mark(store: &Store, stream: &str, settled: &[Settled]) -> Result<u64, Error> {
    let mut times = 0;
    loop {
        match store.mark(stream, settled).await {
            Err(error) => contended(error, &mut times).await?,
            marked => return marked,
        }
    }
}

/// The stream's newest messages that surely hold whatever was published and not marked.
fn reach(config: &Config) -> u64 {
    (NODES_MAX * config.poll.workers * config.poll.batch) as u64
}

fn job(work: impl Future<Output = Result<Done, Error>> + Send + 'static) -> Job {
    let bounded = tokio::time::timeout(STATEMENT_MAX, work);
    bounded.map(|done| done.unwrap_or(Err(Error::Stalled("a statement never answered")))).boxed()
}

fn read_tail(tail: TailReader, reconnected: Arc<Notify>, from: u64, delay: Duration) -> Job {
    async move {
        tokio::time::sleep(delay).await;
        let read = loop {
            tokio::select! {
                read = tail.since(from, NO_SYSTEM) => break read,
                () = reconnected.notified() => {}
            }
        };
        Ok(match read {
            Ok(read) => Done::Tail(read),
            Err(error) => Done::TailFailed(describe(&error)),
        })
    }
    .boxed()
}
