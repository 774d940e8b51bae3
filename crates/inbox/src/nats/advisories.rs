//! Messages that the broker gives up on are not given up: the record says how many attempts there
//! are, not the broker.
//!
//! A durable consumer of our own never gives up. One that somebody else provided may have a
//! `max_deliver`, and another client of it may terminate a message; the broker says so once, to
//! whoever listens, and never delivers it again. So we listen, and read it from the stream.

use std::sync::Arc;

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use futures_util::stream::select;
use serde::Deserialize;
use tracing::{info, warn};

use crate::Error;
use crate::engine::{Delivered, Path};
use crate::error::describe;
use crate::feed::Feed;
use crate::message::Origin;
use crate::nats::stored_message;

const ADVISORIES: [&str; 2] =
    ["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"];

pub(crate) struct Advisories {
    nats: Client,
    origin: Origin,
    consumer: String,
    advisories: [Subscriber; 2],
}

#[derive(Deserialize)]
struct Advisory {
    stream_seq: u64,
}

impl Advisories {
    pub(crate) async fn open(nats: &Client, origin: Origin, consumer: &str) -> Result<Self, Error> {
        let name = &origin.stream;
        let subscribe = async |kind: &str| {
            let subscriber = nats.subscribe(format!("{kind}.{name}.{consumer}")).await;
            subscriber.map_err(Error::jetstream("listen to the broker's advisories"))
        };
        let advisories = [subscribe(ADVISORIES[0]).await?, subscribe(ADVISORIES[1]).await?];
        let (nats, consumer) = (nats.clone(), consumer.to_owned());
        Ok(Self { nats, origin, consumer, advisories })
    }

    /// Brings what the broker gave up on, until the session takes nothing more.
    pub(crate) async fn run(self, feed: Feed) {
        let [given_up, terminated] = self.advisories;
        let mut advisories = select(given_up, terminated);
        loop {
            let advisory = tokio::select! {
                () = feed.closed() => return,
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
            let message =
                match stored_message::get(&self.nats, &self.origin.stream, stream_seq).await {
                    Ok(Some(stored)) => stored.understood(&self.origin),
                    // It has been deleted: there is nothing to handle.
                    Ok(None) => continue,
                    Err(error) => {
                        let error = describe(&error);
                        warn!(consumer, stream_seq, error, "could not read it from the stream");
                        continue;
                    }
                };
            let delivered =
                Delivered { message: Arc::new(message), reply: None, path: Path::Careful };
            if feed.bring(delivered).await.is_err() {
                return;
            }
        }
    }
}
