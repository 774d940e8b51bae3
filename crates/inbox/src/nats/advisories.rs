//! Messages that the broker gives up on are not given up: the record says how many attempts there
//! are, not the broker.
//!
//! A durable consumer of our own never gives up. One that somebody else provided may have a
//! `max_deliver`, and another client of it may terminate a message; the broker says so once, to
//! whoever listens, and never delivers it again. So we listen, and read it from the stream.
//!
//! Every client of the account may publish what looks like an advisory. So it is about what the
//! consumer has delivered and, by its configuration, can have given up, or it is passed over; and it
//! waits until there is room. It has no more effect than a redelivery: the record decides.

use std::sync::Arc;

use async_nats::jetstream::stream::Stream;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use futures_util::stream::select;
use serde::Deserialize;
use tracing::{info, warn};

use crate::Error;
use crate::config::Config;
use crate::engine::{Delivered, Path};
use crate::feed::Feed;
use crate::message::{Message, Origin};
use crate::nats::durable_consumer::{self, filters_of};
use crate::nats::stored_message;
use servers::describe;

const ADVISORIES: [&str; 2] =
    ["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"];

pub(crate) struct Advisories {
    advisories: [Subscriber; 2],
    about: About,
}

/// What they are about.
struct About {
    nats: Client,
    origin: Origin,
    stream: Stream,
    config: Arc<Config>,
}

#[derive(Deserialize)]
struct Advisory {
    stream_seq: u64,
}

impl Advisories {
    pub(crate) async fn open(
        nats: &Client,
        origin: Origin,
        config: &Arc<Config>,
    ) -> Result<Self, Error> {
        let (name, consumer) = (&origin.stream, &config.durable());
        let subscribe = async |kind: &str| {
            let subscriber = nats.subscribe(format!("{kind}.{name}.{consumer}")).await;
            subscriber.map_err(Error::jetstream("listen to the broker's advisories"))
        };
        let advisories = [subscribe(ADVISORIES[0]).await?, subscribe(ADVISORIES[1]).await?];
        let stream = durable_consumer::stream(nats, config).await?;
        let (nats, config) = (nats.clone(), Arc::clone(config));
        Ok(Self { advisories, about: About { nats, origin, stream, config } })
    }

    /// Brings what the broker gave up on, as there is room for it, until the session takes nothing
    /// more.
    pub(crate) async fn run(self, mut feed: Feed) {
        let Self { advisories: [given_up, terminated], about } = self;
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
            if feed.room_for(1).await.is_err() {
                return;
            }
            let gave_up = advisory.subject.starts_with(ADVISORIES[0]);
            let message = match about.read(stream_seq, gave_up).await {
                Ok(Some(message)) => Arc::new(message),
                Ok(None) => continue,
                Err(error) => {
                    let (consumer, error) = (&about.config.consumer, describe(&error));
                    warn!(consumer, stream_seq, error, "could not read it from the stream");
                    continue;
                }
            };
            let delivered = Delivered { message, reply: None, path: Path::Careful };
            if feed.bring(delivered).await.is_err() {
                return;
            }
        }
    }
}

impl About {
    /// The message, if it is the consumer's, was delivered, and has not been deleted.
    async fn read(&self, stream_seq: u64, gave_up: bool) -> Result<Option<Message>, Error> {
        let consumer = &self.config.consumer;
        let found = durable_consumer::find(&self.stream, &self.config).await?;
        let Some(info) = found.filter(|it| stream_seq <= it.delivered.stream_sequence) else {
            warn!(consumer, stream_seq, "passed over an advisory about what was not delivered");
            return Ok(None);
        };
        if gave_up && info.config.max_deliver <= 0 {
            warn!(consumer, stream_seq, "passed over an advisory: the consumer never gives up");
            return Ok(None);
        }
        let stored = stored_message::get(&self.nats, &self.origin.stream, stream_seq).await?;
        let Some(stored) = stored else { return Ok(None) };
        if !durable_consumer::take(&filters_of(&info.config), &stored.subject) {
            warn!(consumer, stream_seq, "passed over an advisory about another subject");
            return Ok(None);
        }
        info!(consumer, stream_seq, "the broker gave up on a message: handling it all the same");
        Ok(Some(stored.understood(&self.origin)))
    }
}
