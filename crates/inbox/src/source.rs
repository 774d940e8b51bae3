//! Takes messages from the stream, as many as there is room for, and misses none.
//!
//! The durable consumer says what was delivered; that is not what arrived. What a worker had when it
//! died, and what was under way when a connection broke, the broker delivers again only after
//! `ack_wait`, behind later events of the same aggregates. So what has been delivered and not
//! acknowledged is read from the stream itself, before anything new: at the beginning, and whenever
//! the count of deliveries has a gap. That the broker delivers it once more does no harm: by then it
//! is known.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::{ConsumerInfoError, ConsumerInfoErrorKind};
use async_nats::jetstream::stream::Stream;
use async_nats::{Client, Subject};
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::Error;
use crate::config::Config;
use crate::core::Path;
use crate::error::describe;
use crate::message::Message;

/// Messages asked for at a time.
const PULLED_MAX: usize = 256;

/// Nothing is asked for while there is room for less: each request costs a round trip.
const PULLED_MIN: usize = 64;

/// Bytes asked for at a time.
const PULLED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a request waits for messages: also how long a stop may take, for what comes in answer
/// is given back rather than left to `ack_wait`.
const PULL_EXPIRES: Duration = Duration::from_secs(1);

/// How long the stream may be silent while what was delivered is read from it.
const READ_DEADLINE: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(500);

const ACK_PENDING_MAX: i64 = 50_000;

/// A message, and what is known about it.
pub(crate) struct Delivered {
    pub(crate) message: Arc<Message>,
    /// Where to acknowledge it; not known if it was read from the stream.
    pub(crate) reply: Option<Subject>,
    pub(crate) path: Path,
}

pub(crate) struct Source {
    stream: Stream,
    consumer: consumer::Consumer<pull::Config>,
    name: String,
    /// Of the newest delivery that arrived.
    consumer_seq: u64,
    is_new: bool,
}

impl Source {
    /// Finds the durable consumer, or makes it.
    pub(crate) async fn open(nats: &Client, config: &Config) -> Result<Self, Error> {
        let context = jetstream::new(nats.clone());
        let stream = context.get_stream(&config.stream).await;
        let stream = stream.map_err(Error::jetstream("look up the stream"))?;
        let name = config.consumer.clone();
        let mut is_new = false;
        let consumer = match stream.get_consumer::<pull::Config>(&name).await {
            Ok(consumer) => consumer,
            Err(error) if is_not_found(&error) => {
                is_new = true;
                let created = stream.create_consumer(durable(config)).await;
                info!(consumer = name, stream = config.stream, "created the durable consumer");
                created.map_err(Error::jetstream("create the durable consumer"))?
            }
            Err(error) => return Err(Error::jetstream("look up the durable consumer")(error)),
        };
        let found = &consumer.cached_info().config;
        let reason = if found.ack_policy != AckPolicy::Explicit {
            Some("its ack_policy is not explicit".to_owned())
        } else if found.max_deliver > 0 {
            Some(format!("its max_deliver is {} instead of -1", found.max_deliver))
        } else {
            None
        };
        if let Some(reason) = reason {
            let stream = config.stream.clone();
            return Err(Error::Consumer { stream, consumer: name, reason });
        }
        Ok(Self { stream, consumer, name, consumer_seq: 0, is_new })
    }

