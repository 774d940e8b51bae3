//! A worker of an inbox, to be killed. What its handler does to an event the event's payload says;
//! what it has done is in the tables `runs` (outside of any transaction of the inbox) and `effects`.

use std::sync::Arc;
use std::time::Duration;

use inbox::{Backoff, Connection, Delivery, Inbox, LeasedHandler, TransactionalHandler, Verdict};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio_postgres::{Client, GenericClient, NoTls, Transaction};
use tokio_util::sync::CancellationToken;

/// The orders in an event.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Orders {
    /// Its place among the events of its aggregate.
    #[serde(alias = "counter")]
    n: i64,
    /// Take your time.
    sleep_ms: u64,
    /// Fail before this attempt.
    fail_before: u32,
    /// Fail while there is a table `closed`.
    while_closed: bool,
    /// Kill the process.
    abort: bool,
    /// Never again.
    dead: bool,
    /// Let a statement fail, and keep quiet about it.
    break_transaction: bool,
}

struct Worker {
    /// For what happens whatever becomes of the transaction.
    outside: Mutex<Arc<Client>>,
}

impl Worker {
    async fn outside(&self) -> Result<Arc<Client>, inbox::BoxError> {
        let mut client = self.outside.lock().await;
        if client.is_closed() {
            *client = Arc::new(connect().await?);
        }
        Ok(Arc::clone(&client))
    }

    async fn begin(&self, delivery: &Delivery<'_>) -> Orders {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let attempt = i32::try_from(delivery.attempt).expect("few");
        let sql = "INSERT INTO runs (event_id, pid, attempt) VALUES ($1, $2, $3)";
        if std::env::var_os("WORKER_RUNS").is_some() {
            let client = self.outside().await.expect("a database");
            let _ = client.execute(sql, &[&delivery.event.id, &pid, &attempt]).await;
        }
        let orders: Orders = serde_json::from_slice(&delivery.event.payload).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(orders.sleep_ms)).await;
        if orders.abort {
            std::process::abort();
        }
        orders
    }

    async fn effect(delivery: &Delivery<'_>, orders: &Orders, on: &impl GenericClient) -> Verdict {
        let sql = "INSERT INTO effects (event_id, aggregate_id, n) VALUES ($1, $2, $3)";
        let aggregate: &str = &delivery.event.aggregate_id;
        if orders.while_closed {
            let closed = on.query_one("SELECT to_regclass('closed') IS NOT NULL", &[]).await;
            if closed.is_ok_and(|row| row.get(0)) {
                return Verdict::retry("closed");
            }
        }
        match on.execute(sql, &[&delivery.event.id, &aggregate, &orders.n]).await {
            Ok(_) if delivery.attempt < orders.fail_before => Verdict::retry("not yet"),
            Ok(_) if orders.dead => Verdict::dead("never"),
            Ok(_) => Verdict::processed(),
            Err(error) => Verdict::retry(error),
        }
    }
}

impl TransactionalHandler for Worker {
    async fn handle(&self, delivery: Delivery<'_>, transaction: &Transaction<'_>) -> Verdict {
        let orders = self.begin(&delivery).await;
        let verdict = Self::effect(&delivery, &orders, transaction).await;
        if orders.break_transaction {
            let _ = transaction.batch_execute("SELECT 1 / 0").await;
        }
        verdict
    }
}

struct Outside(Worker);

impl LeasedHandler for Outside {
    async fn handle(&self, delivery: Delivery<'_>) -> Verdict {
        let orders = self.0.begin(&delivery).await;
        if delivery.attempt < orders.fail_before {
            return Verdict::retry("not yet");
        }
        if orders.dead {
            return Verdict::dead("never");
        }
        match self.0.outside().await {
            Ok(client) => Worker::effect(&delivery, &orders, &*client).await,
            Err(error) => Verdict::retry(error),
        }
    }
}

async fn connect() -> Result<Client, inbox::BoxError> {
    let url = std::env::var("DATABASE_URL")?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::main]
async fn main() -> Result<(), inbox::BoxError> {
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        terminated.recv().await;
        stop.cancel();
    });
    let log = tracing_subscriber::EnvFilter::new("info");
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let connect_nats = || async {
        let url = std::env::var("NATS_URL")?;
        let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
        Ok::<_, inbox::BoxError>(options.connect(url).await?)
    };
    let backoff = Duration::from_millis(setting("WORKER_BACKOFF_MS", 100));
    let builder = Inbox::builder(setting("WORKER_CONSUMER", "worker".to_owned()))
        .postgres(|| async { Ok(Connection::new(connect().await?)) })
        .nats(connect_nats().await?)
        .reconnect_nats(connect_nats)
        .stream("OUTBOX")
        .filter_subjects(
            setting("WORKER_SUBJECTS", String::new()).split(',').filter(|it| !it.is_empty()),
        )
        .lanes(setting("WORKER_LANES", 4))
        .batch(setting("WORKER_BATCH", 64))
        .max_attempts(setting("WORKER_MAX_ATTEMPTS", 5))
        .lease(Duration::from_millis(setting("WORKER_LEASE_MS", 30_000)))
        .ack_wait(Duration::from_millis(setting("WORKER_ACK_WAIT_MS", 30_000)))
        .pauses(Backoff { first: backoff, max: backoff.max(Duration::from_secs(5)) });
    let builder = match setting("WORKER_DECISIONS_DAYS", 0) {
        0 => builder,
        days => builder
            .decisions_retention(Duration::from_hours(24 * days))
            .upkeep_interval(Duration::from_millis(200)),
    };
    let builder = match std::num::NonZeroU32::new(setting("WORKER_PARTITIONS", 0)) {
        Some(partitions) => builder.partitions(partitions),
        None => builder,
    };
    // The server may be killed just now.
    let outside = loop {
        match connect().await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let worker = Worker { outside: Mutex::new(Arc::new(outside)) };
    let summary = if setting("WORKER_MODE", "transactional".to_owned()) == "leased" {
        builder.leased(Outside(worker)).run(shutdown).await?
    } else {
        builder.transactional(worker).run(shutdown).await?
    };
    eprintln!("{summary:?}");
    Ok(())
}
