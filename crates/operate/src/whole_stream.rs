//! All messages of a stream, in its order, as fast as the broker gives them.
//!
//! A consumer without acknowledgements brings them. What breaks the client's connection, or is taken
//! for an answer of the server's, never arrives that way: from the first message that is missing on,
//! some are asked for one by one, from the stream's leader, whatever their bytes are. So is the end:
//! a replica that answers the consumer may lag behind the leader.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{ConsumerErrorKind, Stream};
use async_nats::{Client, jetstream};
use futures_util::StreamExt;
use jiff::Timestamp;
use outbox::wire::{StoredMessage, header};
use pgoutput::Lsn;
use relay::access::{StateRow, direct_get};
use relay::{Config, Error, Mode};
use tokio::time::timeout;
use uuid::Uuid;

use crate::verify_rules::fingerprint::{MessageReading, ReadMessage};

const READING: &str = "read the stream";

/// Messages and bytes asked for at a time. The server cuts off a client for which more than 64 MB
/// wait.
const BATCH: usize = 5_000;
const BATCH_BYTES: usize = 16 << 20;

/// How long nothing may come although something is to come.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The broker forgets the consumer after so long without a request.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Messages read one by one before the consumer is tried again.
const ONE_BY_ONE: u64 = 256;

/// Messages without a position that are passed over in search of one.
const WITHOUT_POSITION_MAX: u64 = 256;

/// Reads one stream.
#[derive(Clone)]
pub(crate) struct WholeStream {
    client: Client,
    stream: Stream<()>,
    name: String,
    /// A consumer of its own takes nothing away from others.
    has_consumer: bool,
}

/// Takes in messages with their sequences.
pub(crate) trait Sink {
    fn take(&mut self, sequence: u64, message: ReadMessage) -> Result<(), Error>;
}

impl WholeStream {
    /// With `has_consumer`, messages are not asked for one by one. Only where the stream keeps
    /// messages whether they were consumed or not.
    pub(crate) async fn new(
        client: &Client,
        name: &str,
        has_consumer: bool,
    ) -> Result<Self, Error> {
        let stream = servers::jetstream_of(client).get_stream_no_info(name).await;
        let stream = stream.map_err(Error::jetstream("address the stream"))?;
        Ok(Self { client: client.clone(), stream, name: name.to_owned(), has_consumer })
    }

    /// Reads all that there is from sequence `from` up to `to`.
    pub(crate) async fn read(&self, from: u64, to: u64, sink: &mut impl Sink) -> Result<(), Error> {
        let mut next = from;
        while next <= to {
            if self.has_consumer {
                next = self.consume(next, to, sink).await?;
            }
            let until = to.min(next.saturating_add(ONE_BY_ONE - 1));
            next = self.one_by_one(next, until, sink).await?;
        }
        Ok(())
    }

    /// Reads until `to`, or until something is amiss. Returns the sequence from which on nothing is
    /// read yet.
    async fn consume(&self, from: u64, to: u64, sink: &mut impl Sink) -> Result<u64, Error> {
        let name = format!("tailpost-verify-{}", Uuid::new_v4().simple());
        let config = pull::Config {
            name: Some(name.clone()),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: IDLE_MAX,
            ..pull::Config::default()
        };
        let consumer = match self.stream.create_consumer(config).await {
            Ok(consumer) => consumer,
            Err(error) if is_one_too_many(&error.kind()) => return Ok(from),
            Err(error) => return Err(Error::jetstream("make a consumer")(error)),
        };
        let messages = consumer
            .stream()
            .max_messages_per_batch(BATCH)
            .max_bytes_per_batch(BATCH_BYTES)
            .messages()
            .await;
        let mut messages = messages.map_err(Error::jetstream(READING))?;
        let (mut next, mut delivery) = (from, 1);
        while next <= to {
            // Whatever is amiss, what is missing is asked for by itself.
            let Ok(Some(Ok(message))) = timeout(SILENCE_MAX, messages.next()).await else { break };
            let Ok(info) = message.info() else { break };
            if info.consumer_sequence != delivery || info.stream_sequence < next {
                break;
            }
            let (sequence, pending) = (info.stream_sequence, info.pending);
            delivery += 1;
            if sequence > to {
                next = to + 1;
                break;
            }
            sink.take(sequence, delivered(&message))?;
            next = sequence + 1;
            if pending == 0 {
                break;
            }
        }
        drop(messages);
        // The broker forgets it by itself, later.
        let _ = self.stream.delete_consumer(&name).await;
        Ok(next)
    }

