//! The servers, and on them a database and a stream of their own for each measurement.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use async_nats::jetstream;
use outbox::Event;
use serde::Serialize;
use testbed::{Nats, NatsOptions, Postgres, PostgresOptions};
use tokio_postgres::Client;

use crate::process::{self, Environment};
use crate::report::{Conditions, Cost};
use crate::{cpu, limits};

/// The payload's size as PostgreSQL prints it, in bytes.
pub(crate) const PAYLOAD_BYTES: usize = 300;
const AGGREGATES: u32 = 1_000;
const ROWS_PER_TRANSACTION: u32 = 100;

/// A durable PostgreSQL and a NATS that keeps streams in files.
pub(crate) struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) nats: Nats,
}

impl Servers {
    pub(crate) async fn start() -> Result<Self> {
        let options = PostgresOptions {
            fsync: true,
            // It would fall into one phase and not into another. Tables are vacuumed after loading.
            settings: vec![("autovacuum".into(), "off".into())],
            ..PostgresOptions::default()
        };
        let postgres = Postgres::start(options).await?;
        Ok(Self { postgres, nats: Nats::start(NatsOptions::default()).await? })
    }

    pub(crate) async fn conditions(&self, rows: u32) -> Result<Conditions> {
        let client = self.postgres.client("postgres").await?;
        let row = client.query_one("SHOW server_version", &[]).await?;
        let load = std::fs::read_to_string("/proc/loadavg").context("read the machine's load")?;
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Ok(Conditions {
            postgresql: row.get(0),
            nats: self.nats.client().await?.server_info().version,
            cores: std::thread::available_parallelism()?.get(),
            processor: model.map_or("unknown", |it| it.1.trim()).to_owned(),
            load_before: load.split(' ').next().unwrap_or_default().parse().unwrap_or(f64::NAN),
            rows,
            payload_bytes: PAYLOAD_BYTES,
            aggregates: AGGREGATES,
            rows_per_transaction: ROWS_PER_TRANSACTION,
            window: limits::WINDOW,
        })
    }

    /// Starts to measure what something costs the servers.
    pub(crate) fn meter(&self) -> Result<Meter<'_>> {
        let (postgres, nats) = self.used()?;
        Ok(Meter { servers: self, started: Instant::now(), postgres, nats })
    }

    fn used(&self) -> Result<(std::time::Duration, std::time::Duration)> {
        Ok((cpu::of_family(self.postgres.pid()?)?, cpu::of_process(self.nats.pid()?)?))
    }
}

/// What both servers had used at a start.
pub(crate) struct Meter<'a> {
    servers: &'a Servers,
    pub(crate) started: Instant,
    postgres: std::time::Duration,
    nats: std::time::Duration,
}

impl Meter<'_> {
    /// What they used since, for each of `events`, when the work took `seconds`.
    pub(crate) fn cost(&self, seconds: f64, events: u32) -> Result<Cost> {
        let (postgres, nats) = self.servers.used()?;
        let each = |used: std::time::Duration| used.as_secs_f64() * 1e6 / f64::from(events);
        Ok(Cost {
            seconds,
            events_per_second: f64::from(events) / seconds,
            postgres_us_per_event: each(postgres.saturating_sub(self.postgres)),
            nats_us_per_event: each(nats.saturating_sub(self.nats)),
        })
    }
}

/// A database with an outbox, a slot and a stream, made by `tailpost setup`.
pub(crate) struct Stage<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) environment: Environment,
}

#[derive(Serialize)]
struct Payload {
    n: u32,
    note: String,
}

