//! `tailpost inbox ping`.

use std::time::Instant;

use anyhow::Context;
use async_nats::HeaderMap;
use inbox::{Delivery, Verdict};
use outbox::{Event, wire};
use serde_json::json;

use super::handler::handler;
use crate::cli::PingArgs;
use crate::config::{Error, Settings};
use crate::errors::{Kind, Refusal};
use crate::output;

/// The type of the event that is sent, and its subject.
const PING: &str = "tailpost.ping";

/// Sends the service of a consumer an event that is nowhere else, and shows what it answers.
pub(super) async fn run(args: &PingArgs, settings: &Settings) -> anyhow::Result<()> {
    let consumers = settings.consumers()?;
    let consumer = consumers.iter().find(|it| it.name == args.consumer);
    let consumer = consumer.ok_or_else(Error::no_consumer)?;
    let handler = handler(settings, consumer).await?;
    for key in handler.public_keys().await? {
        output::note(&format!("public key: {key}"));
    }
    let payload = json!({ "consumer": consumer.name });
    let event = Event::new("tailpost", &*consumer.name, PING, &payload)?;
    let mut headers = HeaderMap::new();
    wire::event_headers(&event, |name, value| headers.insert(name, value))
        .context("could not make an event")?;
    let delivery = Delivery {
        consumer: &consumer.name,
        event: &event,
        subject: PING,
        headers: &headers,
        stream: &consumer.stream,
        stream_seq: 0,
        attempt: 1,
        max_attempts: consumer.settings.max_attempts.0,
        lease: consumer.settings.lease.0,
        span: None,
    };
    let begun = Instant::now();
    let (status, verdict) = handler.call(delivery).await;
    let status = status.map_or_else(|| "no answer".into(), |it| it.to_string());
    let (kind, word, reason) = match verdict {
        Verdict::Processed { .. } => {
            return output::text(&format!("{status}: handled, after {:?}", begun.elapsed()));
        }
        Verdict::Retry { reason, .. } => (Kind::Refused, "would be tried again", reason),
        Verdict::Dead { reason } => (Kind::Refused, "would be a dead letter", reason),
        Verdict::Misconfigured { reason } => (Kind::Refused, "would wait, uncounted", reason),
        Verdict::Outage { reason, .. } => (Kind::Unreachable, "would wait, uncounted", reason),
    };
    output::text(&format!("{status}: an event {word}"))?;
    Err(Refusal::new(kind, reason).into())
}
