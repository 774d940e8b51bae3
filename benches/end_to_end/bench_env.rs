//! On the servers, a database and a stream of their own for each measurement.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_nats::jetstream;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::process::{self, Variables};
use crate::servers::Servers;
use crate::variant::Variant;

const SLOT_FREE_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// A database with an outbox, a slot and a stream, made by `tailpost setup`.
pub(crate) struct BenchEnv<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) variables: Variables,
    shards: u32,
}

impl<'a> BenchEnv<'a> {
    /// Makes an environment; `name` becomes the name of all its parts.
    pub(crate) async fn set_up(servers: &'a Servers, name: &str) -> Result<Self> {
        Self::set_up_as(servers, name, Variant::DEFAULT).await
    }

    /// As [`set_up`](Self::set_up), in another way than the default.
    pub(crate) async fn set_up_as(
        servers: &'a Servers,
        name: &str,
        variant: Variant,
    ) -> Result<Self> {
        let Variant { mark, shards } = variant;
        servers.postgres.create_database(name).await?;
        let shard = if shards > 1 { ".{shard}" } else { "" };
        let variables = vec![
            ("TAILPOST_RELAY__MARK", mark.to_owned()),
            ("DATABASE_URL", servers.postgres.url(name)),
            ("NATS_URL", servers.broker.urls()),
            ("TAILPOST_POSTGRES__SLOT", name.to_owned()),
            ("TAILPOST_STREAM__NAME", name.to_owned()),
            ("TAILPOST_STREAM__SUBJECTS", format!("{name}{shard}.>")),
            ("TAILPOST_RELAY__SHARDS", shards.to_string()),
            ("TAILPOST_STREAM__REPLICAS", servers.keeping.replicas.to_string()),
            ("TAILPOST_RELAY__SUBJECT", format!("{name}{shard}.{{aggregate_type}}.{{event_type}}")),
            ("TAILPOST_ADMIN__LISTEN", "off".to_owned()),
            ("TAILPOST_LOG", "error".to_owned()),
        ];
        process::set_up(&variables, &[]).await?;
        let client = servers.postgres.client(name).await?;
        if shards > 1 {
            // For the limits, which read all of the log at once.
            let sql = "CREATE PUBLICATION tailpost FOR TABLE outbox_events
                       WITH (publish = 'insert', publish_via_partition_root = true)";
            client.batch_execute(sql).await.context("create the limits' publication")?;
        }
        let jetstream = servers.broker.jetstream().await?;
        Ok(Self { servers, name: name.to_owned(), client, jetstream, variables, shards })
    }

    /// What the relay's streams are called.
    pub(crate) fn streams(&self) -> Vec<String> {
        match self.shards {
            1 => vec![self.name.clone()],
            shards => (0..shards).map(|shard| format!("{}_{shard}", self.name)).collect(),
        }
    }

    fn relay_slots(&self) -> Vec<String> {
        match self.shards {
            1 => vec![self.name.clone()],
            shards => (0..shards).map(|it| format!("{}_{it}of{shards}", self.name)).collect(),
        }
    }

    /// How many messages the relay's streams hold.
    pub(crate) async fn stored(&self) -> Result<u64> {
        let mut sum = 0;
        for stream in self.streams() {
            sum += self.messages(&stream).await?;
        }
        Ok(sum)
    }

    /// Lets the table keep payloads as another type than `setup` gave it.
    pub(crate) async fn keep_payloads_as(&self, payload_type: &str) -> Result<()> {
        // The function is compiled for the type that the column has.
        let sql = format!(
            "DROP FUNCTION outbox_emit;
             ALTER TABLE outbox_events ALTER payload TYPE {payload_type}
                 USING payload::text::{payload_type}"
        );
        self.client.batch_execute(&sql).await.context("change the payload's type")?;
        // Dead letters keep payloads too.
        process::set_up(&self.variables, &[]).await
    }

    /// Lets the next relay delete rows a second after they were published.
    pub(crate) async fn forget_at_once(&mut self) -> Result<()> {
        self.variables.extend([
            ("TAILPOST_STREAM__DUPLICATE_WINDOW", "1s".to_owned()),
            ("TAILPOST_RETENTION__PUBLISHED", "1s".to_owned()),
            ("TAILPOST_RETENTION__INTERVAL", "1s".to_owned()),
        ]);
        process::set_up(&self.variables, &[]).await
    }

    /// Makes the relay's slot anew: it brings nothing of what was committed before.
    pub(crate) async fn renew_slot(&self) -> Result<()> {
        self.drop_slot(&self.name).await?;
        process::set_up(&self.variables, &[]).await
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

    /// The position behind everything that was committed.
    pub(crate) async fn end_of_log(&self) -> Result<String> {
        let row = self.client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?;
        Ok(row.get(0))
    }

    /// How many messages a stream holds.
    pub(crate) async fn messages(&self, stream: &str) -> Result<u64> {
        Ok(self.jetstream.get_stream(stream).await?.cached_info().state.messages)
    }

    /// A server needs a moment to notice that the one who read a slot has gone.
    async fn drop_slot(&self, slot: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            let dropped = self.client.query("SELECT pg_drop_replication_slot($1)", &[&slot]).await;
            let Err(error) = dropped else { return Ok(()) };
            let is_read = error.code() == Some(&SqlState::OBJECT_IN_USE);
            if !is_read || started.elapsed() > SLOT_FREE_MAX {
                return Err(error).with_context(|| format!("drop the slot \"{slot}\""));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Removes what would burden the next environment.
    pub(crate) async fn tear_down(self, slots: &[String]) -> Result<()> {
        for slot in slots.iter().chain(&self.relay_slots()) {
            self.drop_slot(slot).await?;
        }
        for stream in self.streams() {
            self.jetstream.delete_stream(&stream).await?;
        }
        drop(self.client);
        let admin = self.servers.postgres.client("postgres").await?;
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        admin.batch_execute(&sql).await.context("drop the database")
    }
}
