//! When messages reach a consumer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::{self, consumer::DeliverPolicy, consumer::pull};
use async_nats::{Message, header};
use futures_util::StreamExt;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

/// After this much silence what is missing counts as lost.
pub(crate) const ARRIVAL_MAX: Duration = Duration::from_secs(30);

/// A message that arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// Its sequence in the stream.
    pub(crate) seq: u64,
}

/// An ordered pull consumer on the whole stream.
pub(crate) async fn consumer(
    jetstream: &jetstream::Context,
    stream: &str,
) -> Result<pull::Ordered> {
    from(jetstream, stream, DeliverPolicy::All).await
}

/// The same, from the next message on.
pub(crate) async fn consumer_of_new(
    jetstream: &jetstream::Context,
    stream: &str,
) -> Result<pull::Ordered> {
    from(jetstream, stream, DeliverPolicy::New).await
}

async fn from(
    jetstream: &jetstream::Context,
    stream: &str,
    deliver_policy: DeliverPolicy,
) -> Result<pull::Ordered> {
    let stream = jetstream.get_stream(stream).await?;
    let config = pull::OrderedConfig { deliver_policy, ..pull::OrderedConfig::default() };
    let consumer = stream.create_consumer(config).await?;
    consumer.messages().await.context("consume the stream")
}

/// Waits for one message that is no copy.
pub(crate) async fn next(messages: &mut pull::Ordered) -> Result<(Uuid, Arrival)> {
    let (message, at) = loop {
        let next = timeout(ARRIVAL_MAX, messages.next()).await;
        let message = next.context("nothing arrives any more")?.context("the consumer ended")??;
        if !is_copy(&message) {
            break (message, Instant::now());
        }
    };
    let seq = message.info().map_err(|error| anyhow::anyhow!(error))?.stream_sequence;
    Ok((event_id(&message).context("a message without an id")?, Arrival { at, seq }))
}

/// Notes when each of so many events arrived, by its id.
pub(crate) fn collect(
    mut messages: pull::Ordered,
    events: u32,
) -> JoinHandle<Result<HashMap<Uuid, Arrival>>> {
    tokio::spawn(async move {
        let mut arrived = HashMap::with_capacity(events as usize);
        while arrived.len() < events as usize {
            let next = next(&mut messages).await;
            let (id, arrival) =
                next.with_context(|| format!("{} of {events} arrived", arrived.len()))?;
            ensure!(arrived.insert(id, arrival).is_none(), "event {id} arrived twice");
        }
        Ok(arrived)
    })
}

fn event_id(message: &Message) -> Option<Uuid> {
    message.headers.as_ref()?.get(header::NATS_MESSAGE_ID)?.as_str().parse().ok()
}

/// Whether a replay stored it.
fn is_copy(message: &Message) -> bool {
    message.headers.as_ref().is_some_and(|it| it.get(outbox::wire::header::REPLAY).is_some())
}
