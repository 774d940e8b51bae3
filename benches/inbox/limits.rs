//! What an inbox cannot be faster than.

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use outbox::Event;

use crate::bench_env::BenchEnv;
use crate::report::Cost;

/// As the inbox asks for messages, and as it writes records.
const PULLED: usize = 256;
const BATCH: usize = 64;
pub(crate) const CONNECTIONS: usize = 8;

const BARE: &str = "bare";

/// A durable pull consumer that acknowledges each message and does nothing else.
pub(crate) async fn consumer(env: &BenchEnv<'_>) -> Result<Cost> {
    let (stream, count) = (&env.all.stream, env.all.count());
    let config = pull::Config {
        durable_name: Some(BARE.to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 4_096,
        ..pull::Config::default()
    };
    let consumer = env.jetstream.get_stream(stream).await?.create_consumer(config).await;
    let consumer = consumer.context("create the bare consumer")?;
    let meter = env.servers.meter()?;
    let mut left = count;
    while left > 0 {
        let mut messages = consumer.fetch().max_messages(PULLED).messages().await?;
        while let Some(message) = messages.next().await {
            let message = message.map_err(anyhow::Error::from_boxed).context("take a message")?;
            message.ack().await.map_err(anyhow::Error::from_boxed).context("acknowledge")?;
            left = left.checked_sub(1).context("a message came twice")?;
        }
    }
    while env.handled(stream, BARE).await?.1 > 0 {}
    meter.cost(count)
}

/// The same records in the same batches on as many connections, without any event to handle.
pub(crate) async fn insert(env: &BenchEnv<'_>) -> Result<Cost> {
    let count = env.all.count();
    let share = env.all.events.len().div_ceil(CONNECTIONS);
    let meter = env.servers.meter()?;
    let loops = env.all.events.chunks(share).map(|events| insert_all(env, events));
    try_join_all(loops).await?;
    let cost = meter.cost(count)?;
    env.check(&env.all.stream, BARE, count).await?;
    Ok(cost)
}

async fn insert_all(env: &BenchEnv<'_>, events: &[Event]) -> Result<()> {
    let client = env.servers.postgres.client(&env.database).await?;
    let sql = "INSERT INTO inbox_messages (consumer, message_id, event_time, subject, stream,
                   stream_seq, status, attempts, finished_attempts, processed_at, lease_owner)
               SELECT $1, message_id, event_time, $4, $5, 1, 'PROCESSED', 1, 1,
                   clock_timestamp(), $1
               FROM unnest($2::uuid[], $3::timestamptz[]) AS i (message_id, event_time)
               ON CONFLICT (consumer, message_id, event_time) DO NOTHING";
    let statement = client.prepare(sql).await?;
    let stream = &env.all.stream;
    let subject = format!("{stream}.order.OrderPlaced");
    for events in events.chunks(BATCH) {
        let ids: Vec<_> = events.iter().map(|it| it.id).collect();
        let times: Vec<_> = events.iter().map(|it| it.occurred_at).collect();
        let written = client.execute(&statement, &[&BARE, &ids, &times, &subject, stream]).await;
        ensure!(written.context("insert records")? == events.len() as u64, "records were there");
    }
    Ok(())
}
