//! The consumer: reads the stream from its beginning, in order.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;
use outbox::wire::header;

use super::journal::{Journal, Received};

/// Notes what arrives, for ever.
pub(super) async fn consume(
    jetstream: Context,
    stream: String,
    journal: Arc<Journal>,
) -> Result<()> {
    let stream = jetstream.get_stream(&stream).await.context("find the stream")?;
    let consumer = stream.create_consumer(OrderedConfig::default()).await;
    let mut messages =
        consumer.context("create a consumer")?.messages().await.context("read the stream")?;
    while let Some(message) = messages.next().await {
        let message = message.context("read the stream")?;
        let at = Instant::now();
        let info = message.info().map_err(|error| anyhow!("read a delivery: {error}"))?;
        let sequence = info.stream_sequence;
        let headers = message.headers.as_ref();
        let id = headers.and_then(|headers| headers.get(header::MSG_ID));
        let id = id.and_then(|id| id.as_str().parse().ok());
        let id = id.with_context(|| format!("message {sequence} carries no event id"))?;
        journal.received(Received { sequence, id }, at);
    }
    Err(anyhow!("the consumer's messages ended"))
}
