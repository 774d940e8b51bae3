//! Steady traffic, and what comes of it out of the stream.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::arrivals::{self, Arrival};
use crate::bench_env::BenchEnv;
use crate::load::Shape;
use crate::pace::Pace;

/// Until it is stopped.
const PACE: Pace = Pace { events_per_second: 500, events_per_transaction: 1, seconds: 600 };

/// Arrivals that nobody has looked at yet, at most.
const UNREAD_MAX: usize = 65_536;

const UNPOISONED: &str = "nobody panics with it";

/// When the commit of each event began.
type Commits = Arc<Mutex<HashMap<Uuid, Instant>>>;

/// Commits events at a steady pace, one per transaction.
pub(crate) struct Traffic {
    commits: Commits,
    stop: oneshot::Sender<()>,
    producer: JoinHandle<Result<()>>,
}

impl Traffic {
    pub(crate) async fn start(env: &BenchEnv<'_>) -> Result<Self> {
        let mut client = env.servers.postgres.client(&env.name).await?;
        let commits = Commits::default();
        let (stop, mut stopped) = oneshot::channel();
        let noted = Arc::clone(&commits);
        let mut schedule = PACE.start(1).remove(0);
        let producer = tokio::spawn(async move {
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                let Some(due) = schedule.recv().await else { break };
                let event = Shape::DEFAULT.event(due.events.start)?;
                let transaction = client.transaction().await?;
                outbox::enqueue(&transaction, &event).await?;
                noted.lock().expect(UNPOISONED).insert(event.id, Instant::now());
                transaction.commit().await?;
            }
            Ok(())
        });
        Ok(Self { commits, stop, producer })
    }

    /// Returns how many events were committed.
    pub(crate) async fn stop(self) -> Result<usize> {
        drop(self.stop);
        self.producer.await?.context("produce events")?;
        Ok(self.commits.lock().expect(UNPOISONED).len())
    }
}

/// Takes down what comes out of the stream.
pub(crate) struct Watch {
    commits: Commits,
    arrivals: mpsc::Receiver<Result<(Uuid, Arrival)>>,
    seen: HashSet<Uuid>,
}

impl Watch {
    pub(crate) async fn start(env: &BenchEnv<'_>, traffic: &Traffic) -> Result<Self> {
        let mut messages = arrivals::consumer(&env.jetstream, &env.name).await?;
        let (sender, arrivals) = mpsc::channel(UNREAD_MAX);
        tokio::spawn(async move {
            while sender.send(arrivals::next(&mut messages).await).await.is_ok() {}
        });
        let commits = Arc::clone(&traffic.commits);
        Ok(Self { commits, arrivals, seen: HashSet::new() })
    }

    /// When the first event arrived whose commit began after `since`.
    pub(crate) async fn committed_after(&mut self, since: Instant) -> Result<Instant> {
        loop {
            let (id, arrival) = self.next().await?;
            let committing = self.commits.lock().expect(UNPOISONED).get(&id).copied();
            if committing.context("an event that nobody committed")? > since {
                return Ok(arrival.at);
            }
        }
    }

    /// Waits until all of so many events have arrived, once.
    pub(crate) async fn saw_all(mut self, committed: usize) -> Result<()> {
        while self.seen.len() < committed {
            self.next().await.context("events are lost")?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<(Uuid, Arrival)> {
        let (id, arrival) = self.arrivals.recv().await.context("nothing arrives any more")??;
        ensure!(self.seen.insert(id), "event {id} arrived twice");
        Ok((id, arrival))
    }
}
