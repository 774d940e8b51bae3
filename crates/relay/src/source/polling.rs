//! Publishing without the log: rows are claimed in the table, published, and marked.
//!
//! For servers without logical decoding. Any number of nodes may do so side by side; an aggregate's
//! rows are claimed by one of them at a time. The engine decides; this does what it says, over a
//! connection for each claim.
//!
//! What keeps events single: `Nats-Msg-Id` while the broker remembers it. For the time beyond, the
//! stream's newest messages are read when a session begins and after every trouble with the broker,
//! enough of them to hold whatever any node published and did not mark.

use std::collections::HashMap;
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

use crate::config::Config;
use crate::describe;
use crate::engine::{
    ClaimEffect, ClaimEngine, ClaimOutcome, ClaimStart, Dead, End, Input, LEASE, Limits, Resolved,
};
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

/// Nodes whose unmarked messages the reading of the tail surely reaches.
const NODES_MAX: usize = 32;

/// There is no log, so no message has a position in it.
const NO_SYSTEM: u64 = 0;

type Job = BoxFuture<'static, Result<Done, Error>>;

enum Done {
    Claimed { claim: u32, store: Arc<Store>, rows: Vec<ScannedRow> },
    NotClaimed { store: Arc<Store> },
    GaveBack { store: Arc<Store>, marked: u64 },
    MadeUp { store: Arc<Store>, found: Option<Stuck> },
    Outcome(ClaimOutcome),
    Nothing,
}

/// A session of one node.
pub(crate) struct Poll {
    config: Arc<Config>,
    engine: ClaimEngine,
    rows: Rows,
    publisher: Publisher,
    answers: Answers,
    tail: TailReader,
    /// Wakes whoever reads the tail over a connection that is gone.
    reconnected: Arc<Notify>,
    jobs: FuturesUnordered<Job>,
    /// The connections that hold claims, by number.
    claims: HashMap<u32, Arc<Store>>,
    /// Connections without a claim.
    free: Vec<Arc<Store>>,
    started: Instant,
    tick: Interval,
    answered: Vec<Input>,
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
        let engine = ClaimEngine::new(ClaimStart {
            tail: newest,
            limits: Limits { events: config.window.events, bytes: config.window.bytes },
            ack_timeout: config.ack_timeout,
            max_attempts: config.max_attempts,
            workers: config.poll.workers,
            batch: config.poll.batch,
            interval: config.poll.interval,
            once,
            seed: rand::random(),
        });
        Ok(Self {
            config: Arc::clone(config),
            engine,
            rows: Rows::new(config.table.clone(), config.routing()),
            publisher,
            answers,
            tail,
            reconnected: Arc::new(Notify::new()),
            jobs: FuturesUnordered::new(),
            claims: HashMap::new(),
            free: vec![store],
            started: Instant::now(),
            tick: interval(TICK),
            answered: Vec::new(),
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
            self.engine.turn(self.now());
            self.carry_out(reporter)?;
            if self.engine.is_drained(self.now()) {
                info!(unresolved = self.engine.publishing().unresolved(), "stopped");
                self.report(reporter, true);
                return Ok(());
            }
            let sends = self.engine.has_send();
            let claims_at = self.engine.claims_at().map(|at| self.started + at);
            let claims_at = claims_at.unwrap_or(self.started).into();
            tokio::select! {
                () = stop.cancelled(), if !self.engine.is_draining() => {
                    self.engine.stop(self.now(), "on request");
                }
                answered = self.answers.receive(&mut self.answered) => answered?,
                Some(done) = self.jobs.next() => self.finish(done?, reporter)?,
                ready = self.publisher.ready(), if sends => ready?,
                () = tokio::time::sleep_until(claims_at), if claims_at > self.started.into() => {}
                _ = self.tick.tick() => self.tick(reporter)?,
            }
            if self.publisher.reconnected() {
                self.reconnected.notify_waiters();
                self.engine.apply(self.now(), Input::LinkLost);
            }
            while let Some(denied) = self.publisher.denied() {
                self.engine.apply(self.now(), denied);
            }
            let now = self.now();
            for input in self.answered.drain(..) {
                self.engine.apply(now, input);
            }
            self.send(reporter)?;
        }
    }

