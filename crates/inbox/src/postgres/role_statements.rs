//! The lease on a consumer, in the database, and by the database's clock.
//!
//! One worker at a time has the role, because events that two of them get would not stay in order.
//! The role's token is in the `WHERE` of each statement that begins an event, so a worker that lost
//! the role without noticing begins nothing. What it had begun is fenced by the claims' own tokens;
//! its transactions are ended by whoever takes over.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::Status;
use crate::engine::{Former, Found, Renewed, Seen, Term};
use crate::postgres::scope::Scope;
use crate::postgres::sql::hold_role;
use crate::unread::Handled;

type Result<T> = std::result::Result<T, tokio_postgres::Error>;

/// The statements on a consumer's role, or that of one of its partitions.
pub(crate) struct RoleStatements {
    scope: Scope,
    partition: i32,
    /// The role's; nil while it is not ours.
    token: RwLock<Uuid>,
    /// Whose worker has it, if that handles the events of another stream.
    pub(crate) other_stream: watch::Sender<Option<String>>,
}

impl RoleStatements {
    pub(crate) fn new(scope: Scope, partition: i32) -> Self {
        Self { scope, partition, token: RwLock::default(), other_stream: watch::Sender::default() }
    }

    /// Which other workers there are, and which of so many partitions are free. Says that this one is
    /// there, if it joins.
    pub(crate) async fn look_around(
        &self,
        client: &Client,
        joins: bool,
        partitions: usize,
    ) -> Result<Seen> {
        let sql = hold_role::look_around(&self.scope.schema);
        let lease = self.scope.lease.as_secs_f64();
        let partitions = i32::try_from(partitions).unwrap_or(i32::MAX);
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&self.scope.consumer, &self.scope.owner, &lease, &joins, &partitions];
        let row = client.query_one(&sql, &parameters).await?;
        let count = |it: i64| usize::try_from(it).unwrap_or(0);
        let free = row.get::<_, Vec<i32>>(2).into_iter().map(|it| count(it.into()));
        Ok(Seen {
            others: count(row.get(0)),
            able: count(row.get(3)),
            before: count(row.get(1)),
            free: free.collect(),
        })
    }

    /// The worker is gone.
    pub(crate) async fn leave(&self, client: &Client) -> Result<()> {
        let Scope { schema, consumer, owner, .. } = &self.scope;
        client.execute(&hold_role::leave(schema), &[consumer, owner]).await.map(drop)
    }

    fn token(&self) -> Uuid {
        *self.token.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_token(&self, token: Uuid) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    pub(crate) async fn look(&self, client: &Client) -> Result<Found> {
        let sql = hold_role::find_role(&self.scope.schema);
        let Some(row) = client.query_opt(&sql, &[&self.scope.consumer, &self.partition]).await?
        else {
            return Ok(Found::Free(None));
        };
        let (is_free, stream): (bool, Option<String>) = (row.get(2), row.get(4));
        let other = stream.filter(|it| !is_free && *it != self.scope.stream);
        self.other_stream.send_if_modified(|it| mem::replace(it, other.clone()) != other);
        let former = Former { token: row.get(0), owner: row.get(1), unended: row.get(3) };
        Ok(if is_free { Found::Free(Some(former)) } else { Found::Held })
    }

    /// Takes the role from whoever has it under the token `former`. Says under which; nothing if
    /// somebody else was faster.
    pub(crate) async fn take(&self, client: &Client, former: Option<Uuid>) -> Result<Option<Uuid>> {
        let token = Uuid::new_v4();
        let sql = hold_role::take_role(&self.scope.schema);
        let lease = self.scope.lease.as_secs_f64();
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&self.scope.consumer, &token, &self.scope.owner, &lease, &former, &self.partition];
        let taken = client.execute(&sql, &parameters).await?;
        if taken > 0 {
            self.set_token(token);
        }
        Ok((taken > 0).then_some(token))
    }

    /// Ends the connections of a worker that gave no sign of life: what they have begun and not
    /// committed is undone, and holds nobody up. Returns how many.
    pub(crate) async fn evict(&self, client: &Client, owner: &str) -> Result<i64> {
        Ok(client.query_one(hold_role::END_CONNECTIONS, &[&owner]).await?.get(0))
    }

    /// On which server everything is handled up to where, if it is known of the present term.
    fn place(
        &self,
        said: Option<(Term, Handled)>,
    ) -> (Option<i64>, (Option<i64>, Option<Timestamp>)) {
        let known = said.filter(|(term, _)| term.token == self.token());
        let Some((term, (seq, at))) = known else { return (None, (None, None)) };
        (Some(term.server), (Some(seq.cast_signed()), at))
    }

    /// Whether the role was ours when we looked last.
    pub(crate) fn is_ours(&self) -> bool {
        !self.token().is_nil()
    }
}

