//! One producer.

use std::error::Error as _;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error, NoTls, Statement};
use uuid::Uuid;

use super::journal::{Commit, Journal};
use super::{OUTCOME_DEADLINE, WorkloadOptions};

/// Between two attempts to connect, or to learn an outcome.
const RETRY: Duration = Duration::from_millis(20);
/// For one attempt to connect: a paused server takes connections and says nothing.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// A writer that is further behind its rate than this does not make up for it.
const BEHIND_MAX: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    config: Config,
    outbox: String,
    /// Names of the aggregates that this writer alone writes.
    aggregates: Vec<String>,
    events_max: usize,
    rollbacks: f64,
    padding: String,
    /// Between two events; zero for as fast as it goes.
    pace: Duration,
    due: Instant,
    random: StdRng,
    journal: Arc<Journal>,
    stop: watch::Receiver<bool>,
}

struct Session {
    client: Client,
    backend: i32,
    insert_order: Statement,
    insert_events: Statement,
}

/// A transaction whose commit was asked for.
struct Asked {
    order: Uuid,
    ids: Vec<Uuid>,
    at: Instant,
    backend: i32,
}

/// Why a session is over.
enum Ended {
    Stopped,
    /// The server went away, with the answer to a commit perhaps.
    Gone(Option<Asked>),
}

impl Writer {
    pub(super) fn new(
        url: &str,
        options: &WorkloadOptions,
        index: usize,
        journal: Arc<Journal>,
        stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let mut config = Config::from_str(url).context("parse the workload's URL")?;
        config.application_name(format!("workload-{index}"));
        let count = options.aggregates.max(options.writers);
        let aggregates = (index..count).step_by(options.writers);
        #[expect(clippy::cast_precision_loss, reason = "few writers")]
        let writers = options.writers as f64;
        Ok(Self {
            config,
            outbox: options.table.clone(),
            aggregates: aggregates.map(|it| format!("customer-{it}")).collect(),
            events_max: options.events_per_transaction_max.max(1),
            rollbacks: options.rollbacks,
            padding: "x".repeat(options.padding),
            pace: options.rate.map_or(Duration::ZERO, |it| Duration::from_secs_f64(writers / it)),
            due: Instant::now(),
            random: StdRng::seed_from_u64(
                options.seed.wrapping_mul(1_000).wrapping_add(index as u64),
            ),
            journal,
            stop,
        })
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let mut unknown: Option<Asked> = None;
        loop {
            // Wanting nothing but an outcome, a stopped writer goes on for a while.
            let Some(session) = self.connect(unknown.is_some()).await? else {
                return match unknown {
                    None => Ok(()),
                    Some(_) => bail!("the server stayed away: the outcome of a commit is unknown"),
                };
            };
            if let Some(asked) = unknown.take() {
                match self.learn(&session, &asked).await {
                    Ok(()) => {}
                    Err(error) if is_gone(&error) => unknown = Some(asked),
                    Err(error) => return Err(error).context("learn the outcome of a commit"),
                }
                if unknown.is_some() {
                    continue;
                }
            }
            match self.write(&session).await.context("write events")? {
                Ended::Stopped => return Ok(()),
                Ended::Gone(asked) => unknown = asked,
            }
            if unknown.is_some() {
                self.journal.lose_answer();
            }
        }
    }

