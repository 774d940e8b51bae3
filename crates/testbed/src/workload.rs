//! Producers that write orders with events, through anything that happens to the server.

mod journal;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use journal::Journal;
pub use journal::{Commit, Record};
use writer::Writer;

/// How to write.
#[derive(Debug, Clone)]
pub struct WorkloadOptions {
    /// Decides everything but the ids and the timing.
    pub seed: u64,
    /// Writers at work at the same time.
    pub writers: usize,
    /// Aggregates, shared out among the writers: each aggregate has one writer, so its events have one order.
    pub aggregates: usize,
    /// A transaction writes 1 to this many events, all of one aggregate.
    pub events_per_transaction_max: usize,
    /// Which share of the transactions roll back, from 0.0 to 1.0.
    pub rollbacks: f64,
    /// Events a second, committed or not, over all writers; as fast as it goes if `None`.
    pub rate: Option<f64>,
    /// Bytes that each payload is padded by.
    pub padding: usize,
    /// The outbox, as in SQL.
    pub table: String,
}

impl Default for WorkloadOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            writers: 4,
            aggregates: 100,
            events_per_transaction_max: 3,
            rollbacks: 0.1,
            rate: None,
            padding: 100,
            table: "public.outbox_events".to_owned(),
        }
    }
}

/// Concurrent writers, at work until stopped or dropped.
///
/// Each transaction inserts a row into `orders` and events into the outbox, with plain SQL. When the server goes away, writers connect again for as
/// long as it takes; a commit whose answer was lost is looked up before its writer goes on.
pub struct Workload {
    journal: Arc<Journal>,
    stop: watch::Sender<bool>,
    writers: JoinSet<Result<()>>,
}

impl Workload {
    /// Makes the table `orders` in the database at `url` if there is none, and starts writing.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, or refuses the table.
    pub async fn start(url: &str, options: WorkloadOptions) -> Result<Self> {
        let (client, connection) =
            tokio_postgres::connect(url, NoTls).await.context("connect the workload")?;
        let connection = tokio::spawn(connection);
        client.batch_execute(ORDERS).await.context("create table orders")?;
        connection.abort();

        let (journal, stop) = (Arc::<Journal>::default(), watch::Sender::new(false));
        let mut writers = JoinSet::new();
        for index in 0..options.writers {
            let journal = Arc::clone(&journal);
            let writer = Writer::new(url, &options, index, journal, stop.subscribe())?;
            writers.spawn(writer.run());
        }
        Ok(Self { journal, stop, writers })
    }

    /// How many events have committed so far.
    pub fn committed(&self) -> usize {
        self.journal.committed()
    }

    /// How many events have been rolled back so far.
    pub fn rolled_back(&self) -> usize {
        self.journal.rolled_back()
    }

    /// The transactions that committed, from the one with this index on, in no certain order: for measuring while it runs.
    pub fn commits_from(&self, index: usize) -> Vec<Commit> {
        self.journal.commits_from(index)
    }

    /// Ends the transactions under way and returns what was written.
    ///
    /// # Errors
    ///
    /// When a writer failed for another reason than a server that went away, or the server stayed away for so long (a minute) that
    /// the outcome of a commit is unknown.
    pub async fn stop(mut self) -> Result<Record> {
        self.stop.send_replace(true);
        while let Some(ended) = self.writers.join_next().await {
            ended??;
        }
        Ok(self.journal.take())
    }
}

const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (
    id UUID PRIMARY KEY,
    customer TEXT NOT NULL,
    total_cents BIGINT NOT NULL
)";

/// How long a stopped writer tries to learn the outcome of its last commit.
const OUTCOME_DEADLINE: Duration = Duration::from_secs(60);
