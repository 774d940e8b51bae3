//! Writers that do what a service does: change a table and tell about it, in one transaction.

mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use outbox::Table;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use writer::Writer;

/// Called with the ids of a transaction's events just before its COMMIT is sent. Must not block.
pub type BeforeCommit = Arc<dyn Fn(&[Uuid]) + Send + Sync>;

/// What a [`Workload`] writes, and how fast.
#[derive(Clone)]
pub struct WorkloadOptions {
    /// Where the events go. `tailpost setup` must have made it.
    pub table: Table,
    /// Writers at a time, each with a connection of its own.
    pub writers: usize,
    /// Aggregates of each writer. No two writers share one, so events of an aggregate are
    /// committed in the order of their `seq`.
    pub aggregates: usize,
    /// A transaction writes 1 to so many events, all of one aggregate.
    pub events_max: usize,
    /// Committed events a second over all writers; as fast as they can if `None`.
    pub rate: Option<f64>,
    /// The share of transactions that are rolled back on purpose, 0 to 1.
    pub rolled_back: f64,
    /// Fixes what is written; the interleaving of writers stays up to the servers.
    pub seed: u64,
    /// Told of every transaction that is about to commit.
    pub before_commit: Option<BeforeCommit>,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            table: Table::default(),
            writers: 4,
            aggregates: 10,
            events_max: 3,
            rate: None,
            rolled_back: 0.1,
            seed: 0,
            before_commit: None,
        }
    }
}

/// An event that is in the table for good.
#[derive(Debug, Clone)]
pub struct CommittedEvent {
    /// Its id.
    pub id: Uuid,
    /// The `aggregate_id`; the `aggregate_type` is `order`.
    pub aggregate: String,
    /// Its place among the committed events of its aggregate, from 0. The payload's `counter`.
    pub ordinal: u64,
    /// Just before COMMIT was sent: a consumer may see the event before COMMIT returns.
    pub commit_sent: Instant,
    /// From then until its outcome was known.
    pub commit_took: Duration,
    /// Just after COMMIT returned, or after the unknown outcome of a COMMIT was found out.
    pub committed_at: Timestamp,
}

/// What a [`Workload`] did.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Committed events: those of one aggregate are in order, those of several are not.
    pub committed: Vec<CommittedEvent>,
    /// Events of transactions that were rolled back, on purpose or because a server went away.
    pub rolled_back: Vec<Uuid>,
}

/// Concurrent writers of orders and their events; see [`WorkloadOptions`].
///
/// Restarts of the server are survived: writers connect again, and whether a COMMIT without an
/// answer took place is looked up. Dropping it stops the writers like a crash.
pub struct Workload {
    writers: JoinSet<Result<Written>>,
    stop: watch::Sender<bool>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    committed: AtomicU64,
    rolled_back: AtomicU64,
}

impl Workload {
    /// Makes the table `orders` in the database at `url`, and lets the writers loose.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, has no outbox, or does not let the table be made.
    pub async fn start(url: &str, options: WorkloadOptions) -> Result<Self> {
        prepare(url, &options.table).await?;
        // Tells this workload's aggregates and locks from those of another one.
        let namespace = rand::rng().random_range(0..i32::MAX);
        let stop = watch::Sender::new(false);
        let counters = Arc::new(Counters::default());
        let options = Arc::new(options);
        let mut writers = JoinSet::new();
        for index in 0..options.writers {
            let index = i32::try_from(index).context("count the writers")?;
            let writer = Writer::new(url, namespace, index, &options, &counters);
            writers.spawn(writer.run(stop.subscribe()));
        }
        Ok(Self { writers, stop, counters })
    }

    /// Events committed so far.
    pub fn committed(&self) -> u64 {
        self.counters.committed.load(Ordering::Relaxed)
    }

    /// Events rolled back so far.
    pub fn rolled_back(&self) -> u64 {
        self.counters.rolled_back.load(Ordering::Relaxed)
    }

    /// Lets every writer finish its transaction, and tells what they did.
    ///
    /// # Errors
    ///
    /// When a writer met an error that no reconnecting mends, or cannot find out within a minute
    /// whether its last transaction was committed.
    pub async fn stop(mut self) -> Result<Written> {
        self.stop.send_replace(true);
        let mut all = Written::default();
        while let Some(written) = self.writers.join_next().await {
            let written = written.context("join a writer")??;
            all.committed.extend(written.committed);
            all.rolled_back.extend(written.rolled_back);
        }
        Ok(all)
    }
}

async fn prepare(url: &str, outbox: &Table) -> Result<()> {
    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
    let (client, connection) = connected.context("connect the workload")?;
    tokio::spawn(connection);
    let sql = "CREATE TABLE IF NOT EXISTS orders (
        id UUID PRIMARY KEY, aggregate TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL DEFAULT now()
    )";
    client.batch_execute(sql).await.context("create table orders")?;
    let look = format!("SELECT FROM {} LIMIT 0", outbox.quoted());
    client.batch_execute(&look).await.with_context(|| format!("look at table {outbox}"))
}

/// One transaction to be.
struct Order {
    id: Uuid,
    aggregate: usize,
    aggregate_id: String,
    first_ordinal: u64,
    events: Vec<Uuid>,
    rolls_back: bool,
}

impl Order {
    fn draw(rng: &mut StdRng, options: &WorkloadOptions, prefix: &str, next: &[u64]) -> Self {
        let aggregate = rng.random_range(0..next.len());
        let count = rng.random_range(1..=options.events_max.max(1));
        Self {
            id: Uuid::now_v7(),
            aggregate,
            aggregate_id: format!("{prefix}-{aggregate}"),
            first_ordinal: next[aggregate],
            events: (0..count).map(|_| Uuid::now_v7()).collect(),
            rolls_back: rng.random_bool(options.rolled_back.clamp(0.0, 1.0)),
        }
    }
}