impl<'a> Stage<'a> {
    /// Makes a stage; `name` becomes the name of all its parts.
    pub(crate) async fn set_up(servers: &'a Servers, name: &str) -> Result<Self> {
        servers.postgres.create_database(name).await?;
        let environment = vec![
            ("DATABASE_URL", servers.postgres.url(name)),
            ("NATS_URL", servers.nats.url()),
            ("TAILPOST_POSTGRES__SLOT", name.to_owned()),
            ("TAILPOST_STREAM__NAME", name.to_owned()),
            ("TAILPOST_STREAM__SUBJECTS", format!("{name}.>")),
            ("TAILPOST_RELAY__SUBJECT", format!("{name}.{{aggregate_type}}.{{event_type}}")),
            ("TAILPOST_ADMIN__LISTEN", "off".to_owned()),
            ("TAILPOST_LOG", "error".to_owned()),
        ];
        process::set_up(&environment).await?;
        let client = servers.postgres.client(name).await?;
        let jetstream = servers.nats.jetstream().await?;
        Ok(Self { servers, name: name.to_owned(), client, jetstream, environment })
    }

    /// Further slots that keep the same rows waiting.
    pub(crate) async fn add_slots<const N: usize>(&self, names: [&str; N]) -> Result<[String; N]> {
        let slots = names.map(|it| format!("{}_{it}", self.name));
        for slot in &slots {
            let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
            self.client.query(sql, &[slot]).await.context("create a slot")?;
        }
        Ok(slots)
    }

    /// Commits the rows that then wait in the log. The only commits that are not waited for.
    pub(crate) async fn load(&self, rows: u32) -> Result<()> {
        let mut client = self.servers.postgres.client(&self.name).await?;
        client.batch_execute("SET synchronous_commit = off").await?;
        for first in (0..rows).step_by(ROWS_PER_TRANSACTION as usize) {
            let last = rows.min(first + ROWS_PER_TRANSACTION);
            let events: Result<Vec<Event>, _> = (first..last).map(event).collect();
            let transaction = client.transaction().await?;
            outbox::enqueue_all(&transaction, &events?).await?;
            transaction.commit().await?;
        }
        let sql = "SELECT count(*), count(*) FILTER (WHERE octet_length(payload::text) = $1)
                   FROM outbox_events";
        let row = client.query_one(sql, &[&i32::try_from(PAYLOAD_BYTES)?]).await?;
        let loaded: (i64, i64) = (row.get(0), row.get(1));
        ensure!(loaded == (rows.into(), rows.into()), "loaded {loaded:?}, not {rows} rows");
        // What autovacuum and the checkpointer would do while the rows wait.
        client.batch_execute("VACUUM ANALYZE outbox_events").await?;
        client.batch_execute("CHECKPOINT").await.context("checkpoint")
    }

    /// The position behind everything that was loaded.
    pub(crate) async fn end_of_log(&self) -> Result<String> {
        let row = self.client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?;
        Ok(row.get(0))
    }

    /// How many messages a stream holds.
    pub(crate) async fn messages(&self, stream: &str) -> Result<u64> {
        Ok(self.jetstream.get_stream(stream).await?.cached_info().state.messages)
    }

    /// Removes what would burden the next stage.
    pub(crate) async fn tear_down(self, slots: &[String]) -> Result<()> {
        for slot in slots.iter().chain([&self.name]) {
            self.client.query("SELECT pg_drop_replication_slot($1)", &[slot]).await?;
        }
        self.jetstream.delete_stream(&self.name).await?;
        drop(self.client);
        let admin = self.servers.postgres.client("postgres").await?;
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        admin.batch_execute(&sql).await.context("drop the database")
    }
}

/// The `n`-th event of a run.
pub(crate) fn event(n: u32) -> Result<Event, outbox::Error> {
    // PostgreSQL prints a space behind each colon and comma: three more bytes than are written.
    let bare = serde_json::to_string(&Payload { n, note: String::new() }).map_or(0, |it| it.len());
    let note = "parcels leave in the order in which they came. ".repeat(7);
    let note = note.chars().take(PAYLOAD_BYTES - 3 - bare).collect();
    Event::new("order", format!("o-{}", n % AGGREGATES), "OrderPlaced", &Payload { n, note })
}
