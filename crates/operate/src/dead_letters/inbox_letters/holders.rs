//! Which worker has a consumer.

use inbox::access::rewind_records::FOLLOWS;
use inbox::access::{as_json, upkept};
use inbox::{Error, Upkept};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::DeadLetters;
use crate::sql::records::select;

/// The worker that had the role of a consumer last, and what it said of itself at its last
/// heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The consumer.
    #[serde(skip_serializing)]
    pub consumer: String,
    /// The worker: its process id, and an id of its run.
    pub owner: String,
    /// Whether its lease is valid, by the database's clock. Nobody has the role otherwise.
    pub is_valid: bool,
    /// Since when it has, or had, the role.
    pub acquired_at: Timestamp,
    /// Until when, unless it renews the lease; `None` after it gave the role up.
    pub expires_at: Option<Timestamp>,
    /// As [`State`](inbox::State) in JSON: `active`, `paused`, ...
    pub state: Option<String>,
    /// As [`BreakerState`](inbox::BreakerState) in JSON: `closed`, `open` or `half_open`.
    pub breaker: Option<String>,
    /// Why it is paused, if it is.
    pub reason: Option<String>,
    /// When one event is tried next, while the breaker is open.
    pub next_probe_at: Option<Timestamp>,
    /// Why and when the consumer went back by itself the last time, if it ever did.
    pub went_back: Option<String>,
}

impl DeadLetters {
    /// When the tables were last looked after, and what that deleted; `None` if they never were.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn upkept(&self) -> Result<Option<Upkept>, Error> {
        upkept(&self.connection, self.outbox.schema()).await
    }

    /// Who has the consumers, by consumer.
    ///
    /// # Errors
    ///
    /// See [`list`](Self::list).
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        // The lease that was given up ended before all times, which no time here stands for.
        let sql = as_json(&format!(
            "SELECT consumer, owner, expires_at > clock_timestamp() AS is_valid, acquired_at,
                 nullif(expires_at, '-infinity') AS expires_at, state, breaker, reason,
                 next_probe_at,
                 (SELECT reason || ', ' || to_json(requested_at) FROM {schema}.inbox_rewinds AS r
                  WHERE r.consumer = it.consumer AND requested_by LIKE '% ({FOLLOWS})'
                  ORDER BY id DESC LIMIT 1) AS went_back
             FROM {schema}.inbox_roles AS it ORDER BY consumer",
            schema = self.schema
        ));
        select(&self.connection, "look at the roles", &sql, &[]).await
    }
}