    /// Connects, however long it takes. `None` when stopped, at once or, if `insisting`, after a while.
    async fn connect(&mut self, insisting: bool) -> Result<Option<Session>> {
        let mut stopped_at = None;
        loop {
            if *self.stop.borrow() {
                let since = *stopped_at.get_or_insert_with(Instant::now);
                if !insisting || since.elapsed() > OUTCOME_DEADLINE {
                    return Ok(None);
                }
            }
            match tokio::time::timeout(CONNECT_DEADLINE, self.open()).await {
                Ok(Ok(session)) => return Ok(Some(session)),
                Ok(Err(error)) if !is_gone(&error) => {
                    return Err(error).context("connect a writer");
                }
                Ok(Err(_)) | Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn open(&self) -> Result<Session, Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        let backend = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        let insert_order = "INSERT INTO orders (id, customer, total_cents) VALUES ($1, $2, $3)";
        let insert_events = format!(
            "INSERT INTO {} (id, aggregate_type, aggregate_id, event_type, payload)
             SELECT id, 'customer', $1, type, payload
             FROM unnest($2::uuid[], $3::text[], $4::jsonb[]) AS event (id, type, payload)",
            self.outbox
        );
        let insert_order = client.prepare(insert_order).await?;
        let insert_events = client.prepare(&insert_events).await?;
        Ok(Session { client, backend, insert_order, insert_events })
    }

    /// Finds out whether a transaction committed whose answer was lost.
    async fn learn(&self, session: &Session, asked: &Asked) -> Result<(), Error> {
        // While its process lives the transaction may still commit, or wait for a standby. The new session has another process.
        let alive = "SELECT count(*) FROM pg_stat_activity
                     WHERE pid = $1 AND backend_type = 'client backend'";
        while asked.backend != session.backend
            && session.client.query_one(alive, &[&asked.backend]).await?.get::<_, i64>(0) > 0
        {
            tokio::time::sleep(RETRY).await;
        }
        let order = "SELECT count(*) FROM orders WHERE id = $1";
        let found = session.client.query_one(order, &[&asked.order]).await?.get::<_, i64>(0) > 0;
        let ids = asked.ids.clone();
        if found {
            self.journal.commit(Commit { ids, asked: asked.at, answered: None });
        } else {
            self.journal.roll_back(ids);
        }
        Ok(())
    }

    /// Writes until stopped, or until the server is gone.
    async fn write(&mut self, session: &Session) -> Result<Ended, Error> {
        loop {
            if *self.stop.borrow() {
                return Ok(Ended::Stopped);
            }
            match self.transaction(session).await {
                Ok(()) => {}
                Err((error, asked)) if is_gone(&error) => return Ok(Ended::Gone(asked)),
                Err((error, _)) => return Err(error),
            }
        }
    }

    async fn transaction(&mut self, session: &Session) -> Result<(), (Error, Option<Asked>)> {
        let before = |error| (error, None);
        let Session { client, insert_order, insert_events, backend } = session;
        let customer = self.aggregates[self.random.random_range(..self.aggregates.len())].clone();
        let count = self.random.random_range(1..=self.events_max);
        let rolls_back = self.random.random_bool(self.rollbacks);
        let cents: i64 = self.random.random_range(100..100_000);
        self.wait_for_turn(count).await;

        let order = Uuid::now_v7();
        let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
        let kinds: Vec<&str> = (0..count).map(kind).collect();
        let payloads: Vec<Value> = (0..count)
            .map(|line| {
                json!({ "order": order, "line": line, "total_cents": cents, "note": self.padding })
            })
            .collect();
        client.batch_execute("BEGIN").await.map_err(before)?;
        client.execute(insert_order, &[&order, &customer, &cents]).await.map_err(before)?;
        client
            .execute(insert_events, &[&customer, &ids, &kinds, &payloads])
            .await
            .map_err(before)?;
        if rolls_back {
            client.batch_execute("ROLLBACK").await.map_err(before)?;
            self.journal.roll_back(ids);
            return Ok(());
        }
        let at = Instant::now();
        if let Err(error) = client.batch_execute("COMMIT").await {
            return Err((error, Some(Asked { order, ids, at, backend: *backend })));
        }
        self.journal.commit(Commit { ids, asked: at, answered: Some(Instant::now()) });
        Ok(())
    }

    /// Waits until it is time for `count` more events, or to stop.
    async fn wait_for_turn(&mut self, count: usize) {
        if self.pace.is_zero() {
            return;
        }
        if self.due.elapsed() > BEHIND_MAX {
            self.due = Instant::now();
        }
        tokio::select! {
            () = tokio::time::sleep_until(self.due.into()) => {}
            _ = self.stop.wait_for(|it| *it) => {}
        }
        self.due += self.pace * u32::try_from(count).unwrap_or(u32::MAX);
    }
}

fn kind(line: usize) -> &'static str {
    if line == 0 { "order_placed" } else { "item_reserved" }
}

/// Whether the server went away, or is coming or going, as opposed to refusing what it was asked.
fn is_gone(error: &Error) -> bool {
    match error.code() {
        None => error.is_closed() || error.source().is_some_and(|it| it.is::<io::Error>()),
        Some(code) => {
            let going = [
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::TOO_MANY_CONNECTIONS,
            ];
            going.contains(code) || code.code().starts_with("08")
        }
    }
}
