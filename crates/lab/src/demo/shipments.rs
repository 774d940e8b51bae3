//! The inbox's side: every event that was stored ships something, in the producer's database.

use anyhow::{Context, Result};
use inbox::{Connection, Delivery, Inbox, Transactional, TransactionalHandler, Verdict};
use tokio_postgres::{Client, Transaction};

use super::servers::{self, Servers};

/// What the inbox is called.
pub(super) const CONSUMER: &str = "shipping";
/// The schema of the business table as of the inbox's own.
const SCHEMA: &str = "public";

/// Nothing in it keeps an event from taking effect twice: a second effect is counted, not refused.
const TABLE: &str = "
    CREATE TABLE shipments (
        event_id   UUID PRIMARY KEY,
        order_id   TEXT NOT NULL,
        stream_seq BIGINT NOT NULL,
        effects    INT NOT NULL DEFAULT 1,
        place      BIGINT GENERATED ALWAYS AS IDENTITY
    )";

const SHIP: &str = "
    INSERT INTO shipments AS s (event_id, order_id, stream_seq) VALUES ($1, $2, $3)
    ON CONFLICT (event_id) DO UPDATE SET effects = s.effects + 1";

const COUNT: &str = "
    SELECT count(*), coalesce(sum(effects - 1), 0)::bigint,
        count(*) FILTER (WHERE stream_seq < previous)
    FROM (SELECT effects, stream_seq,
              lag(stream_seq) OVER (PARTITION BY order_id ORDER BY place) AS previous
          FROM shipments) AS s";

/// The handler: what a user of the inbox writes.
pub(super) struct Shipping;

impl TransactionalHandler for Shipping {
    async fn handle(&self, delivery: Delivery<'_>, transaction: &Transaction<'_>) -> Verdict {
        let order_id: &str = &delivery.event.aggregate_id;
        let stream_seq = delivery.stream_seq.cast_signed();
        match transaction.execute(SHIP, &[&delivery.event.id, &order_id, &stream_seq]).await {
            Ok(_) => Verdict::processed(),
            // With what the server said: the error itself is no more than "db error".
            Err(error) => Verdict::retry(format!("{:#}", anyhow::Error::new(error))),
        }
    }
}

/// Makes the tables, and an inbox between the stream and them.
pub(super) async fn inbox(
    servers: &Servers,
    stream: String,
) -> Result<Inbox<Transactional<Shipping>>> {
    let mut database = servers.database().await?;
    let tables = inbox::create_tables(&mut database, SCHEMA).await;
    tables.context("make the tables of the inbox")?;
    database.batch_execute(TABLE).await.context("make the table of shipments")?;
    let url = servers.database_url();
    let connect = move || {
        let url = url.clone();
        async move { Ok(Connection::new(servers::connect(&url).await?)) }
    };
    let builder = Inbox::builder(CONSUMER).postgres(connect).nats(servers.broker().await?);
    Ok(builder.stream(stream).schema(SCHEMA).transactional(Shipping))
}

/// What the events have brought about.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Effects {
    /// Events with an effect.
    pub(super) events: usize,
    /// Effects beyond the first of each event.
    pub(super) twice: usize,
    /// Effects that came before that of an earlier event of the same order.
    pub(super) out_of_order: usize,
}

impl Effects {
    pub(super) async fn count(database: &Client) -> Result<Self> {
        let row = database.query_one(COUNT, &[]).await.context("count the shipments")?;
        let count = |index: usize| usize::try_from(row.get::<_, i64>(index));
        Ok(Self { events: count(0)?, twice: count(1)?, out_of_order: count(2)? })
    }
}
