//! The table as a source: rows are claimed, published, and marked.
//!
//! For servers without logical decoding. Any number of nodes may do so side by side; an aggregate's
//! rows are claimed by one of them at a time. The engine decides; this does what it says, over a
//! connection for each claim.
//!
//! What keeps events single: `Nats-Msg-Id` while the broker remembers it. For the time beyond, the
//! stream's newest messages are read when a session begins and after every trouble with the broker,
//! enough of them to hold whatever any node published and did not mark. What came since is read
//! when rows are claimed, or sent, and the last reading is too old.

mod claim_jobs;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use servers::NatsLink;
use tokio::sync::watch;
use tracing::{info, warn};

use self::claim_jobs::{CONNECTION, Done};
use super::history_watch::{self, HistoryWatch};
use super::{Ended, Job, Opened, Source, lost_end};
use crate::config::Config;
use crate::engine::{
    ClaimEffect, ClaimEngine, ClaimOutcome, ClaimStart, Decides, Input, LastEvent, Limits, Send,
};
use crate::error::Error;
use crate::nats::{self, History, Publisher, TailReader};
use crate::postgres::{Encoding, Opening, Rows, Store, sql};
use crate::reporter::Reporter;

/// Nodes whose unmarked messages the reading of the tail surely reaches.
const NODES_MAX: usize = 32;

/// There is no log, so no message has a position in it.
const NO_SYSTEM: u64 = 0;

/// The claims of one node.
pub(crate) struct Polling {
    config: Arc<Config>,
    rows: Rows,
    tail: TailReader,
    /// When the stream was created.
    stream_created: Arc<str>,
    /// The connections that hold claims, by number.
    claims: HashMap<u32, Arc<sql::Rows>>,
    /// Connections without a claim.
    free: Vec<Arc<sql::Rows>>,
    history: HistoryWatch,
    /// The last event that this session knows to be stored.
    last_event: Option<LastEvent>,
}

impl Source for Polling {
    type Engine = ClaimEngine;
    type Done = Done;

    async fn open(
        config: &Arc<Config>,
        opening: &Opening,
        client: &Client,
        link: watch::Receiver<NatsLink>,
        once: bool,
        _: Option<String>,
    ) -> Result<Opened<Self>, Error> {
        let store = Store::watched(config, CONNECTION, opening).await?;
        store.check_outbox().await?;
        store.check_marks_are_on_rows().await?;
        store.check_shards(config).await?;
        let encoding = Encoding::of(&store).await?;
        let tail = TailReader::new(client, &config.stream.name).await?;
        nats::stream_check::check(config, client, &tail).await?;
        let last_event = lost_end::mend_claimed(config, &store, &tail).await?;
        let stream_created = store.stream_created().into();
        let (started, reach) = (Instant::now(), reach(config));
        let newest = tail.newest_since(1, reach, NO_SYSTEM).await?;
        let history = History { system_id: NO_SYSTEM, timeline: 0 };
        let stream = &config.stream.name;
        let (publisher, answers) =
            Publisher::new(client.clone(), stream, history, true, tail.limits(), link).await?;
        info!(stream = config.stream.name, read_back = newest.stored.len(), "polling the outbox");
        let last_event = LastEvent::later(newest.last, last_event);
        let engine = ClaimEngine::new(ClaimStart {
            tail: newest,
            limits: Limits { events: config.window.events, bytes: config.window.bytes },
            ack_timeout: config.ack_timeout,
            max_attempts: config.max_attempts,
            workers: config.poll.workers,
            batch: config.poll.batch,
            interval: config.poll.interval,
            reach,
            once,
            seed: rand::random(),
        });
        let source = Self {
            config: Arc::clone(config),
            rows: Rows::new(config.table.clone(), config.routing()).stored_in(encoding),
            tail: tail.clone(),
            stream_created,
            claims: HashMap::new(),
            free: vec![Arc::new(sql::Rows::of(store).await?)],
            history: HistoryWatch::new(),
            last_event,
        };
        let (unfenced, restores, went_back) = (None, false, None);
        Ok(Opened {
            source,
            engine,
            publisher,
            answers,
            tail,
            started,
            unfenced,
            restores,
            went_back,
        })
    }

    fn timeline(&self) -> Option<u32> {
        None
    }

    /// Rows come with claims.
    async fn receive(&mut self, _: &mut Vec<Input>) -> Result<(), Error> {
        std::future::pending().await
    }

    /// One that has closed ends the session.
    fn watch_connections(&self, _: &mut ClaimEngine, _: Duration) {}

    fn carry_out(
        &mut self,
        effect: ClaimEffect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job<Done>>, Error> {
        self.carry_out_effect(effect, reporter)
    }

    fn finish(
        &mut self,
        done: Done,
        engine: &mut ClaimEngine,
        now: Duration,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
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
            Done::Compared { store, found } => {
                self.free.push(store);
                reporter.compared(found);
                return Ok(());
            }
            Done::Outcome(outcome) => outcome,
            Done::Nothing => return Ok(()),
        };
        if let ClaimOutcome::TailFailed(why) | ClaimOutcome::LookFailed(why) = &outcome {
            warn!(error = why, "the stream does not answer, trying again");
        }
        if let ClaimOutcome::Tail(tail) | ClaimOutcome::Looked(tail) = &outcome {
            self.last_event = LastEvent::later(tail.last, self.last_event);
        }
        engine.outcome(now, outcome);
        Ok(())
    }

    /// After a pause of the process the claims may be somebody else's, which each message has to
    /// know.
    fn next_send(engine: &mut ClaimEngine, started: Instant) -> Option<Send<'_>> {
        engine.next_send(started.elapsed())
    }

    fn tick(&mut self, engine: &mut ClaimEngine, now: Duration) -> Result<(), Error> {
        if self.claims.values().chain(&self.free).any(|it| it.is_closed()) {
            return Err(Error::Stalled("the server closed a connection for claims"));
        }
        engine.tick(now, !self.free.is_empty());
        Ok(())
    }

    fn watch_history(&mut self, now: Duration) -> Option<Job<Done>> {
        // Only where no claim needs the connection.
        if self.free.is_empty() || !self.history.is_due(now) {
            return None;
        }
        let (store, tail) = (self.free.pop()?, self.tail.clone());
        let stream = self.config.stream.name.clone();
        Some(claim_jobs::job(async move {
            let found = history_watch::compare(&store, &tail, &stream).await?;
            Ok(Done::Compared { store, found })
        }))
    }

    async fn close(self, engine: &ClaimEngine) -> Result<Ended, Error> {
        info!(unresolved = engine.figures().publishing.unresolved(), "stopped");
        Ok(Ended::Stopped)
    }

    /// The claims end with their connections.
    async fn fail(self, _: &Error) -> Result<(), Error> {
        Ok(())
    }
}

/// The stream's newest messages that surely hold whatever was published and not marked.
fn reach(config: &Config) -> u64 {
    (NODES_MAX * config.poll.workers * config.poll.batch) as u64
}