    /// After how long the broker delivers a message again.
    pub(crate) fn ack_wait(&self) -> Duration {
        match self.consumer.cached_info().config.ack_wait {
            Duration::ZERO => Duration::from_secs(30),
            ack_wait => ack_wait,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether the durable consumer was made just now.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// For how long the stream keeps messages, if there is a limit.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        Some(self.stream.cached_info().config.max_age).filter(|age| !age.is_zero())
    }

    /// Feeds messages while there is `room` for them, until `room`'s sender is gone.
    pub(crate) async fn run(
        mut self,
        feed: mpsc::Sender<Delivered>,
        mut room: watch::Receiver<usize>,
    ) {
        let mut behind = true;
        loop {
            let room = room.wait_for(|room| *room >= PULLED_MIN).await;
            let Ok(room) = room.map(|room| *room) else { return };
            let result = async {
                if behind {
                    self.read_outstanding(&feed).await?;
                    behind = false;
                }
                self.pull(room.min(PULLED_MAX), &feed).await
            };
            if let Err(error) = result.await {
                warn!(consumer = self.name, error = describe(&error), "could not take messages");
                behind = true;
                tokio::time::sleep(PAUSE).await;
            }
            if feed.is_closed() {
                return;
            }
        }
    }

    async fn pull(&mut self, max: usize, feed: &mpsc::Sender<Delivered>) -> Result<(), Error> {
        let request = self.consumer.batch().max_messages(max).max_bytes(PULLED_BYTES_MAX);
        let messages = request.expires(PULL_EXPIRES).messages().await;
        let mut messages = messages.map_err(Error::jetstream(PULLING))?;
        while let Some(message) = messages.next().await {
            let message = message.map_err(Error::jetstream(PULLING))?;
            let place = Place::of(&message.info().map_err(Error::jetstream(PULLING))?);
            let (seq, redelivered) = (place.consumer_seq, place.redelivered);
            let reply = message.reply.clone();
            let message = self.understood(message.message, &place);
            let unusual = redelivered || message.event.is_err();
            let path = if unusual { Path::Careful } else { Path::Fast };
            let delivered = Delivered { message: Arc::new(message), reply, path };
            if seq > self.consumer_seq + 1 {
                info!(consumer = self.name, "deliveries are missing: reading them from the stream");
                self.read_outstanding(feed).await?;
            }
            self.consumer_seq = self.consumer_seq.max(seq);
            if feed.send(delivered).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads what the consumer has delivered and knows of no end of.
    async fn read_outstanding(&mut self, feed: &mpsc::Sender<Delivered>) -> Result<(), Error> {
        let info = self.consumer.get_info().await.map_err(Error::jetstream(READING))?;
        self.consumer_seq = info.delivered.consumer_sequence;
        let last = info.delivered.stream_sequence;
        let first = info.ack_floor.stream_sequence + 1;
        if info.num_ack_pending == 0 || first > last {
            return Ok(());
        }
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: first },
            filter_subject: info.config.filter_subject.clone(),
            filter_subjects: info.config.filter_subjects.clone(),
            ..pull::OrderedConfig::default()
        };
        let reader =
            self.stream.create_consumer(config).await.map_err(Error::jetstream(READING))?;
        if reader.cached_info().num_pending == 0 {
            return Ok(());
        }
        let mut messages = reader.messages().await.map_err(Error::jetstream(READING))?;
        let mut count = 0_u64;
        loop {
            let message = tokio::time::timeout(READ_DEADLINE, messages.next()).await;
            let message = message.map_err(Error::jetstream(READING))?;
            let Some(message) = message else { break };
            let message = message.map_err(Error::jetstream(READING))?;
            let place = Place::of(&message.info().map_err(Error::jetstream(READING))?);
            if place.stream_seq > last {
                break;
            }
            count += 1;
            let is_last = place.stream_seq == last || place.pending == 0;
            let message = Arc::new(self.understood(message.message, &place));
            let delivered = Delivered { message, reply: None, path: Path::Careful };
            if feed.send(delivered).await.is_err() || is_last {
                break;
            }
        }
        info!(consumer = self.name, count, "read from the stream what was delivered before");
        Ok(())
    }

    fn understood(&self, message: async_nats::Message, place: &Place) -> Message {
        let async_nats::Message { subject, headers, payload, .. } = message;
        let (headers, stream) = (headers.unwrap_or_default(), &self.stream.cached_info().config);
        let (stream, seq, at) = (&stream.name, place.stream_seq, place.stored_at);
        Message::new(subject.to_string(), headers, payload, stream, seq, at)
    }
}

const PULLING: &str = "take messages from the consumer";
const READING: &str = "read what was delivered from the stream";

fn durable(config: &Config) -> pull::Config {
    let mut filter_subjects = config.filter_subjects.clone();
    // Servers before 2.10 know only one.
    let filter_subject =
        if filter_subjects.len() == 1 { filter_subjects.remove(0) } else { String::new() };
    pull::Config {
        durable_name: Some(config.consumer.clone()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: config.ack_wait,
        // The budget is in the record: leases and restarts must not use it up.
        max_deliver: -1,
        // Not what bounds memory (we only ask for what there is room for), but what a worker that
        // died had must not keep the next one from getting new events until ack_wait is over.
        max_ack_pending: ACK_PENDING_MAX,
        filter_subject,
        filter_subjects,
        ..pull::Config::default()
    }
}

/// What a delivery says about itself.
struct Place {
    consumer_seq: u64,
    stream_seq: u64,
    stored_at: Timestamp,
    redelivered: bool,
    /// Messages behind it.
    pending: u64,
}

impl Place {
    fn of(info: &jetstream::message::Info<'_>) -> Self {
        let stored_at = Timestamp::from_nanosecond(info.published.unix_timestamp_nanos());
        Self {
            consumer_seq: info.consumer_sequence,
            stream_seq: info.stream_sequence,
            stored_at: rounded(stored_at.unwrap_or_default()),
            redelivered: info.delivered > 1,
            pending: info.pending,
        }
    }
}

/// The column keeps microseconds, and a key that is rounded there would not be found again.
fn rounded(time: Timestamp) -> Timestamp {
    time.round(jiff::Unit::Microsecond).unwrap_or(time)
}

fn is_not_found(error: &async_nats::Error) -> bool {
    let error = error.downcast_ref::<ConsumerInfoError>();
    error.is_some_and(|error| error.kind() == ConsumerInfoErrorKind::NotFound)
}
