//! What an inbox cannot be faster than.

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::StreamExt;
use futures_util::future::{try_join, try_join_all};
use outbox::Event;

use crate::bench_env::BenchEnv;
use crate::report::Cost;

/// As the inbox asks for messages, and as it writes records.
const PULLED: usize = 256;
const BATCH: usize = 64;
pub(crate) const CONNECTIONS: usize = 8;

const BARE: &str = "bare";
const BOTH: &str = "both";

/// A durable pull consumer that acknowledges each message and does nothing else.
pub(crate) async fn consumer(env: &BenchEnv<'_>) -> Result<Cost> {
    let meter = env.servers.meter()?;
    take_all(env, BARE).await?;
    meter.cost(env.all.count())
}

/// The same records in the same batches on as many connections, without any event to handle.
pub(crate) async fn insert(env: &BenchEnv<'_>) -> Result<Cost> {
    let meter = env.servers.meter()?;
    write_all(env, BARE).await?;
    let cost = meter.cost(env.all.count())?;
    env.check(&env.all.stream, BARE, env.all.count()).await?;
    Ok(cost)
}

/// The two side by side, neither waiting for the other.
pub(crate) async fn both(env: &BenchEnv<'_>) -> Result<Cost> {
    let meter = env.servers.meter()?;
    try_join(take_all(env, BOTH), write_all(env, BOTH)).await?;
    let cost = meter.cost(env.all.count())?;
    env.check(&env.all.stream, BOTH, env.all.count()).await?;
    Ok(cost)
}

async fn take_all(env: &BenchEnv<'_>, name: &str) -> Result<()> {
    let (stream, mut left) = (&env.all.stream, env.all.count());
    let config = pull::Config {
        durable_name: Some(name.to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 4_096,
        ..pull::Config::default()
    };
    let consumer = env.jetstream.get_stream(stream).await?.create_consumer(config).await;
    let consumer = consumer.context("create the bare consumer")?;
    while left > 0 {
        let mut messages = consumer.fetch().max_messages(PULLED).messages().await?;
        while let Some(message) = messages.next().await {
            let message = message.map_err(anyhow::Error::from_boxed).context("take a message")?;
            message.ack().await.map_err(anyhow::Error::from_boxed).context("acknowledge")?;
            left = left.checked_sub(1).context("a message came twice")?;
        }
    }
    while env.handled(stream, name).await?.1 > 0 {}
    Ok(())
}

async fn write_all(env: &BenchEnv<'_>, name: &str) -> Result<()> {
    let share = env.all.events.len().div_ceil(CONNECTIONS);
    let loops = env.all.events.chunks(share).map(|events| write(env, name, events));
    try_join_all(loops).await?;
    Ok(())
}

async fn write(env: &BenchEnv<'_>, name: &str, events: &[Event]) -> Result<()> {
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
        let written = client.execute(&statement, &[&name, &ids, &times, &subject, stream]).await;
        ensure!(written.context("insert records")? == events.len() as u64, "records were there");
    }
    Ok(())
}
