//! Messages that the broker gives up on are not given up: the record says how many attempts there
//! are, not the broker.
//!
//! A durable consumer of our own never gives up. One that somebody else provided may have a
//! `max_deliver`, and another client of it may terminate a message; the broker says so once, to
//! whoever listens, and never delivers it again. So we listen, and read it from the stream.

use std::sync::Arc;

use async_nats::jetstream::stream::Stream;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use futures_util::stream::select;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::Error;
use crate::core::Path;
use crate::message::Message;
use crate::redrive::closed;
use crate::source::Delivered;

const ADVISORIES: [&str; 2] =
    ["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"];

pub(crate) struct Strays {
    stream: Stream,
    name: String,
    consumer: String,
    advisories: [Subscriber; 2],
}

#[derive(Deserialize)]
struct Advisory {
    stream_seq: u64,
}

impl Strays {
    pub(crate) async fn open(nats: &Client, stream: Stream, consumer: &str) -> Result<Self, Error> {
        let name = stream.cached_info().config.name.clone();
        let subscribe = async |kind: &str| {
            let subscriber = nats.subscribe(format!("{kind}.{name}.{consumer}")).await;
            subscriber.map_err(Error::jetstream("listen to the broker's advisories"))
        };
        let advisories = [subscribe(ADVISORIES[0]).await?, subscribe(ADVISORIES[1]).await?];
        Ok(Self { stream, name, consumer: consumer.to_owned(), advisories })
    }

    /// Feeds what the broker gave up on, until `room`'s sender is gone.
    pub(crate) async fn run(self, feed: mpsc::Sender<Delivered>, room: watch::Receiver<usize>) {
        let [given_up, terminated] = self.advisories;
        let mut advisories = select(given_up, terminated);
        loop {
            let advisory = tokio::select! {
                () = closed(room.clone()) => return,
                advisory = advisories.next() => advisory,
            };
            let Some(advisory) = advisory else { return };
            let Ok(Advisory { stream_seq }) = serde_json::from_slice(&advisory.payload) else {
                continue;
            };
            let consumer = &self.consumer;
            info!(
                consumer,
                stream_seq, "the broker gave up on a message: handling it all the same"
            );
            let stored = match self.stream.get_raw_message(stream_seq).await {
                Ok(stored) => stored,
                Err(error) => {
                    // It may have been deleted; then there is nothing to handle.
                    warn!(consumer, stream_seq, %error, "could not read it from the stream");
                    continue;
                }
            };
            let at = Timestamp::from_nanosecond(stored.time.unix_timestamp_nanos());
            let at = at.unwrap_or_default().round(jiff::Unit::Microsecond).unwrap_or_default();
            let subject = stored.subject.to_string();
            let message =
                Message::new(subject, stored.headers, stored.payload, &self.name, stream_seq, at);
            let delivered =
                Delivered { message: Arc::new(message), reply: None, path: Path::Careful };
            if feed.send(delivered).await.is_err() {
                return;
            }
        }
    }
}
