//! Which worker has a consumer.

use jiff::Timestamp;
use serde::Serialize;

use super::{DeadLetters, bounded};
use crate::Error;
use crate::postgres::tables::{self, Upkept};

/// The worker that had the role of a consumer last, and what it said of itself at its last
/// heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The consumer.
    #[serde(skip)]
    pub consumer: String,
    /// The worker: its process id, and an id of its run.
    pub owner: String,
    /// Whether its lease is valid, by the database's clock. Nobody has the role otherwise.
    pub is_valid: bool,
    /// Since when it has, or had, the role.
    pub acquired_at: Timestamp,
    /// Until when, unless it renews the lease; `None` after it gave the role up.
    pub expires_at: Option<Timestamp>,
    /// As [`State`](crate::State) in JSON: `active`, `paused`, ...
    pub state: Option<String>,
    /// As [`BreakerState`](crate::BreakerState) in JSON: `closed`, `open` or `half_open`.
    pub breaker: Option<String>,
    /// Why it is paused, if it is.
    pub reason: Option<String>,
    /// When one event is tried next, while the breaker is open.
    pub next_probe_at: Option<Timestamp>,
}

impl DeadLetters {
    /// When the tables were last looked after, and what that deleted; `None` if they never were.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn upkept(&self) -> Result<Option<Upkept>, Error> {
        tables::upkept(&self.connection.client, &self.schema).await
    }

    /// Who has the consumers, by consumer.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        let rows = self.connection.client.query(&self.texts.holders, &[]);
        let rows = bounded("look at the roles", rows).await?;
        let holder = |row: &tokio_postgres::Row| Holder {
            consumer: row.get("consumer"),
            owner: row.get("owner"),
            is_valid: row.get("is_valid"),
            acquired_at: row.get("acquired_at"),
            expires_at: row.get("expires_at"),
            state: row.get("state"),
            breaker: row.get("breaker"),
            reason: row.get("reason"),
            next_probe_at: row.get("next_probe_at"),
        };
        Ok(rows.iter().map(holder).collect())
    }
}

/// The lease that was given up ended before all times, which no time here stands for.
pub(super) fn text(roles: &str) -> String {
    format!(
        "SELECT consumer, owner, expires_at > clock_timestamp() AS is_valid, acquired_at,
             nullif(expires_at, '-infinity') AS expires_at, state, breaker, reason, next_probe_at
         FROM {roles} ORDER BY consumer"
    )
}
