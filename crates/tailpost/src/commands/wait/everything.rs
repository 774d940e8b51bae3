//! Everything that is committed by now.

use std::time::{Duration, Instant};

use anyhow::Context;
use async_nats::jetstream::consumer::PullConsumer;
use operate::consumers::Rewinder;
use serde::Serialize;
use tokio_postgres::error::SqlState;

use crate::cli::WaitArgs;
use crate::commands::inbox::builder;
use crate::config::Settings;
use crate::errors::Refusal;
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
    let unpublished = operate::waiting::for_everything(&config, args.timeout).await?;
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

/// Between two looks whether the records know the end of what is answered.
const LOOK_UP_EVERY: Duration = Duration::from_millis(500);

/// Waits until the consumer has answered what the stream has now, and its records say so. Returns how
/// much it has not.
async fn processed(consumer: &str, settings: &Settings, until: Instant) -> anyhow::Result<u64> {
    let configured = settings.consumers()?.into_iter().find(|it| it.name == consumer);
    let (builder, durables) = match &configured {
        Some(configured) => (builder::builder(configured), builder::durables(configured)),
        None => {
            let builder = inbox::Inbox::builder(consumer).stream(&settings.stream.name);
            (builder, vec![consumer.to_owned()])
        }
    };
    let stream = configured.map_or_else(|| settings.stream.name.clone(), |it| it.stream);
    let client = settings.nats_target()?.connect("tailpost wait").await?;
    let records = records(builder, settings, client.clone()).await?;
    let context = servers::jetstream_of(&client);
    let looking = || format!("look for the stream {stream}");
    let last = context.get_stream(&stream).await.with_context(looking)?;
    let last = last.cached_info().state.last_sequence;
    for durable in durables {
        let looking = || format!("look for the consumer {durable} of the stream {stream}");
        let found = context.get_consumer_from_stream(&durable, &stream).await;
        let left = answered(found.with_context(looking)?, &records, (last, until)).await?;
        if left > 0 {
            return Ok(left);
        }
    }
    Ok(0)
}

/// Waits until a durable consumer has answered what it has up to `last`. Returns how much it has not.
async fn answered(
    mut durable: PullConsumer,
    records: &Rewinder,
    (last, until): (u64, Instant),
) -> anyhow::Result<u64> {
    // A consumer counts a message as pending a little after the stream has stored it. With a filter
    // it need not come to the last one: two looks tell.
    let mut had_nothing = false;
    loop {
        let info = durable.info().await.context("look at the consumer")?;
        let left = info.num_pending + info.num_ack_pending as u64;
        let is_there = info.delivered.stream_sequence >= last || had_nothing;
        let mut pause = LOOK_EVERY;
        if left == 0 && is_there || info.ack_floor.stream_sequence >= last {
            if are_whole(records).await? {
                return Ok(0);
            }
            if Instant::now() >= until {
                return Ok(1);
            }
            pause = LOOK_UP_EVERY;
        } else if left > 0 && Instant::now() >= until {
            return Ok(left);
        }
        had_nothing = left == 0;
        tokio::time::sleep(pause).await;
    }
}

async fn records(
    builder: inbox::Builder,
    settings: &Settings,
    nats: async_nats::Client,
) -> anyhow::Result<Rewinder> {
    let builder = builder.nats(nats).schema(settings.table()?.schema());
    Ok(Rewinder::new(builder, settings.connection("tailpost wait").await?)?)
}

/// Whether the inbox's records have an end of all that is answered. An error if messages were gone that
/// nobody could answer. Without an inbox, or one that may be read, the broker's acknowledgements are
/// enough.
async fn are_whole(records: &Rewinder) -> anyhow::Result<bool> {
    match records.unhandled().await {
        Ok((None, unread @ 1..)) => {
            let problem =
                format!("up to {unread} messages left the stream unread, or have no record here");
            let hint = "`tailpost status` says how to bring them, once a worker has looked";
            Err(Refusal::conflict(problem).with_hint(hint).into())
        }
        Ok((unhandled, _)) => Ok(unhandled.is_none()),
        Err(inbox::Error::Sql { source, .. }) if is_no_inbox(&source) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn is_no_inbox(error: &tokio_postgres::Error) -> bool {
    let none = [SqlState::UNDEFINED_TABLE, SqlState::INSUFFICIENT_PRIVILEGE];
    error.code().is_some_and(|code| none.contains(code))
}
