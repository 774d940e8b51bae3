//! All messages of a stream, in its order.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use async_nats::HeaderValue;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;
use outbox::wire::{Position, header};
use tokio::time::timeout;
use uuid::Uuid;

/// The longest pause before the first message, and between two.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

/// One message of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Which of the streams that were read it is in, from 0 on.
    pub stream: usize,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// The event's id; `None` for a message that is no event.
    pub id: Option<Uuid>,
    /// The position in the log that it carries.
    pub position: Option<Position>,
    /// Whether it named the sequence it must follow.
    pub has_expected_last_sequence: bool,
}

pub(super) async fn read(jetstream: &Context, name: &str) -> Result<Vec<Stored>> {
    let stream = jetstream.get_stream(name).await.with_context(|| format!("find stream {name}"))?;
    let held = stream.cached_info().state.messages;
    let mut all = Vec::with_capacity(usize::try_from(held)?);
    if held == 0 {
        return Ok(all);
    }
    let config = OrderedConfig {
        deliver_policy: DeliverPolicy::All,
        headers_only: true,
        ..OrderedConfig::default()
    };
    let started = Instant::now();
    let consumer = loop {
        match stream.create_consumer(config.clone()).await {
            Ok(consumer) => break consumer,
            // A cluster that one of its servers has come back to elects its leader once more.
            Err(_) if started.elapsed() < PATIENCE => tokio::time::sleep(POLL).await,
            Err(error) => return Err(error).context("create an ordered consumer"),
        }
    };
    let mut messages = consumer.messages().await.context("read the stream")?;
    loop {
        let next = timeout(PATIENCE, messages.next()).await;
        let next = next.with_context(|| format!("wait for message {} of {held}", all.len() + 1))?;
        let message = next.context("the stream's messages ended early")??;
        let info = message.info().map_err(|error| anyhow!("read a delivery: {error}"))?;
        let (sequence, pending) = (info.stream_sequence, info.pending);
        let headers = message.message.headers.unwrap_or_default();
        all.push(Stored::of(sequence, |name| headers.get(name).map(HeaderValue::as_str)));
        if pending == 0 {
            return Ok(all);
        }
    }
}

impl Stored {
    /// The message with these headers.
    pub(super) fn of<'a>(sequence: u64, value: impl Fn(&str) -> Option<&'a str>) -> Self {
        let id = value(header::EVENT_ID).or_else(|| value(header::MSG_ID));
        Self {
            stream: 0,
            sequence,
            id: id.and_then(|it| it.parse().ok()),
            position: value(header::POSITION).and_then(|it| it.parse().ok()),
            has_expected_last_sequence: value(header::EXPECTED_LAST_SEQUENCE).is_some(),
        }
    }
}