    /// Reads up to `to`. Returns the sequence from which on nothing is read yet.
    async fn one_by_one(&self, from: u64, to: u64, sink: &mut impl Sink) -> Result<u64, Error> {
        let mut next = from;
        while next <= to {
            let answer = direct_get::read_from(&self.client, &self.name, next).await?;
            let Some(message) = answer.message()? else { return Ok(u64::MAX) };
            if message.sequence > to {
                return Ok(message.sequence);
            }
            sink.take(message.sequence, stored(&message)?)?;
            next = message.sequence + 1;
        }
        Ok(next)
    }

    /// The sequence of the first message from `first` to `last` of which `is_wanted`, where all
    /// behind it are, too; one behind `last` if there is none. Messages without an answer
    /// (`None`) are passed over.
    async fn first_where(
        &self,
        (first, last): (u64, u64),
        is_wanted: impl Fn(&StoredMessage<'_>) -> Option<bool>,
    ) -> Result<u64, Error> {
        let (mut low, mut high) = (first, last + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            let (mut at, mut wanted) = (middle, None);
            while at < high && at - middle < WITHOUT_POSITION_MAX {
                let answer = direct_get::read_from(&self.client, &self.name, at).await?;
                let Some(message) = answer.message()?.filter(|it| it.sequence < high) else {
                    break;
                };
                at = message.sequence + 1;
                wanted = is_wanted(&message);
                if wanted.is_some() {
                    break;
                }
            }
            if wanted == Some(false) { low = at } else { high = middle }
        }
        Ok(low)
    }

    /// As [`first_where`](Self::first_where), of those that were stored at that time or later.
    pub(crate) async fn first_since(
        &self,
        range: (u64, u64),
        time: Timestamp,
    ) -> Result<u64, Error> {
        self.first_where(range, |it| Some(it.time >= time)).await
    }

    /// As [`first_where`](Self::first_where), of those that the relay stored when the log, which is
    /// that of `state`, had come to `lsn`: at least as early as the first of them.
    pub(crate) async fn first_at(
        &self,
        range: (u64, u64),
        lsn: Lsn,
        state: Option<&StateRow>,
        config: &Config,
    ) -> Result<u64, Error> {
        let system = state.and_then(|it| it.system_identifier.parse::<u64>().ok());
        let is_there = |it: &StoredMessage<'_>| {
            let position = position(it)?;
            Some(Some(position.system_id) == system && position.lsn >= lsn.0)
        };
        let found = self.first_where(range, is_there).await?;
        // Outside of fenced mode messages may have changed places within the window.
        let margin = if config.mode == Mode::Fenced { 0 } else { config.window.events as u64 };
        Ok(found.saturating_sub(margin))
    }

    /// When the first message from `sequence` on was stored, in microseconds from 1970 on.
    pub(crate) async fn stored_at_micros(&self, sequence: u64) -> Result<Option<i64>, Error> {
        let answer = direct_get::read_from(&self.client, &self.name, sequence).await?;
        Ok(answer.message()?.map(|it| it.time.as_microsecond()))
    }
}

/// The stream, or the account, may have no other consumer.
fn is_one_too_many(error: &ConsumerErrorKind) -> bool {
    let code = ErrorCode::MAXIMUM_CONSUMERS_LIMIT;
    matches!(error, ConsumerErrorKind::JetStream(refusal) if refusal.error_code() == code)
}

fn delivered(message: &jetstream::Message) -> ReadMessage {
    let mut reading = MessageReading::default();
    for (name, values) in message.headers.iter().flat_map(async_nats::HeaderMap::iter) {
        let name: &str = name.as_ref();
        for value in values {
            reading.header(name.as_bytes(), value.as_str().as_bytes());
        }
    }
    reading.finish(&message.subject, &message.payload)
}

fn stored(message: &StoredMessage<'_>) -> Result<ReadMessage, Error> {
    let mut reading = MessageReading::default();
    for (name, value) in message.headers().iter() {
        reading.header(name, value);
    }
    let payload = message.payload().map_err(Error::jetstream(READING))?;
    Ok(reading.finish(&message.subject, &payload))
}

/// How far the log had come with a message, of any cluster.
fn position(message: &StoredMessage<'_>) -> Option<outbox::wire::Position> {
    let headers = message.headers();
    if headers.text(header::REPLAY).is_some() {
        // The event's own position is from long before.
        return headers.text(header::REPLAY_AFTER)?.split_once(' ')?.0.parse().ok();
    }
    headers.text(header::POSITION)?.parse().ok()
}
