//! One writer: a connection, a loop of transactions, and the truth about each of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::{Client, NoTls, Statement};

use super::{CommittedEvent, Counters, Order, WorkloadOptions, Written};

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// After this long without an answer the connection counts as broken.
const STEP_DEADLINE: Duration = Duration::from_secs(5);

/// How long the end of the run waits to find out about a last COMMIT.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(60);

/// A writer that is further behind its rate does not catch up: the server was away.
const BEHIND_MAX: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    url: String,
    namespace: i32,
    index: i32,
    options: Arc<WorkloadOptions>,
    counters: Arc<Counters>,
    rng: StdRng,
    // Ordinal of the next event, by aggregate.
    next: Vec<u64>,
    // Its COMMIT was sent and not answered. Nothing else is written before its outcome is known.
    unknown: Option<(Order, std::time::Instant)>,
    written: Written,
}

struct Session {
    client: Client,
    insert_order: Statement,
    insert_events: Statement,
}

enum Outcome {
    Committed(std::time::Instant),
    RolledBack,
    /// The session broke before COMMIT was sent.
    Broken(Option<tokio_postgres::Error>),
    /// The session broke after COMMIT was sent.
    Unknown(std::time::Instant),
}

impl Writer {
    pub(super) fn new(
        url: &str,
        namespace: i32,
        index: i32,
        options: &Arc<WorkloadOptions>,
        counters: &Arc<Counters>,
    ) -> Self {
        let seed =
            options.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(index.unsigned_abs());
        Self {
            url: url.to_owned(),
            namespace,
            index,
            options: Arc::clone(options),
            counters: Arc::clone(counters),
            rng: StdRng::seed_from_u64(seed),
            next: vec![0; options.aggregates.max(1)],
            unknown: None,
            written: Written::default(),
        }
    }

    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<Written> {
        let prefix = format!("{:08x}-{}", self.namespace, self.index);
        let mut session = None;
        let mut due = Instant::now();
        while !*stop.borrow() {
            let Some(open) = &mut session else {
                session = self.reconnect().await?;
                continue;
            };
            let order = Order::draw(&mut self.rng, &self.options, &prefix, &self.next);
            let outcome = open.write(&order, &self.options).await;
            if matches!(outcome, Outcome::Broken(_) | Outcome::Unknown(_)) {
                session = None;
            }
            let paced = matches!(outcome, Outcome::Committed(_)).then_some(order.events.len());
            self.note_outcome(order, outcome)?;
            if let (Some(rate), Some(events)) = (self.options.rate, paced) {
                due = next_due(due, events, rate / f64::from(self.writers()));
                tokio::select! {
                    () = sleep_until(due) => {}
                    _ = stop.changed() => {}
                }
            }
        }
        drop(session);
        self.resolve_last().await?;
        Ok(self.written)
    }

    fn writers(&self) -> u32 {
        u32::try_from(self.options.writers).unwrap_or(u32::MAX)
    }

