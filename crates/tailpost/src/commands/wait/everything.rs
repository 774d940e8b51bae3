//! Everything that is committed by now.

use std::time::{Duration, Instant};

use anyhow::Context;
use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use serde::Serialize;

use crate::cli::WaitArgs;
use crate::config::Settings;
use crate::output;

/// Between two looks at the durable consumer.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is left.
#[derive(Serialize)]
struct Left {
    /// Events that are not published; 10,000 if there are more.
    unpublished: u64,
    /// Messages that the consumer has not answered, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    unprocessed: Option<u64>,
}

pub(super) async fn run(args: &WaitArgs, settings: &Settings) -> anyhow::Result<()> {
    let until = Instant::now() + args.timeout;
    let config = settings.relay_config()?;
    let unpublished = relay::waiting::for_everything(&config, args.timeout).await?;
    let unprocessed = match &args.processed_by {
        Some(consumer) if unpublished == 0 => Some(processed(consumer, settings, until).await?),
        _ => None,
    };
    if args.json {
        output::json(&Left { unpublished, unprocessed })?;
    }
    let left = match (unpublished, unprocessed) {
        (0, None | Some(0)) if args.json => return Ok(()),
        (0, None) => return output::text("everything is published"),
        (0, Some(0)) => return output::text("everything is published and answered"),
        (0, Some(left)) => format!("{left} messages are not answered"),
        (left, _) => format!("{left} events are not published"),
    };
    Err(super::late(format!("{left} after {:?}", args.timeout)).into())
}

/// Waits until the consumer has answered what the stream has now. Returns how much it has not.
async fn processed(consumer: &str, settings: &Settings, until: Instant) -> anyhow::Result<u64> {
    let configured = settings.consumers()?.into_iter().find(|it| it.name == consumer);
    let stream = configured.map_or_else(|| settings.stream.name.clone(), |it| it.stream);
    let client = settings.nats_target()?.connect("tailpost wait").await?;
    let context = jetstream::new(client);
    let looking = || format!("look for the consumer {consumer} of the stream {stream}");
    let last = context.get_stream(&stream).await.with_context(looking)?;
    let last = last.cached_info().state.last_sequence;
    let mut durable: PullConsumer =
        context.get_consumer_from_stream(consumer, &stream).await.with_context(looking)?;
    // A consumer counts a message as pending a little after the stream has stored it. With a filter
    // it need not come to the last one: two looks tell.
    let mut had_nothing = false;
    loop {
        let info = durable.info().await.with_context(looking)?;
        let left = info.num_pending + info.num_ack_pending as u64;
        let is_there = info.delivered.stream_sequence >= last || had_nothing;
        if left == 0 && is_there || info.ack_floor.stream_sequence >= last {
            return Ok(0);
        }
        if left > 0 && Instant::now() >= until {
            return Ok(left);
        }
        had_nothing = left == 0;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
