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

use pgoutput::Lsn;
use tracing::info;

use self::claim_jobs::CONNECTION;
use super::stream_comparison::{self, HistoryWatch};
use super::{Done, Ended, Job, OpenWith, Opened, Source, lost_end, other_messages, replication};
use crate::config::Config;
use crate::engine::{ClaimsInput, ClaimsSettings, Engine, LastEvent, Mode, Publishing, Seen};
use crate::error::Error;
use crate::nats::{self, Attributes, History, Publisher, TailReader};
use crate::postgres::sql::ScannedRow;
use crate::postgres::{Encoding, Rows, Store, sql};
use crate::reporter::News;

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
    pub(super) last_event: Option<LastEvent>,
}

pub(super) async fn open(with: OpenWith<'_>) -> Result<Opened, Error> {
    let OpenWith { config, opening, client, link, once } = with;
    let store = Store::watched(config, CONNECTION, opening).await?;
    store.check_outbox().await?;
    store.check_marks_are_on_rows().await?;
    store.check_shards(config).await?;
    store.number_behind_those_that_wait().await?;
    let encoding = Encoding::of(&store).await?;
    let tail = TailReader::new(client, &config.stream.name).await?;
    let tail = tail.judged_by(other_messages::judge(config));
    nats::stream_check::check(config, client, &tail).await?;
    let last_event = lost_end::mend_claimed(config, &store, &tail).await?;
    let stream_created = store.stream_created().into();
    let (started, reach) = (Instant::now(), reach(config));
    let newest = tail.newest_since(1, reach, NO_SYSTEM).await?;
    let history = History { system_id: NO_SYSTEM, timeline: 0 };
    let stream = &config.stream.name;
    let names = config.cloudevents.clone();
    let attributes = names.map(|names| Attributes { names, epoch: None });
    let limits = tail.limits();
    let publisher =
        Publisher::new(client.clone(), stream, history, true, attributes, limits, link.clone());
    let (publisher, answers) = publisher.await?;
    info!(stream = config.stream.name, read_back = newest.stored.len(), "polling the outbox");
    let last_event = LastEvent::later(newest.last, last_event);
    // Nothing comes from a log.
    let start = replication::start(config, Mode::Keyed, newest, (Lsn(u64::MAX), Lsn::ZERO));
    let settings = ClaimsSettings {
        workers: config.poll.workers,
        batch: config.poll.batch,
        interval: config.poll.interval,
        reach,
        once,
    };
    let engine = Engine::of_claims(Publishing::new(start), settings);
    let source = Polling {
        config: Arc::clone(config),
        rows: Rows::new(config.table.clone(), config.routing()).stored_in(encoding),
        tail: tail.clone(),
        stream_created,
        claims: HashMap::new(),
        free: vec![Arc::new(sql::Rows::of(store).await?)],
        history: HistoryWatch::new(),
        last_event,
    };
    Ok(Opened {
        source: Source::Table(Box::new(source)),
        engine,
        publisher,
        answers,
        tail,
        started,
        news: News::default(),
    })
}

pub(super) fn close(engine: &Engine) -> Ended {
    info!(unresolved = engine.publishing().unresolved(), "stopped");
    Ended::Stopped
}

impl Polling {
    /// Whether the connections are there, and one of them has no claim.
    pub(super) fn look(&self) -> Result<Seen, Error> {
        if self.claims.values().chain(&self.free).any(|it| it.is_closed()) {
            return Err(Error::Stalled("the server closed a connection for claims"));
        }
        Ok(Seen { silence: Duration::ZERO, has_free: !self.free.is_empty() })
    }

    /// Keeps the connection of a claim.
    pub(super) fn claimed(
        &mut self,
        claim: u32,
        store: Arc<sql::Rows>,
        rows: &[ScannedRow],
    ) -> Result<ClaimsInput, Error> {
        match rows.is_empty() {
            true => self.free.push(store),
            false => _ = self.claims.insert(claim, store),
        }
        let rows: Result<Vec<_>, _> = rows.iter().map(|row| self.rows.scanned(row)).collect();
        Ok(ClaimsInput::Claimed(rows?))
    }

    /// A connection has no claim any more.
    pub(super) fn free(&mut self, store: Arc<sql::Rows>) {
        self.free.push(store);
    }

    pub(super) fn watch_history(&mut self, now: Duration) -> Option<Job> {
        // Only where no claim needs the connection.
        if self.free.is_empty() || !self.history.is_due(now) {
            return None;
        }
        let (store, tail) = (self.free.pop()?, self.tail.clone());
        let config = Arc::clone(&self.config);
        Some(claim_jobs::job(async move {
            let found = stream_comparison::compare(&config, &store, &tail).await?;
            Ok(Done::Freed(store, Done::Compared(found).into()))
        }))
    }
}

/// The stream's newest messages that surely hold whatever was published and not marked.
fn reach(config: &Config) -> u64 {
    (NODES_MAX * config.poll.workers * config.poll.batch) as u64
}
