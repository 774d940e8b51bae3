//! The environment's helpers on the database's side.

use tokio_postgres::Client;
use tokio_postgres::types::FromSqlOwned;
use uuid::Uuid;

use crate::broker::Broker;
use crate::test_env::TestEnv;
use crate::wait::{DEADLINE, until, until_counted};

const INSERT: &str = "
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
    SELECT gen_random_uuid(), 'order', 'o-' || n % 10, 'OrderPlaced', jsonb_build_object('n', n)
    FROM generate_series(1, $1::INT) AS n
    RETURNING id";

impl<B: Broker> TestEnv<B> {
    /// Connects to the database with the outbox.
    ///
    /// # Panics
    ///
    /// When the server does not take the connection.
    pub async fn client(&self) -> Client {
        self.postgres.client("postgres").await.expect("connect to PostgreSQL")
    }

    /// Runs statements.
    ///
    /// # Panics
    ///
    /// When one fails.
    pub async fn execute(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.expect(sql);
    }

    /// Drops a slot. The server takes a moment to notice that its reader has gone.
    ///
    /// # Panics
    ///
    /// When it cannot be dropped until [`DEADLINE`].
    pub async fn drop_slot(&self, slot: &str) {
        let sql = "SELECT pg_drop_replication_slot($1)";
        until(DEADLINE, "the slot is dropped", async || {
            self.client().await.execute(sql, &[&slot]).await.is_ok()
        })
        .await;
    }

    /// Waits until the server has noticed that the reader of a slot has gone.
    ///
    /// # Panics
    ///
    /// When somebody reads it still after [`DEADLINE`].
    pub async fn wait_unread(&self, slot: &str) {
        let sql = format!("SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
        until(DEADLINE, "nobody reads the slot", async || self.query::<bool>(&sql).await).await;
    }

    /// Advances a slot that nobody reads any more to a position, in SQL.
    ///
    /// # Panics
    ///
    /// As [`wait_unread`](Self::wait_unread), or when it cannot be advanced.
    pub async fn advance_slot(&self, slot: &str, to: &str) {
        self.wait_unread(slot).await;
        self.execute(&format!("SELECT pg_replication_slot_advance('{slot}', {to})")).await;
    }

    /// Asks for one value. The session is kept for the next question; a lost one is replaced.
    ///
    /// # Panics
    ///
    /// When the answer is not one row, or of another type.
    pub async fn query<T: FromSqlOwned>(&self, sql: &str) -> T {
        let url = self.postgres.url("postgres");
        if let Some(client) = self.session.take(&url).filter(|it| !it.is_closed()) {
            match client.query_one(sql, &[]).await {
                Ok(row) => {
                    self.session.keep(url, client);
                    return row.get(0);
                }
                Err(error) if is_session_lost(&error) => {}
                Err(error) => panic!("{sql}: {error:?}"),
            }
        }
        let client = self.client().await;
        let row = client.query_one(sql, &[]).await.expect(sql);
        self.session.keep(url, client);
        row.get(0)
    }

    /// Inserts `n` events of ten aggregates in one transaction; returns their ids in order.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn insert(&self, n: i32) -> Vec<Uuid> {
        let rows = self.client().await.query(INSERT, &[&n]).await.expect("insert events");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Inserts `n` events, each in a transaction of its own; returns their ids in order.
    ///
    /// # Panics
    ///
    /// When the database refuses.
    pub async fn insert_each(&self, n: usize) -> Vec<Uuid> {
        let client = self.client().await;
        let insert = client.prepare(INSERT).await.expect("prepare");
        let mut ids = Vec::with_capacity(n);
        for _ in 0..n {
            ids.push(client.query_one(&insert, &[&1]).await.expect("insert an event").get(0));
        }
        ids
    }

    /// How many events are not marked as published.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn unmarked(&self) -> i64 {
        self.query("SELECT count(*) FROM outbox_events WHERE published_at IS NULL").await
    }

    /// Waits until every event is marked as published.
    ///
    /// # Panics
    ///
    /// When one is not, and no other is marked either.
    pub async fn wait_marked(&self) {
        until_counted("every row is marked", async || self.unmarked().await, |it| it == 0).await;
    }

    /// Waits until marks or a watermark say of every event that it is published.
    ///
    /// # Panics
    ///
    /// When they do not.
    pub async fn wait_covered(&self) {
        let sql = "SELECT count(*) FROM outbox_status WHERE status <> 'PUBLISHED'";
        let left = async || self.query::<i64>(sql).await;
        until_counted("every event is published", left, |it| it == 0).await;
    }

    /// Up to where the slot is confirmed; of several shards' slots, all of them.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn confirmed(&self) -> u64 {
        let slots = match self.shards {
            1 => "slot_name = 'tailpost'".to_owned(),
            shards => format!("slot_name LIKE 'tailpost\\_%of{shards}'"),
        };
        let sql =
            format!("SELECT min(confirmed_flush_lsn) FROM pg_replication_slots WHERE {slots}");
        self.lsn(&sql).await
    }

    /// How often the slot was created.
    ///
    /// # Panics
    ///
    /// When the outbox is not set up.
    pub async fn epochs(&self) -> i64 {
        self.query("SELECT epoch FROM tailpost_state WHERE slot = 'tailpost'").await
    }

    /// The end of the log.
    ///
    /// # Panics
    ///
    /// When the database does not answer.
    pub async fn wal_end(&self) -> u64 {
        self.lsn("SELECT pg_current_wal_insert_lsn()").await
    }

    /// Waits until PostgreSQL has sent the relay all of the log that there is now.
    ///
    /// # Panics
    ///
    /// When it has not within [`DEADLINE`].
    pub async fn wait_sent(&self) {
        let end = self.wal_end().await;
        let sent = "SELECT max(sent_lsn) FROM pg_stat_replication JOIN pg_replication_slots
                    ON pid = active_pid WHERE slot_name = 'tailpost'";
        until(DEADLINE, "the log is sent", async || self.lsn(sent).await >= end).await;
    }

    async fn lsn(&self, sql: &str) -> u64 {
        let bytes: i64 =
            self.query(&format!("SELECT coalesce(({sql}) - '0/0'::PG_LSN, 0)::BIGINT")).await;
        bytes.cast_unsigned()
    }

    /// Waits until the slot is confirmed up to what is the end of the log now.
    ///
    /// # Panics
    ///
    /// When it is not within [`DEADLINE`].
    pub async fn wait_confirmed(&self) {
        let end = self.wal_end().await;
        until(DEADLINE, "all is confirmed", async || self.confirmed().await >= end).await;
    }
}

/// Whether the server has ended the session, or is gone.
fn is_session_lost(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|it| it.code().starts_with("57P"))
}
