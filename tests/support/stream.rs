//! The environment's helpers on the stream's side.

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::Stream;
use futures_util::StreamExt;
use outbox::{Event, wire};
use uuid::Uuid;

use crate::broker::Broker;
use crate::test_env::TestEnv;
use crate::wait::until_counted;

/// How many bytes of a stream are asked for at once.
const READ_AHEAD: usize = 16 << 20;

/// A message as the stream has it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// When it was stored, in milliseconds since 1970.
    pub stored_at: i64,
    /// The event's: `Tailpost-Event-Id`, otherwise `Nats-Msg-Id`; nil if that is missing or not a UUID.
    pub id: Uuid,
    /// Its subject.
    pub subject: String,
    /// All its headers.
    pub headers: HeaderMap,
    /// Its payload.
    pub payload: String,
}

impl Stored {
    /// The value of a header, if it has one.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(async_nats::HeaderValue::as_str)
    }

    /// The event that it carries.
    ///
    /// # Panics
    ///
    /// When it carries none.
    pub fn event(&self) -> Event {
        let headers = self.headers.iter().flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(move |value| (name, value.as_str()))
        });
        wire::parse_event(headers, self.payload.clone().into()).expect("an event")
    }
}

impl<B: Broker> TestEnv<B> {
    /// The stream `OUTBOX`.
    ///
    /// # Panics
    ///
    /// When the broker does not answer or has no such stream.
    pub async fn stream(&self) -> Stream {
        let url = self.nats.url();
        let kept = self.jetstream.take(&url);
        if let Some(kept) = kept.filter(|it| it.client().connection_state() == State::Connected)
            && let Ok(stream) = kept.get_stream("OUTBOX").await
        {
            self.jetstream.keep(url, kept);
            return stream;
        }
        let jetstream = self.nats.jetstream().await;
        let stream = jetstream.get_stream("OUTBOX").await.expect("look up the stream");
        self.jetstream.keep(url, jetstream);
        stream
    }

    /// Removes all messages: a relay may say, or not, that rows name some.
    ///
    /// # Panics
    ///
    /// When the broker refuses.
    pub async fn purge(&self) {
        self.removes_messages();
        self.stream().await.purge().await.expect("purge the stream");
    }

    /// Removes a message, as [`TestEnv::purge`] does all.
    ///
    /// # Panics
    ///
    /// When the broker refuses, or does not have it.
    pub async fn delete_message(&self, seq: u64) {
        self.removes_messages();
        self.stream().await.delete_message(seq).await.expect("delete a message");
    }

    /// How many messages the stream holds.
    ///
    /// # Panics
    ///
    /// As [`TestEnv::stream`].
    pub async fn stored_count(&self) -> u64 {
        self.stream().await.cached_info().state.messages
    }

    /// All messages of the stream, in its order.
    ///
    /// # Panics
    ///
    /// When the broker stops answering.
    pub async fn stored(&self) -> Vec<Stored> {
        self.stored_in("OUTBOX").await
    }

    /// All messages of a stream, in its order.
    ///
    /// # Panics
    ///
    /// When the broker stops answering or has no such stream.
    pub async fn stored_in(&self, stream: &str) -> Vec<Stored> {
        let jetstream = self.nats.jetstream().await;
        let stream = jetstream.get_stream(stream).await.expect("look up the stream");
        let count = usize::try_from(stream.cached_info().state.messages).expect("fits");
        if count == 0 {
            return Vec::new();
        }
        // By few at once: the server cuts off a client for which more than 64 MB wait.
        let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let consumer = stream.create_consumer(config).await.expect("consumer");
        let messages = consumer.stream().max_bytes_per_batch(READ_AHEAD).messages().await;
        let mut messages = messages.expect("messages").take(count);
        let mut stored = Vec::with_capacity(count);
        while let Some(message) = messages.next().await {
            let message = message.expect("next message");
            let headers = message.headers.clone().unwrap_or_default();
            let id = headers.get("Tailpost-Event-Id").or_else(|| headers.get("Nats-Msg-Id"));
            let id = id.and_then(|it| it.as_str().parse().ok());
            let info = message.info().expect("a JetStream message");
            let stored_at = info.published.unix_timestamp_nanos() / 1_000_000;
            stored.push(Stored {
                sequence: info.stream_sequence,
                stored_at: i64::try_from(stored_at).expect("fits"),
                id: id.unwrap_or_default(),
                subject: message.subject.to_string(),
                headers,
                payload: String::from_utf8(message.payload.to_vec()).expect("UTF-8"),
            });
        }
        stored
    }

    /// The ids of all messages of the stream, in its order.
    ///
    /// # Panics
    ///
    /// As [`TestEnv::stored`].
    pub async fn stored_ids(&self) -> Vec<Uuid> {
        self.stored().await.into_iter().map(|it| it.id).collect()
    }

    /// Waits until the stream holds at least `n` messages.
    ///
    /// # Panics
    ///
    /// When it has not, and no message comes.
    pub async fn wait_stored(&self, n: u64) {
        let what = format!("the stream holds {n} messages");
        until_counted(&what, async || self.stored_count().await, |it| it >= n).await;
    }
}
