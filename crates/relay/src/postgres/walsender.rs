//! A replication connection that does not stream yet.

use std::io;

use pgwire_replication::{
    IdentifySystem, PgWireError, QueryRow, ReplicationClient, ReplicationConfig,
};
use servers::{PostgresTarget, tls};
use tokio_postgres::error::SqlState;

use super::answered::{ANSWER_MAX, answered};
use super::connection::Bound;
use super::tunnel;
use crate::config::Config;
use crate::error::{Error, sqlstate};

/// A client that is closed when it is dropped: left to itself, its task goes on for as long as the
/// server is silent.
pub(crate) struct Walsender(pub(crate) ReplicationClient);

impl Drop for Walsender {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A replication connection between authentication and `START_REPLICATION`.
///
/// The client bounds nothing. Here every step is bounded.
pub struct Replication {
    client: Walsender,
    /// The server's process behind it.
    pid: i32,
}

impl Replication {
    /// Connects, and asks what cluster this is.
    pub async fn connect(config: &Config) -> Result<(Self, IdentifySystem), Error> {
        let target = config.postgres.replication_config(&config.slot, &config.publication);
        let target = target.await?;
        let (mut connection, identity) = match Self::open(config, target.clone()).await {
            Err(error) if tls::is_authority(&error) => {
                let doing = "open a replication connection";
                let through = tunnel::through(target, config.postgres.tls()?);
                let refused =
                    |source: io::Error| Error::Replication { doing, source: source.into() };
                let target = answered(doing, async { through.await.map_err(refused) }).await?;
                Self::open(config, target).await?
            }
            opened => opened?,
        };
        let settings = config.postgres.walsender_settings();
        connection.query(&settings, "configure the session").await?;
        let pid = connection.single("SELECT pg_backend_pid()").await?;
        connection.pid = number(&pid)?;
        Ok((connection, identity))
    }

    async fn open(
        config: &Config,
        target: ReplicationConfig,
    ) -> Result<(Self, IdentifySystem), Error> {
        let client = ReplicationClient::connect_gated(target)
            .await
            .map_err(Error::replication("open a replication connection"))?;
        let mut connection = Self { client: Walsender(client), pid: 0 };
        let doing = "identify the server";
        // The client connects in the background: TCP, TLS and authentication are in this step.
        let limit = config.postgres.connect_timeout() + ANSWER_MAX;
        let identified = async {
            let identified = connection.client.0.identify_system().await;
            identified.map_err(|error| refused_error(error, &config.postgres, doing))
        };
        let late = Err(Error::Silent { doing: "open a replication connection" });
        let identity = tokio::time::timeout(limit, identified).await.unwrap_or(late)?;
        Ok((connection, identity))
    }

    /// The server's process that will stream.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs a statement that waits for nobody.
    pub(crate) async fn query(
        &mut self,
        sql: &str,
        doing: &'static str,
    ) -> Result<Vec<QueryRow>, Error> {
        let asked = self.client.0.simple_query(sql);
        answered(doing, async { asked.await.map_err(Error::replication(doing)) }).await
    }

    /// Creates a slot. The server waits for running transactions, as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Error::NoLogicalDecoding`] if the server's settings do not allow it.
    pub(crate) async fn create_slot(
        &mut self,
        bound: &Bound,
        sql: &str,
    ) -> Result<Vec<QueryRow>, Error> {
        let (pid, doing) = (self.pid, "create the replication slot");
        let creating = self.client.0.simple_query(sql);
        let refused = |error| created_error(error, doing);
        bound.of(pid).within(doing, async { creating.await.map_err(refused) }).await
    }

    /// The only value of a statement that waits for nobody.
    pub(crate) async fn single(&mut self, sql: &str) -> Result<String, Error> {
        let rows = self.query(sql, "ask the server").await?;
        let value = rows.first().and_then(|row| text(row.first()?.as_ref()));
        value.ok_or(Error::Stalled("the server gave no answer"))
    }

    /// Starts to stream from the slot's confirmed position.
    ///
    /// # Errors
    ///
    /// [`Error::SlotBusy`] while another relay reads the slot: that exclusion is PostgreSQL's.
    pub(crate) async fn start(mut self, slot: &str) -> Result<Walsender, Error> {
        let doing = "start replication";
        let client = &mut self.client.0;
        let started = async {
            client.start().await?;
            client.wait_started().await
        };
        let refused = |error| started_error(error, slot);
        answered(doing, async { started.await.map_err(refused) }).await?;
        Ok(self.client)
    }
}

/// Who was let in for SQL, with what may have been replaced since, tries again. Poolers of which one
/// knows no replication say so themselves.
fn refused_error(source: PgWireError, target: &PostgresTarget, doing: &'static str) -> Error {
    let unsupported = [SqlState::PROTOCOL_VIOLATION, SqlState::FEATURE_NOT_SUPPORTED];
    if sqlstate(&source).is_some_and(|it| unsupported.contains(&it)) {
        return Error::Unusable {
            problem: format!("{target} takes no replication connection: {source}"),
            fix: "name the database server itself in postgres.url, not a pooler, or set \
                  relay.mode = \"poll\""
                .into(),
        };
    }
    let renewed = target.renewed();
    let is_refused = sqlstate(&source).is_some_and(|it| it.code().starts_with("28"));
    let is_about_rules = servers::error::is_about_rules(&source.to_string());
    if !is_refused || is_about_rules || renewed.login.is_none() {
        return Error::Replication { doing, source };
    }
    servers::Error::Replication { target: target.to_string(), source, renewed }.into()
}

/// The code has many meanings, and the names of settings are the same in each language.
fn created_error(source: PgWireError, doing: &'static str) -> Error {
    let names_setting =
        |it: &str| ["wal_level", "max_replication_slots"].iter().any(|s| it.contains(s));
    match sqlstate(&source) {
        Some(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) if names_setting(&source.to_string()) => {
            Error::NoLogicalDecoding { doing, source }
        }
        _ => Error::Replication { doing, source },
    }
}

fn started_error(error: PgWireError, slot: &str) -> Error {
    match sqlstate(&error) {
        Some(SqlState::OBJECT_IN_USE) => Error::SlotBusy { slot: slot.to_owned() },
        _ => Error::Replication { doing: "start replication", source: error },
    }
}

pub(super) fn text(value: Option<&bytes::Bytes>) -> Option<String> {
    value.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

pub(super) fn number<N: std::str::FromStr>(text: &str) -> Result<N, Error> {
    text.parse().map_err(|_| Error::Stalled("the server's answer is no number"))
}