    /// Since the session began.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn send(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        while self.engine.has_send() && self.publisher.is_ready() {
            let now = self.started.elapsed();
            let Some(send) = self.engine.next_send(now) else { break };
            let index = send.index;
            reporter.sending(&send);
            if let Some(refusal) = self.publisher.send(&send)? {
                self.engine.apply(now, Input::Unsendable { index, refusal });
            }
        }
        Ok(())
    }

    /// Begins everything that the engine asks for.
    fn carry_out(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        while let Some(effect) = self.engine.next_effect() {
            match effect {
                ClaimEffect::Measure(resolved) => reporter.resolved(&resolved),
                ClaimEffect::Tell(notice) => reporter.tell(notice),
                ClaimEffect::End(End::Refused(reason)) => return Err(Error::Refused(reason)),
                ClaimEffect::End(_) => {
                    return Err(Error::Stalled("a claim was not renewed in time"));
                }
                effect => {
                    let job = self.job(effect);
                    self.jobs.extend(job);
                }
            }
        }
        Ok(())
    }

    fn job(&mut self, effect: ClaimEffect) -> Option<Job> {
        let holder = |claim| self.claims.get(&claim).map(Arc::clone);
        Some(match effect {
            ClaimEffect::Claim { claim } => {
                claim_rows(Arc::clone(&self.config), self.free.pop(), claim)
            }
            ClaimEffect::Renew { claim } => {
                let store = holder(claim)?;
                job(async move {
                    store.renew_claim().await?;
                    Ok(Done::Outcome(ClaimOutcome::Renewed { claim }))
                })
            }
            ClaimEffect::Mark { claim, published } => {
                let store = holder(claim)?;
                let stream = self.config.stream.name.clone();
                job(async move {
                    Ok(Done::Outcome(match store.mark(&stream, &published).await {
                        Err(error) if error.is_contention() => {
                            warn!(error = describe(&error), "marking rows later");
                            ClaimOutcome::NotMarked { claim, published }
                        }
                        marked => ClaimOutcome::Marked { claim, marked: marked? },
                    }))
                })
            }
            ClaimEffect::GiveBack { claim, published } => {
                let store = self.claims.remove(&claim)?;
                let stream = self.config.stream.name.clone();
                job(async move {
                    let marked = mark(&store, &stream, &published).await?;
                    store.finish_claim().await?;
                    Ok(Done::GaveBack { store, marked })
                })
            }
            ClaimEffect::Park { claim, index, dead } => {
                let store = holder(claim)?;
                job(async move {
                    park(&store, &dead).await?;
                    Ok(Done::Outcome(ClaimOutcome::Parked { index }))
                })
            }
            ClaimEffect::NoteFailure { claim, id, reason, pause } => {
                let store = holder(claim)?;
                job(async move {
                    if let Err(error) = store.note_failure(id, &reason, pause).await {
                        warn!(event_id = %id, error = describe(&error), "could not count an attempt");
                    }
                    Ok(Done::Nothing)
                })
            }
            ClaimEffect::ReadTail { from, delay } => {
                let from = from.saturating_sub(reach(&self.config)).max(1);
                read_tail(self.tail.clone(), Arc::clone(&self.reconnected), from, delay)
            }
            ClaimEffect::MakeUpForMarks => {
                let store = self.free.pop()?;
                job(async move {
                    let found = store.mark_owed().await.inspect_err(|error| {
                        warn!(error = describe(error), "left rows to be marked later");
                    });
                    Ok(Done::MadeUp { store, found: found.ok() })
                })
            }
            ClaimEffect::Measure(_) | ClaimEffect::Tell(_) | ClaimEffect::End(_) => return None,
        })
    }

    fn finish(&mut self, done: Done, reporter: &mut Reporter) -> Result<(), Error> {
        let outcome = match done {
            Done::Claimed { claim, store, rows } => {
                match rows.is_empty() {
                    true => self.free.push(store),
                    false => _ = self.claims.insert(claim, store),
                }
                let rows: Result<Vec<_>, _> =
                    rows.iter().map(|row| self.rows.scanned(row)).collect();
                ClaimOutcome::Claimed(rows?)
            }
            Done::NotClaimed { store } => {
                self.free.push(store);
                ClaimOutcome::NotClaimed
            }
            Done::GaveBack { store, marked } => {
                self.free.push(store);
                ClaimOutcome::GaveBack { marked }
            }
            Done::MadeUp { store, found } => {
                self.free.push(store);
                if let Some(stuck) = found {
                    reporter.stuck(stuck);
                }
                return Ok(());
            }
            Done::Outcome(outcome) => outcome,
            Done::Nothing => return Ok(()),
        };
        if let ClaimOutcome::TailFailed(why) = &outcome {
            warn!(error = why, "the stream does not answer, trying again");
        }
        self.engine.outcome(self.now(), outcome);
        Ok(())
    }

    fn tick(&mut self, reporter: &mut Reporter) -> Result<(), Error> {
        if self.claims.values().chain(&self.free).any(|it| it.client().is_closed()) {
            return Err(Error::Stalled("the server closed a connection for claims"));
        }
        self.engine.tick(self.now(), !self.free.is_empty());
        self.report(reporter, false);
        Ok(())
    }

    fn report(&self, reporter: &mut Reporter, last: bool) {
        let (publishing, marks) = (self.engine.publishing(), self.engine.mark_counts());
        reporter.report_parts(publishing, Lsn::ZERO, &marks, 0, last);
    }
}

fn claim_rows(config: Arc<Config>, free: Option<Arc<Store>>, claim: u32) -> Job {
    job(async move {
        let store = match free {
            Some(store) => store,
            None => connect(&config).await?,
        };
        let rows = match store.claim(config.poll.batch, LEASE).await {
            // Somebody changes the table.
            Err(error) if error.is_contention() => {
                warn!(error = describe(&error), "cannot claim rows, trying again");
                store.finish_claim().await?;
                return Ok(Done::NotClaimed { store });
            }
            rows => rows?,
        };
        Ok(Done::Claimed { claim, store, rows })
    })
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

async fn mark(store: &Store, stream: &str, resolved: &[Resolved]) -> Result<u64, Error> {
    let mut times = 0;
    loop {
        match store.mark(stream, resolved).await {
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
        Ok(Done::Outcome(match read {
            Ok(read) => ClaimOutcome::Tail(read),
            Err(error) => ClaimOutcome::TailFailed(describe(&error)),
        }))
    }
    .boxed()
}
