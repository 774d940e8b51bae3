//! The servers of the demo.

use crate::nats::{Nats, NatsOptions};
use crate::postgres::{Postgres, PostgresOptions};
use anyhow::Result;
use async_nats::jetstream;
use relay::Config;

const DATABASE: &str = "shop";

type RelayConfig = fn(String, String) -> Result<Config>;

/// A PostgreSQL and a NATS server of the demo's own, gone when this is dropped.
pub(super) struct Servers {
    postgres: Postgres,
    nats: Nats,
    relay_config: RelayConfig,
}

impl Servers {
    pub(super) async fn start(relay_config: RelayConfig) -> Result<Self> {
        let durable = PostgresOptions { fsync: true, ..PostgresOptions::default() };
        let (postgres, nats) =
            tokio::try_join!(Postgres::start(durable), Nats::start(NatsOptions::default()))?;
        postgres.create_database(DATABASE).await?;
        Ok(Self { postgres, nats, relay_config })
    }

    /// The relay's configuration: the defaults, with these servers.
    pub(super) fn relay_config(&self) -> Result<Config> {
        (self.relay_config)(self.database_url(), self.nats.url())
    }

    pub(super) fn database_url(&self) -> String {
        self.postgres.url(DATABASE)
    }

    pub(super) fn nats_url(&self) -> String {
        self.nats.url()
    }

    pub(super) async fn database(&self) -> Result<tokio_postgres::Client> {
        self.postgres.client(DATABASE).await
    }

    pub(super) async fn broker(&self) -> Result<async_nats::Client> {
        self.nats.client().await
    }

    pub(super) async fn jetstream(&self) -> Result<jetstream::Context> {
        self.nats.jetstream().await
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "PostgreSQL {} at {}, NATS at {}",
            self.postgres.version(),
            self.database_url(),
            self.nats.url()
        )
    }
}

/// A connection for the inbox, which opens its own.
pub(super) async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
