//! The lease on a consumer, in the database, and by the database's clock.
//!
//! One worker at a time has the role, because events that two of them get would not stay in order.
//! The role's token is in the `WHERE` of each statement that begins an event, so a worker that lost
//! the role without noticing begins nothing. What it had begun is fenced by the claims' own tokens;
//! its transactions are ended by whoever takes over.

use jiff::Timestamp;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::Status;
use crate::engine::{Former, Found};
use crate::postgres::scope::Scope;
use crate::postgres::sql::hold_role;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// The statements on a consumer's role.
pub(crate) struct RoleStatements(pub(crate) Scope);

impl RoleStatements {
    pub(crate) async fn look(&self, client: &Client) -> Result<Found> {
        let sql = hold_role::find_role(&self.0.schema);
        let Some(row) = client.query_opt(&sql, &[&self.0.consumer]).await? else {
            return Ok(Found::Free(None));
        };
        let former = Former { token: row.get(0), owner: row.get(1) };
        Ok(if row.get(2) { Found::Free(Some(former)) } else { Found::Held })
    }

    /// Takes the role from whoever has it under the token `former`. False if somebody else was faster.
    pub(crate) async fn take(&self, client: &Client, former: Option<Uuid>) -> Result<bool> {
        let token = Uuid::new_v4();
        let sql = hold_role::take_role(&self.0.schema);
        let lease = self.0.lease.as_secs_f64();
        let taken = client
            .execute(&sql, &[&self.0.consumer, &token, &self.0.owner, &lease, &former])
            .await?;
        if taken > 0 {
            self.0.role.set(token);
        }
        Ok(taken > 0)
    }

    /// Ends the connections of a worker that gave no sign of life: what they have begun and not
    /// committed is undone, and holds nobody up. Returns how many.
    pub(crate) async fn evict(&self, client: &Client, owner: &str) -> Result<i64> {
        Ok(client.query_one(hold_role::END_CONNECTIONS, &[&owner]).await?.get(0))
    }

    /// Renews the lease, and says how the worker is. False if the role is somebody else's.
    pub(crate) async fn renew(&self, client: &Client, status: &Status) -> Result<bool> {
        let sql = hold_role::renew_role(&self.0.schema);
        let (lease, token) = (self.0.lease.as_secs_f64(), self.0.role.get());
        let state = status.state.name();
        let breaker = status.handler.breaker.name();
        let reason = status.paused.as_ref().map(|it| it.replace('\0', "\u{fffd}"));
        let next_probe_at: Option<Timestamp> = status.handler.next_probe_at;
        let renewed = client
            .execute(
                &sql,
                &[&self.0.consumer, &token, &lease, &state, &breaker, &reason, &next_probe_at],
            )
            .await?;
        if renewed == 0 {
            self.0.role.set(Uuid::nil());
        }
        Ok(renewed > 0)
    }

    /// Gives the role up, so that a standby takes it at once.
    pub(crate) async fn release(&self, client: &Client) -> Result<()> {
        let sql = hold_role::release_role(&self.0.schema);
        client.execute(&sql, &[&self.0.consumer, &self.0.role.get()]).await.map(drop)
    }

    /// Whether the role was ours when we looked last.
    pub(crate) fn is_ours(&self) -> bool {
        !self.0.role.get().is_nil()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lab::{Postgres, PostgresOptions};

    use super::*;
    use crate::connection::Connection;
    use crate::postgres::scope::RoleToken;
    use crate::postgres::store::Store;

    fn worker(owner: &str) -> RoleStatements {
        RoleStatements(Scope {
            schema: "public".into(),
            consumer: "billing".into(),
            stream: "OUTBOX".into(),
            owner: owner.into(),
            lease: Duration::from_secs(300),
            role: RoleToken::default(),
            takes_over: true,
            lent: false,
        })
    }

    async fn connect(postgres: &Postgres, of: &RoleStatements) -> Store {
        let client = postgres.client("postgres").await.expect("connect");
        Store::new(Connection::new(client), of.0.clone()).await.expect("prepare")
    }

    /// So it has to connect anew, and is seen to be there again. The simulation relies on it.
    #[tokio::test]
    async fn who_is_ended_loses_also_the_connection_of_the_role_and_who_ends_keeps_its_own() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let (former, next) = (worker("former"), worker("next"));
        let of_former = connect(&postgres, &former).await;
        let (of_next, other) = (connect(&postgres, &next).await, connect(&postgres, &next).await);

        assert!(former.take(of_former.client(), None).await.expect("take the role"));
        let token = former.0.role.get();
        assert!(next.take(of_next.client(), Some(token)).await.expect("take the role"));
        assert_eq!(next.evict(of_next.client(), "former").await.expect("end it"), 1);
        former.look(of_former.client()).await.expect_err("its connection was ended");

        assert_eq!(next.evict(of_next.client(), "next").await.expect("end its former self"), 1);
        next.look(other.client()).await.expect_err("its other connection was ended");
        let of_former = connect(&postgres, &former).await;
        let found = former.look(of_former.client()).await.expect("look");
        assert_eq!(found, Found::Held, "its own connection shows that it is there");
    }
}
