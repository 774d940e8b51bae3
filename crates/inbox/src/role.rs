//! The lease on a consumer, in the database, and by the database's clock.
//!
//! One worker at a time has the role, because events that two of them get would not stay in order.
//! The role's token is in the `WHERE` of each statement that begins an event, so a worker that lost
//! the role without noticing begins nothing. What it had begun is fenced by the claims' own tokens;
//! its transactions are ended by whoever takes over.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::Status;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// The token of the role, for the statements that need it. Nil while there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Token(Arc<RwLock<Uuid>>);

impl Token {
    pub(crate) fn get(&self) -> Uuid {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, token: Uuid) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token;
    }
}

/// Marks every connection of a worker, so that others see whether it is there, and can end it.
pub(crate) const MARK_CONNECTION: &str =
    "SELECT pg_advisory_lock_shared(hashtextextended($1::text, 1))";

/// What a look at the role found.
pub(crate) enum Found {
    /// Another worker has it.
    Held,
    /// Nobody has it, or its lease is over, or none of its worker's connections is left. Who had it,
    /// and under which token.
    Free(Option<(Uuid, String)>),
}

/// The statements on a consumer's role.
pub(crate) struct Lease {
    table: String,
    consumer: String,
    owner: String,
    lease: Duration,
    token: Token,
}

impl Lease {
    pub(crate) fn new(
        quoted_schema: &str,
        consumer: &str,
        owner: &str,
        lease: Duration,
        token: Token,
    ) -> Self {
        let table = format!("{quoted_schema}.inbox_roles");
        Self { table, consumer: consumer.to_owned(), owner: owner.to_owned(), lease, token }
    }

    pub(crate) async fn look(&self, client: &Client) -> Result<Found> {
        let sql = format!(
            "SELECT token, owner, expires_at <= clock_timestamp()
                 OR pg_try_advisory_xact_lock(hashtextextended(owner, 1))
             FROM {} WHERE consumer = $1",
            self.table
        );
        let Some(row) = client.query_opt(&sql, &[&self.consumer]).await? else {
            return Ok(Found::Free(None));
        };
        Ok(if row.get(2) { Found::Free(Some((row.get(0), row.get(1)))) } else { Found::Held })
    }

    /// Takes the role from `former`. False if somebody else was faster.
    pub(crate) async fn take(
        &self,
        client: &Client,
        former: Option<&(Uuid, String)>,
    ) -> Result<bool> {
        let token = Uuid::new_v4();
        let sql = format!(
            "INSERT INTO {} AS r (consumer, token, owner, expires_at)
             VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))
             ON CONFLICT (consumer) DO UPDATE SET token = EXCLUDED.token, owner = EXCLUDED.owner,
                 acquired_at = clock_timestamp(), expires_at = EXCLUDED.expires_at,
                 state = NULL, breaker = NULL, reason = NULL, next_probe_at = NULL
             WHERE r.token = $5",
            self.table
        );
        let former_token = former.map(|(token, _)| *token);
        let lease = self.lease.as_secs_f64();
        let taken = client
            .execute(&sql, &[&self.consumer, &token, &self.owner, &lease, &former_token])
            .await?;
        if taken > 0 {
            self.token.set(token);
        }
        Ok(taken > 0)
    }

    /// Ends the connections of a worker that gave no sign of life: what they have begun and not
    /// committed is undone, and holds nobody up. Returns how many.
    pub(crate) async fn evict(&self, client: &Client, owner: &str) -> Result<i64> {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
             WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1::text, 1)";
        Ok(client.query_one(sql, &[&owner]).await?.get(0))
    }

    /// Renews the lease, and says how the worker is. False if the role is somebody else's.
    pub(crate) async fn renew(&self, client: &Client, status: &Status) -> Result<bool> {
        let sql = format!(
            "UPDATE {} SET expires_at = clock_timestamp() + make_interval(secs => $3),
                 state = $4, breaker = $5, reason = $6, next_probe_at = $7
             WHERE consumer = $1 AND token = $2",
            self.table
        );
        let (lease, token) = (self.lease.as_secs_f64(), self.token.get());
        let state = status.state.name();
        let breaker = status.handler.breaker.name();
        let reason = status.paused.as_ref().map(|it| it.replace('\0', "\u{fffd}"));
        let next_probe_at: Option<Timestamp> = status.handler.next_probe_at;
        let renewed = client
            .execute(
                &sql,
                &[&self.consumer, &token, &lease, &state, &breaker, &reason, &next_probe_at],
            )
            .await?;
        if renewed == 0 {
            self.token.set(Uuid::nil());
        }
        Ok(renewed > 0)
    }

    /// Gives the role up, so that a standby takes it at once.
    pub(crate) async fn release(&self, client: &Client) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET expires_at = '-infinity' WHERE consumer = $1 AND token = $2",
            self.table
        );
        client.execute(&sql, &[&self.consumer, &self.token.get()]).await.map(drop)
    }

    /// Whether the role was ours when we looked last.
    pub(crate) fn is_ours(&self) -> bool {
        !self.token.get().is_nil()
    }
}