    fn note_outcome(&mut self, order: Order, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Committed(sent) => self.committed(&order, sent),
            Outcome::RolledBack => self.rolled_back(&order),
            Outcome::Broken(error) => {
                self.rolled_back(&order);
                if let Some(error) = error.filter(is_permanent) {
                    return Err(error).context("write an order and its events");
                }
            }
            Outcome::Unknown(sent) => self.unknown = Some((order, sent)),
        }
        Ok(())
    }

    fn committed(&mut self, order: &Order, commit_sent: std::time::Instant) {
        let committed_at = Timestamp::now();
        let commit_took = commit_sent.elapsed();
        let events = (order.first_ordinal..).zip(&order.events);
        self.written.committed.extend(events.map(|(ordinal, &id)| CommittedEvent {
            id,
            aggregate: order.aggregate_id.clone(),
            ordinal,
            commit_sent,
            commit_took,
            committed_at,
        }));
        let count = order.events.len() as u64;
        self.next[order.aggregate] = order.first_ordinal + count;
        self.counters.committed.fetch_add(count, Ordering::Relaxed);
    }

    fn rolled_back(&mut self, order: &Order) {
        self.written.rolled_back.extend(&order.events);
        self.counters.rolled_back.fetch_add(order.events.len() as u64, Ordering::Relaxed);
    }

    /// One attempt to connect and to find out about the last COMMIT; `None` after a short pause if
    /// the server is not there.
    async fn reconnect(&mut self) -> Result<Option<Session>> {
        let opened = timeout(STEP_DEADLINE, self.open()).await;
        match opened {
            Ok(Ok(session)) => Ok(Some(session)),
            Ok(Err(error)) if is_permanent(&error) => Err(error).context("prepare the workload"),
            Ok(Err(_)) | Err(_) => {
                sleep(PAUSE).await;
                Ok(None)
            }
        }
    }

    async fn open(&mut self) -> Result<Session, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        // Ends with the client, or with the server: either way the client's next call tells.
        tokio::spawn(connection);
        self.take_over(&client).await?;
        if let Some((order, sent)) = self.unknown.take() {
            match client.query_opt("SELECT FROM orders WHERE id = $1", &[&order.id]).await {
                Ok(Some(_)) => self.committed(&order, sent),
                Ok(None) => self.rolled_back(&order),
                Err(error) => {
                    self.unknown = Some((order, sent));
                    return Err(error);
                }
            }
        }
        let insert_order = "INSERT INTO orders (id, aggregate) VALUES ($1, $2)";
        let insert_events = format!(
            "INSERT INTO {} (id, aggregate_type, aggregate_id, event_type, payload) \
             SELECT id, 'order', $2, 'OrderChanged', \
             jsonb_build_object('order', $3::uuid, 'counter', $4::bigint + ordinal - 1) \
             FROM unnest($1::uuid[]) WITH ORDINALITY AS event (id, ordinal) ORDER BY ordinal",
            self.options.table.quoted()
        );
        Ok(Session {
            insert_order: client.prepare(insert_order).await?,
            insert_events: client.prepare(&insert_events).await?,
            client,
        })
    }

    /// Ends this writer's earlier session on the server, if there still is one, so that an
    /// unanswered COMMIT has either happened or never will.
    async fn take_over(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' \
                   AND classid::bigint = $1::int AND objid::bigint = $2::int \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        client.execute(end, &[&self.namespace, &self.index]).await?;
        client.execute("SELECT pg_advisory_lock($1, $2)", &[&self.namespace, &self.index]).await?;
        Ok(())
    }

    async fn resolve_last(&mut self) -> Result<()> {
        let started = Instant::now();
        while self.unknown.is_some() {
            if started.elapsed() > RESOLVE_DEADLINE {
                bail!("could not find out whether the last transaction was committed");
            }
            self.reconnect().await?;
        }
        Ok(())
    }
}

impl Session {
    async fn write(&mut self, order: &Order, options: &WorkloadOptions) -> Outcome {
        let prepared = timeout(STEP_DEADLINE, async {
            let tx = self.client.transaction().await?;
            tx.execute(&self.insert_order, &[&order.id, &order.aggregate_id]).await?;
            let first = i64::try_from(order.first_ordinal).unwrap_or(i64::MAX);
            tx.execute(
                &self.insert_events,
                &[&order.events, &order.aggregate_id, &order.id, &first],
            )
            .await?;
            Ok(tx)
        });
        let tx = match prepared.await {
            Ok(Ok(tx)) => tx,
            Ok(Err(error)) => return Outcome::Broken(Some(error)),
            Err(_) => return Outcome::Broken(None),
        };
        if order.rolls_back {
            return match timeout(STEP_DEADLINE, tx.rollback()).await {
                Ok(Ok(())) => Outcome::RolledBack,
                Ok(Err(error)) => Outcome::Broken(Some(error)),
                Err(_) => Outcome::Broken(None),
            };
        }
        if let Some(before_commit) = &options.before_commit {
            before_commit(&order.events);
        }
        let sent = std::time::Instant::now();
        match timeout(STEP_DEADLINE, tx.commit()).await {
            Ok(Ok(())) => Outcome::Committed(sent),
            Ok(Err(_)) | Err(_) => Outcome::Unknown(sent),
        }
    }
}

fn next_due(due: Instant, events: usize, rate: f64) -> Instant {
    let events = u32::try_from(events).map_or(f64::INFINITY, f64::from);
    let gap = Duration::try_from_secs_f64(events / rate).unwrap_or(BEHIND_MAX);
    let now = Instant::now();
    if now.duration_since(due) > BEHIND_MAX { now + gap } else { due + gap }
}

/// Data exceptions, violated constraints, missing tables: no reconnecting mends them.
fn is_permanent(error: &tokio_postgres::Error) -> bool {
    let class = error.code().and_then(|code| code.code().get(..2));
    matches!(class, Some("22" | "23" | "28" | "3D" | "42"))
}