/// What a worker says of a partition that it has.
pub(crate) struct Said<'a> {
    pub(crate) role: &'a RoleStatements,
    pub(crate) status: Status,
    /// Up to where everything is handled, if that is known.
    pub(crate) handled: Option<(Term, Handled)>,
}

/// Renews the leases on roles of a consumer, of which there is at least one. Says what became of each.
pub(crate) async fn renew(client: &Client, said: &[Said<'_>]) -> Result<Vec<Renewed>> {
    let Scope { schema, consumer, lease, .. } = &said[0].role.scope;
    let columns = Columns::of(said);
    let states: Vec<&str> = said.iter().map(|it| it.status.state.name()).collect();
    let breakers: Vec<&str> = said.iter().map(|it| it.status.handler.breaker.name()).collect();
    let readable = |it: &String| it.replace('\0', "\u{fffd}");
    let reasons: Vec<_> = said.iter().map(|it| it.status.paused.as_ref().map(readable)).collect();
    let probes: Vec<_> = said.iter().map(|it| it.status.handler.next_probe_at).collect();
    let parameters: [&(dyn ToSql + Sync); 11] = [
        consumer,
        &columns.partitions,
        &columns.tokens,
        &lease.as_secs_f64(),
        &columns.servers,
        &columns.handled,
        &states,
        &breakers,
        &reasons,
        &probes,
        &columns.stored_at,
    ];
    let rows = client.query(&hold_role::renew_roles(schema), &parameters).await?;
    let found = rows.iter().map(|row| {
        let renewed = if row.get(1) { Renewed::By(row.get(2)) } else { Renewed::Locked };
        (row.get(0), renewed)
    });
    let found: BTreeMap<i32, Renewed> = found.collect();
    let of = |it: &Said<'_>| found.get(&it.role.partition).copied().unwrap_or(Renewed::Lost);
    let renewed: Vec<Renewed> = said.iter().map(of).collect();
    let lost = said.iter().zip(&renewed).filter(|it| *it.1 == Renewed::Lost);
    lost.for_each(|(it, _)| it.role.set_token(Uuid::nil()));
    Ok(renewed)
}

/// Gives roles up, so that other workers take them at once. If nothing is under way, those have
/// nothing to end.
pub(crate) async fn release(client: &Client, said: &[Said<'_>], is_drained: bool) -> Result<()> {
    let Some(Said { role, .. }) = said.first() else { return Ok(()) };
    let Scope { schema, consumer, .. } = &role.scope;
    let Columns { partitions, tokens, servers, handled, stored_at } = Columns::of(said);
    let parameters: [&(dyn ToSql + Sync); 7] =
        [consumer, &partitions, &tokens, &is_drained, &servers, &handled, &stored_at];
    client.execute(&hold_role::release_roles(schema), &parameters).await?;
    said.iter().for_each(|it| it.role.set_token(Uuid::nil()));
    Ok(())
}

/// Which roles it is about, and on which server everything is handled up to where.
struct Columns {
    partitions: Vec<i32>,
    tokens: Vec<Uuid>,
    servers: Vec<Option<i64>>,
    handled: Vec<Option<i64>>,
    stored_at: Vec<Option<Timestamp>>,
}

impl Columns {
    fn of(said: &[Said<'_>]) -> Self {
        let (servers, (handled, stored_at)) =
            said.iter().map(|it| it.role.place(it.handled)).unzip();
        Self {
            partitions: said.iter().map(|it| it.role.partition).collect(),
            tokens: said.iter().map(|it| it.role.token()).collect(),
            servers,
            handled,
            stored_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_nats::HeaderMap;
    use bytes::Bytes;
    use lab::{Postgres, PostgresOptions};

    use super::*;
    use crate::connection::Connection;
    use crate::message::{Message, Origin};
    use crate::postgres::sql::handled_up_to;
    use crate::postgres::store::Store;
    use crate::record::ClaimReply;

    fn worker(owner: &str) -> RoleStatements {
        RoleStatements::new(
            Scope {
                schema: "public".into(),
                consumer: "billing".into(),
                stream: "OUTBOX".into(),
                owner: owner.into(),
                lease: Duration::from_secs(300),
                transactional: true,
            },
            0,
        )
    }

    async fn connect(postgres: &Postgres, of: &RoleStatements) -> Store {
        let client = postgres.client("postgres").await.expect("connect");
        Store::new(Connection::new(client), of.scope.clone()).await.expect("prepare")
    }

    async fn expire(client: &Client) {
        let sql = "UPDATE inbox_roles SET expires_at = clock_timestamp()";
        client.batch_execute(sql).await.expect("end the lease");
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

        let token = former.take(of_former.client(), None).await.expect("take the role");
        assert!(token.is_some());
        let taken = next.take(of_next.client(), token).await.expect("take the role");
        assert_eq!(taken, None, "it is renewed meanwhile");
        expire(&client).await;
        let taken = next.take(of_next.client(), token).await.expect("take the role");
        assert!(taken.is_some());
        assert_eq!(next.evict(of_next.client(), "former").await.expect("end it"), 1);
        former.look(of_former.client()).await.expect_err("its connection was ended");

        assert_eq!(next.evict(of_next.client(), "next").await.expect("end its former self"), 1);
        next.look(other.client()).await.expect_err("its other connection was ended");
        let of_former = connect(&postgres, &former).await;
        let found = former.look(of_former.client()).await.expect("look");
        assert_eq!(found, Found::Held, "its own connection shows that it is there");
    }

    /// Two workers that take each other for gone, after an outage, would wait for each other.
    #[tokio::test]
    async fn a_worker_that_looks_waits_for_no_other() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let here = worker("here");
        let store = connect(&postgres, &here).await;
        // It says that it is there, on a connection that is not marked yet.
        let joins = client.transaction().await.expect("begin");
        let sql = hold_role::look_around("public");
        let parameters: [&(dyn ToSql + Sync); 5] = [&"billing", &"other", &30.0, &true, &4];
        joins.query_one(&sql, &parameters).await.expect("join");
        joins.commit().await.expect("commit");
        let joins = client.transaction().await.expect("begin");
        joins.query_one(&sql, &parameters).await.expect("say it again");
        let seen = here.look_around(store.client(), true, 4).await.expect("no lock is waited for");
        assert_eq!((seen.others, seen.free), (0, vec![0, 1, 2, 3]));
    }

    /// Somebody may have had it in between, and left something under way.
    #[tokio::test]
    async fn a_role_is_taken_only_as_it_was_found() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let (one, other) = (worker("one"), worker("other"));
        let (of_one, of_other) = (connect(&postgres, &one).await, connect(&postgres, &other).await);
        let found = one.take(of_one.client(), None).await.expect("take the role").expect("free");
        expire(&client).await;
        let between = other.take(of_other.client(), Some(found)).await.expect("take the role");
        assert!(between.is_some());
        expire(&client).await;
        for stale in [Some(found), None] {
            assert_eq!(one.take(of_one.client(), stale).await.expect("try it"), None);
        }
        assert!(one.take(of_one.client(), between).await.expect("take the role").is_some());
    }

    #[tokio::test]
    async fn a_role_whose_row_is_locked_keeps_no_other_from_being_renewed() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let roles: Vec<_> =
            (0..4).map(|it| RoleStatements::new(worker("this").scope, it)).collect();
        let store = connect(&postgres, &roles[0]).await;
        for role in &roles {
            role.take(store.client(), None).await.expect("take the role").expect("free");
        }
        let said = || {
            let of = |role| Said { role, status: Status::default(), handled: None };
            roles.iter().map(of).collect::<Vec<_>>()
        };
        let before = renew(store.client(), &said()).await.expect("renew them");
        assert!(before.iter().all(|it| *it == before[0] && matches!(it, Renewed::By(_))));
        let stranger = client.transaction().await.expect("begin");
        let lock = "SELECT FROM inbox_roles WHERE partition = 1 FOR UPDATE";
        stranger.execute(lock, &[]).await.expect("lock a row");
        let lose = "UPDATE inbox_roles SET token = gen_random_uuid() WHERE partition = 2";
        store.client().batch_execute(lose).await.expect("another has it");
        let renewed = renew(store.client(), &said()).await.expect("renew the others");
        assert_eq!(renewed, [before[0], Renewed::Locked, Renewed::Lost, before[0]]);
        stranger.rollback().await.expect("unlock it");
        release(store.client(), &said()[3..], true).await.expect("give the last one back");
        let renewed = renew(store.client(), &said()).await.expect("renew the others");
        assert_eq!(renewed, [before[0], before[0], Renewed::Lost, Renewed::Lost]);
    }

    /// What a session began with is out of date once the role was taken again, also by its own worker.
    #[tokio::test]
    async fn a_session_begins_nothing_under_the_token_of_a_former_term() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
        let mut client = postgres.client("postgres").await.expect("connect");
        crate::create_tables(&mut client, "public").await.expect("make the tables");
        let role = worker("this");
        let store = connect(&postgres, &role).await;
        let former = role.take(store.client(), None).await.expect("take the role").expect("free");
        expire(&client).await;
        let token = role.take(store.client(), Some(former)).await.expect("take it again");
        let token = token.expect("nobody was faster");

        let origin = Origin { stream: "OUTBOX".into(), created: None };
        let (headers, now) = (HeaderMap::new(), Timestamp::now());
        let message = Message::new("x".into(), headers, Bytes::new(), &origin, 1, now);
        let claim = async |role| {
            let (tokens, messages) = ((role, Uuid::new_v4()), [&message]);
            let claimed = store.sql().claim(store.client(), tokens, &messages).await;
            claimed.expect("claim").remove(0)
        };
        let record = async |role| {
            store.sql().record(store.client(), role, &[&message]).await.expect("record")
        };
        assert!(record(former).await.is_empty());
        assert_eq!(claim(former).await, ClaimReply::Contended);
        // That another partition is its own says nothing of this one.
        let other = RoleStatements::new(role.scope.clone(), 1);
        other.take(store.client(), None).await.expect("take another role").expect("free");
        assert!(record(former).await.is_empty());
        let sql = handled_up_to::write_handled("public");
        let server = client.query_one(&format!("SELECT {}", handled_up_to::SERVER), &[]).await;
        let server: i64 = server.expect("it was started").get(0);
        let write = async |role: Uuid| {
            let created = None::<Timestamp>;
            let parameters: [&(dyn ToSql + Sync); 8] =
                [&"billing", &"OUTBOX", &created, &1_i64, &role, &server, &created, &0_i64];
            store.client().execute(&sql, &parameters).await.expect("write how far it is")
        };
        assert_eq!((write(former).await, write(token).await), (0, 1));
        assert!(matches!(claim(token).await, ClaimReply::Claimed { .. }));
    }
}
