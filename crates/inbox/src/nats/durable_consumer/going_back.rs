//! How the durable consumer goes back in its stream.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{DeliverPolicy, FromConsumer, Info, pull};
use async_nats::jetstream::stream::{ConsumerResetErrorKind, RetentionPolicy, Stream};
use serde::Serialize;
use tokio::time::sleep;

use super::{LOOKING, create, find, wanted};
use crate::Error;
use crate::config::Config;

/// How often, and how far apart, the broker is asked to reset a consumer whose acknowledgements do not go
/// back. A server that writes its state of before down just then (`writeState` of the file store of 2.15)
/// keeps that, shows it until the next delivery, and has it after a restart.
const RESETS_MAX: u32 = 10;
const RESET_PAUSE: Duration = Duration::from_millis(50);

/// How a consumer goes back in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RewindMethod {
    /// The broker resets it.
    Reset,
    /// It is deleted and made again with another start: the broker cannot reset it.
    MadeAnew,
}

/// How the durable consumer would be rewound to `from`. As far as can be told: of one that begins at
/// a time the broker decides.
#[must_use]
pub fn rewind_method(nats: &Client, found: Option<&Info>, from: u64) -> RewindMethod {
    let allows = |info: &Info| match info.config.deliver_policy {
        DeliverPolicy::All | DeliverPolicy::ByStartTime { .. } => true,
        DeliverPolicy::ByStartSequence { start_sequence } => start_sequence <= from,
        _ => false,
    };
    if nats.is_server_compatible(2, 14, 0) && found.is_some_and(allows) {
        RewindMethod::Reset
    } else {
        RewindMethod::MadeAnew
    }
}

/// Where a consumer that goes back to `from` begins: what it has not acknowledged must come too. All
/// comes if nobody knows what that is.
#[must_use]
pub fn begins_at(found: Option<&Info>, from: u64) -> u64 {
    found.map_or(1, |info| from.min(info.ack_floor.stream_sequence + 1))
}

/// Whether messages outlive the consumers that have acknowledged them. Where they do not, a consumer
/// that is deleted takes with it what only it had before it.
#[must_use]
pub fn keeps_messages(stream: &Stream) -> bool {
    stream.cached_info().config.retention == RetentionPolicy::Limits
}

/// Has the durable consumer deliver everything from `from` on, in the stream's order. Again does no
/// harm. What the session before acknowledged arrives before, as long as both use one connection.
pub(crate) async fn rewind(
    nats: &Client,
    stream: &Stream,
    config: &Config,
    from: u64,
) -> Result<RewindMethod, Error> {
    let mut found = find(stream, config).await?;
    let mut resets = 0;
    while rewind_method(nats, found.as_ref(), from) == RewindMethod::Reset {
        match stream.reset_consumer(&config.durable(), Some(from)).await {
            Ok(_) => resets += 1,
            Err(error) if error.kind() == ConsumerResetErrorKind::InvalidReset => break,
            Err(error) => return Err(Error::jetstream("reset the durable consumer")(error)),
        }
        found = find(stream, config).await?;
        if found.as_ref().is_some_and(|it| it.ack_floor.stream_sequence < from)
            || resets == RESETS_MAX
        {
            return Ok(RewindMethod::Reset);
        }
        sleep(RESET_PAUSE).await;
    }
    if !keeps_messages(stream) {
        return Err(Error::cannot_rewind(&config.stream));
    }
    let before = match found {
        Some(info) => {
            let deleted = stream.delete_consumer(&config.durable()).await;
            deleted.map_err(Error::jetstream("delete the durable consumer"))?;
            pull::Config::try_from_consumer_config(info.config)
                .map_err(Error::jetstream(LOOKING))?
        }
        None => wanted(config),
    };
    let deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: from };
    create(stream, pull::Config { deliver_policy, ..before }).await?;
    Ok(RewindMethod::MadeAnew)
}
