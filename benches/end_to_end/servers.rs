//! The servers of a measurement, and what they cost while it lasts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_nats::jetstream;
use lab::{Nats, NatsCluster, NatsOptions, Postgres, PostgresOptions};
use serde::Serialize;

use crate::cpu;
use crate::measured::WINDOW;
use crate::measured::{Conditions, Cost};

/// How carefully the broker keeps what it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Keeping {
    /// 1, or 3: then the broker is a cluster of three servers.
    pub(crate) replicas: u8,
    /// Whether every write is flushed to disk before it is answered (`sync_interval: always`).
    pub(crate) sync_always: bool,
}

impl Keeping {
    /// The servers' default: one file, flushed every two minutes.
    pub(crate) const DEFAULT: Self = Self { replicas: 1, sync_always: false };
}

/// A durable PostgreSQL and a NATS that keeps streams in files.
pub(crate) struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) broker: Broker,
    pub(crate) keeping: Keeping,
}

/// One NATS server, or a cluster of them.
pub(crate) enum Broker {
    Single(Nats),
    Cluster(NatsCluster),
}

impl Broker {
    async fn start(keeping: Keeping) -> Result<Self> {
        let sync = keeping.sync_always.then(|| "sync_interval: always".to_owned());
        let options = NatsOptions { jetstream: sync.into_iter().collect(), ..Default::default() };
        Ok(match keeping.replicas {
            1 => Self::Single(Nats::start(options).await?),
            _ => Self::Cluster(NatsCluster::start(options).await?),
        })
    }

    /// All servers, separated by commas.
    pub(crate) fn urls(&self) -> String {
        match self {
            Self::Single(nats) => nats.url(),
            Self::Cluster(cluster) => cluster.urls(),
        }
    }

    /// A connection to any server.
    pub(crate) async fn client(&self) -> Result<async_nats::Client> {
        let urls = self.urls();
        let urls: Vec<&str> = urls.split(',').collect();
        async_nats::connect(urls).await.context("connect to NATS")
    }

    pub(crate) async fn jetstream(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(self.client().await?))
    }

    /// The processor time of all servers.
    fn used(&self) -> Result<Duration> {
        match self {
            Self::Single(nats) => cpu::of_process(nats.pid()?),
            Self::Cluster(cluster) => {
                (0..3).map(|node| cpu::of_process(cluster.node(node).pid()?)).sum()
            }
        }
    }
}

impl Servers {
    pub(crate) async fn start(keeping: Keeping) -> Result<Self> {
        let options = PostgresOptions {
            fsync: true,
            // It would fall into one phase and not into another. Tables are vacuumed after loading.
            settings: vec![("autovacuum".into(), "off".into())],
            ..PostgresOptions::default()
        };
        let postgres = Postgres::start(options).await?;
        Ok(Self { postgres, broker: Broker::start(keeping).await?, keeping })
    }

    pub(crate) async fn conditions(&self) -> Result<Conditions> {
        let client = self.postgres.client("postgres").await?;
        let row = client.query_one("SHOW server_version", &[]).await?;
        let load = std::fs::read_to_string("/proc/loadavg").context("read the machine's load")?;
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Ok(Conditions {
            version: env!("CARGO_PKG_VERSION"),
            postgresql: row.get(0),
            nats: self.broker.client().await?.server_info().version,
            cores: std::thread::available_parallelism()?.get(),
            processor: model.map_or("unknown", |it| it.1.trim()).to_owned(),
            load_before: load.split(' ').next().unwrap_or_default().parse().unwrap_or(f64::NAN),
            window: WINDOW,
        })
    }

    /// Starts to measure what something costs the servers.
    pub(crate) fn meter(&self) -> Result<Meter<'_>> {
        let (postgres, nats) = self.used()?;
        Ok(Meter { servers: self, started: Instant::now(), postgres, nats })
    }

    fn used(&self) -> Result<(Duration, Duration)> {
        Ok((cpu::of_family(self.postgres.pid()?)?, self.broker.used()?))
    }
}

/// What both servers had used at a start.
pub(crate) struct Meter<'a> {
    servers: &'a Servers,
    pub(crate) started: Instant,
    postgres: Duration,
    nats: Duration,
}

impl Meter<'_> {
    /// What they used since, for each of `events`, when the work took `seconds`.
    pub(crate) fn cost(&self, seconds: f64, events: u32) -> Result<Cost> {
        let (postgres, nats) = self.servers.used()?;
        let each = |used: Duration| used.as_secs_f64() * 1e6 / f64::from(events);
        Ok(Cost {
            seconds,
            events_per_second: f64::from(events) / seconds,
            postgres_us_per_event: each(postgres.saturating_sub(self.postgres)),
            nats_us_per_event: each(nats.saturating_sub(self.nats)),
        })
    }
}
