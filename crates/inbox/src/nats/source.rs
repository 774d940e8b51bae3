//! Takes messages from the stream, as many as there is room for, and misses none.
//!
//! The durable consumer says what was delivered; that is not what arrived. What a worker had when it
//! died, and what was under way when a connection broke, the broker delivers again only after
//! `ack_wait`, behind later events of the same aggregates. So what has been delivered and not
//! acknowledged is read from the stream itself, before anything new: at the beginning, and whenever
//! the count of deliveries has a gap. That the broker delivers it once more does no harm: by then it
//! is known.
//!
//! Anybody may store anything in the stream. What breaks the client's connection, or is taken for an
//! answer of the server's, never arrives; it is read like all else that did not, one by one
//! (`stored_message.rs`), and acknowledged from there: delivered again, it would break the connection again.

mod floor;
mod place;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::Stream;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use outbox::wire;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::floor::Floor;
use self::place::Place;
use crate::Error;
use crate::config::Config;
use crate::engine::{Delivered, Path};
use crate::error::describe;
use crate::feed::Feed;
use crate::message::{Message, Origin};
use crate::nats::durable_consumer::{self, PULL_EXPIRES, PULLED_MAX, filters_of};
use crate::nats::stored_message;
use crate::record::Key;

/// Nothing is asked for while there is room for less: each request costs a round trip.
const PULLED_MIN: usize = 64;

/// Bytes asked for at a time.
const PULLED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The broker forgets the reader of what was delivered before after so long without a request.
const READER_IDLE_MAX: Duration = Duration::from_secs(300);

/// How long the stream may be silent while what was delivered is read from it.
const READ_DEADLINE: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(500);

/// Up to so many are read one by one in any case: the connection survives whatever they are.
const ONE_BY_ONE_MAX: u64 = 1_000;

/// What was fed before is read again, in case that its acknowledgement was lost, where it is no more
/// than this: others wait meanwhile.
const READ_AGAIN_MAX: u64 = 10_000;

/// So many are looked up behind an acknowledgement floor that is stuck.
const LOOKED_UP_MAX: u64 = 2 * READ_AGAIN_MAX;

/// Messages asked for at a time where they are read one by one.
const READ_AHEAD: usize = 8;

/// How often the consumer is asked whether it delivered something that never arrived, or waits for
/// acknowledgements that were given.
const LOOK: Duration = Duration::from_secs(10);

/// Says which of these events have had their end, as far as it is known.
pub(crate) type FindResolved =
    Arc<dyn Fn(Vec<Key>) -> BoxFuture<'static, HashSet<Key>> + Send + Sync>;

pub(crate) struct Source {
    stream: Stream,
    consumer: consumer::Consumer<pull::Config>,
    name: String,
    nats: Client,
    origin: Origin,
    /// Of the newest delivery that arrived.
    consumer_seq: u64,
    /// Something is out there that the client does not survive.
    pub(crate) wary: bool,
    /// The next message is larger than a request's bytes.
    oversized: bool,
    looked_at: Instant,
    floor: Floor,
    config: Config,
    /// How far what was delivered before has been read again, if that was interrupted.
    read_until: Option<u64>,
    /// All that was delivered up to this sequence has been fed: nobody has to read it again.
    fed_until: u64,
    /// When the consumer was made of which that is true.
    fed_of: Option<Timestamp>,
    find_resolved: FindResolved,
    /// Why nothing can be taken, while that is so.
    trouble: watch::Sender<Option<String>>,
}

impl Source {
    /// Finds the durable consumer, or makes it.
    pub(crate) async fn open(
        nats: &Client,
        config: &Config,
        find_resolved: FindResolved,
    ) -> Result<Self, Error> {
        let stream = durable_consumer::stream(nats, config).await?;
        let name = config.consumer.clone();
        let (consumer, _) = durable_consumer::open(&stream, config).await?;
        let created = durable_consumer::created(&stream);
        Ok(Self {
            origin: Origin { stream: config.stream.clone(), created },
            nats: nats.clone(),
            stream,
            consumer,
            name,
            consumer_seq: 0,
            wary: false,
            oversized: false,
            looked_at: Instant::now(),
            floor: Floor::new(0),
            config: config.clone(),
            read_until: None,
            fed_until: 0,
            fed_of: None,
            find_resolved,
            trouble: watch::Sender::default(),
        })
    }

    /// After how long the broker delivers a message again.
    pub(crate) fn ack_wait(&self) -> Duration {
        match self.consumer.cached_info().config.ack_wait {
            Duration::ZERO => Duration::from_secs(30),
            ack_wait => ack_wait,
        }
    }

    /// How many events the broker lets be without an acknowledgement, if that is limited.
    pub(crate) fn unacked_max(&self) -> Option<usize> {
        let max = self.consumer.cached_info().config.max_ack_pending;
        usize::try_from(max).ok().filter(|max| *max > 0)
    }

    /// Why nothing can be taken from the stream, while that is so.
    pub(crate) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// For how long the stream keeps messages, if there is a limit.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        Some(self.stream.cached_info().config.max_age).filter(|age| !age.is_zero())
    }

    /// Brings messages while there is room for them, until the session takes nothing more. Ends the
    /// session by `stop` if the stream was made anew.
    pub(crate) async fn run(mut self, mut feed: Feed, stop: &CancellationToken) {
        let mut behind = true;
        loop {
            let waits = Instant::now();
            let Ok(most) = feed.room_for(PULLED_MIN).await else { return };
            let connects = self.connects();
            let result = async {
                if (behind || waits.elapsed() > PULL_EXPIRES) && self.is_made_anew().await? {
                    return Ok(Pulled::OfAnother);
                }
                if behind {
                    self.read_outstanding(&mut feed).await?;
                    behind = false;
                }
                self.pull(most.min(PULLED_MAX), &mut feed).await
            };
            let result = result.await;
            if result.is_ok() {
                self.trouble.send_if_modified(|it| it.take().is_some());
            }
            match result {
                Ok(Pulled::All) => {}
                Ok(Pulled::Suspicious) => (behind, self.wary) = (true, true),
                Ok(Pulled::OfAnother) => {
                    warn!(
                        consumer = self.name,
                        "stream or consumer was made anew or reset: beginning anew"
                    );
                    return stop.cancel();
                }
                Err(error) => {
                    let error = describe(&error);
                    warn!(consumer = self.name, error, "could not take messages");
                    self.trouble.send_replace(Some(error));
                    (behind, self.wary) = (true, true);
                    self.make_again().await;
                    tokio::time::sleep(PAUSE).await;
                }
            }
            if self.connects() != connects {
                // What was under way is lost, and may be what broke the connection.
                (behind, self.wary) = (true, true);
            }
            if feed.is_closed() {
                return;
            }
        }
    }

    /// Makes the durable consumer again if somebody has deleted it. What it delivers then is known.
    async fn make_again(&mut self) {
        match durable_consumer::open(&self.stream, &self.config).await {
            Ok((consumer, true)) => {
                warn!(consumer = self.name, "the durable consumer was deleted: made it again");
                (self.consumer, self.read_until) = (consumer, None);
            }
            Ok((_, false)) => {}
            Err(error) => {
                let error = describe(&error);
                warn!(consumer = self.name, error, "could not look up the durable consumer");
            }
        }
    }

    /// Whether another stream has the name: its messages have the sequences of what is held.
    async fn is_made_anew(&self) -> Result<bool, Error> {
        let stream = durable_consumer::stream(&self.nats, &self.config).await?;
        Ok(durable_consumer::created(&stream) != self.origin.created)
    }

    async fn pull(&mut self, max: usize, feed: &mut Feed) -> Result<Pulled, Error> {
        let request = self.consumer.batch().expires(PULL_EXPIRES);
        let max = if self.oversized { 1 } else { max };
        let request = if std::mem::take(&mut self.oversized) {
            request.max_messages(max)
        } else {
            request.max_messages(max).max_bytes(PULLED_BYTES_MAX)
        };
        let (began, mut received) = (Instant::now(), 0);
        let mut messages = request.messages().await.map_err(Error::jetstream(PULLING))?;
        loop {
            let next = tokio::time::timeout(PULL_EXPIRES + READ_DEADLINE, messages.next()).await;
            let Some(message) = next.map_err(Error::jetstream(PULLING))? else { break };
            let message = match message {
                Ok(message) => message,
                Err(error) if is_about_bytes(&error) => {
                    self.oversized = received == 0;
                    return Ok(Pulled::All);
                }
                Err(error) => return Err(Error::jetstream(PULLING)(error)),
            };
            received += 1;
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
            if feed.bring(delivered).await.is_err() {
                return Ok(Pulled::All);
            }
            if !redelivered {
                self.fed_until = self.fed_until.max(place.stream_seq);
            }
        }
        // Somebody's message looked like the server's word that there is nothing more.
        if received < max && began.elapsed() < PULL_EXPIRES / 2 {
            return Ok(Pulled::Suspicious);
        }
        self.look(received == 0, feed).await
    }

    /// A message that looks like a heartbeat of the server's arrives and is not seen. And a server
    /// that is killed forgets acknowledgements that it has confirmed: it delivers again what was left
    /// in the stream, but only after a day.
    async fn look(&mut self, is_idle: bool, feed: &mut Feed) -> Result<Pulled, Error> {
        if self.looked_at.elapsed() < LOOK {
            return Ok(Pulled::All);
        }
        self.looked_at = Instant::now();
        let info = self.consumer.get_info().await.map_err(Error::jetstream(READING))?;
        let is_owed = info.num_ack_pending > 0;
        if is_idle && is_owed && info.delivered.consumer_sequence > self.consumer_seq {
            return Ok(Pulled::Suspicious);
        }
        if info.delivered.consumer_sequence < self.consumer_seq {
            return Ok(Pulled::OfAnother);
        }
        let floor = info.ack_floor.stream_sequence;
        if is_owed && self.floor.is_stuck(floor) {
            let last = info.delivered.stream_sequence.min(floor + LOOKED_UP_MAX);
            self.read(floor + 1, last, &info.config, feed).await?;
        }
        Ok(Pulled::All)
    }

    /// How often the client has connected.
    fn connects(&self) -> u64 {
        self.nats.statistics().connects.load(Ordering::Relaxed)
    }

    /// Reads these messages without having them delivered.
    async fn read_one_by_one(
        &mut self,
        first: u64,
        last: u64,
        filters: &[String],
        feed: &mut Feed,
    ) -> Result<(), Error> {
        let (nats, name) = (&self.nats, &self.origin.stream);
        // The stream may have lost its beginning.
        let Some(found) = stored_message::next(nats, name, first).await? else { return Ok(()) };
        let read = |seq| stored_message::get(nats, name, seq);
        let mut messages = stream::iter(found.seq..=last).map(read).buffered(READ_AHEAD);
        let mut count = 0_u64;
        while let Some(stored) = messages.next().await {
            let Some(stored) = stored? else { continue };
            let wanted = |filter: &String| wire::subject_matches(filter, &stored.subject);
            if !filters.is_empty() && !filters.iter().any(wanted) {
                continue;
            }
            count += 1;
            let reply = Some(stored.ack_subject(name, &self.name));
            let message = Arc::new(stored.understood(&self.origin));
            if feed.room_for(1).await.is_err() {
                return Ok(());
            }
            self.read_until = Some(message.stream_seq);
            if feed.bring(Delivered { message, reply, path: Path::Careful }).await.is_err() {
                return Ok(());
            }
        }
        info!(consumer = self.name, count, "read one by one what was delivered before");
        (self.wary, self.read_until) = (false, None);
        Ok(())
    }

    /// Reads what the consumer has delivered and knows of no end of, as fast as there is room for it.
    async fn read_outstanding(&mut self, feed: &mut Feed) -> Result<(), Error> {
        let info = self.consumer.get_info().await.map_err(Error::jetstream(READING))?;
        self.consumer_seq = info.delivered.consumer_sequence;
        let last = info.delivered.stream_sequence;
        let made_at = Timestamp::from_nanosecond(info.created.unix_timestamp_nanos()).ok();
        if made_at != self.fed_of || last < self.fed_until {
            (self.fed_of, self.fed_until) = (made_at, 0);
        }
        // What was read already is held, or has its end.
        let mut first = info.ack_floor.stream_sequence.max(self.read_until.unwrap_or(0)) + 1;
        if last.saturating_sub(first) >= READ_AGAIN_MAX {
            first = first.max(self.fed_until + 1);
        }
        if info.num_ack_pending == 0 || first > last {
            (self.wary, self.read_until) = (false, None);
            return Ok(());
        }
        self.read(first, last, &info.config, feed).await
    }

    /// Reads these messages of the consumer's, and acknowledges those that have had their end.
    async fn read(
        &mut self,
        first: u64,
        last: u64,
        of: &consumer::Config,
        feed: &mut Feed,
    ) -> Result<(), Error> {
        if self.wary || last.saturating_sub(first) < ONE_BY_ONE_MAX {
            return self.read_one_by_one(first, last, &filters_of(of), feed).await;
        }
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: first },
            ack_policy: AckPolicy::None,
            filter_subject: of.filter_subject.clone(),
            filter_subjects: of.filter_subjects.clone(),
            inactive_threshold: READER_IDLE_MAX,
            ..pull::Config::default()
        };
        let reader =
            self.stream.create_consumer(config).await.map_err(Error::jetstream(READING))?;
        if reader.cached_info().num_pending > 0 {
            self.read_portions(&reader, last, feed).await?;
        }
        self.read_until = None;
        Ok(())
    }

    async fn read_portions(
        &mut self,
        reader: &consumer::Consumer<pull::Config>,
        last: u64,
        feed: &mut Feed,
    ) -> Result<(), Error> {
        let (mut count, mut is_last, mut oversized) = (0_u64, false, false);
        let mut reader_seq = 0;
        while !is_last {
            let Ok(most) = feed.room_for(1).await else { return Ok(()) };
            let request = reader.batch().expires(READ_DEADLINE);
            let request = if oversized {
                request.max_messages(1)
            } else {
                request.max_messages(most.min(PULLED_MAX)).max_bytes(PULLED_BYTES_MAX)
            };
            let mut messages = request.messages().await.map_err(Error::jetstream(READING))?;
            let (before, mut portion) = (count, Vec::new());
            while !is_last {
                let next = tokio::time::timeout(2 * READ_DEADLINE, messages.next()).await;
                let message = match next.map_err(Error::jetstream(READING))? {
                    Some(Ok(message)) => message,
                    Some(Err(error)) if !is_about_bytes(&error) => {
                        return Err(Error::jetstream(READING)(error));
                    }
                    Some(Err(_)) | None => break,
                };
                let place = Place::of(&message.info().map_err(Error::jetstream(READING))?);
                if place.consumer_seq != reader_seq + 1 {
                    return Err(Error::jetstream(READING)("a message did not arrive"));
                }
                reader_seq = place.consumer_seq;
                is_last = place.stream_seq >= last || place.pending == 0;
                count += 1;
                if place.stream_seq <= last {
                    portion.push(self.understood(message.message, &place));
                }
            }
            if !self.feed_unresolved(portion, feed).await {
                return Ok(());
            }
            if count == before && oversized {
                return Err(Error::jetstream(READING)("the stream fell silent"));
            }
            oversized = count == before;
        }
        info!(consumer = self.name, count, "read from the stream what was delivered before");
        Ok(())
    }

    /// Feeds those of a portion that have not had their end, and acknowledges the others. False if
    /// nobody takes them.
    async fn feed_unresolved(&mut self, portion: Vec<Message>, feed: &Feed) -> bool {
        let keys = portion.iter().map(|it| it.key).collect();
        let resolved = (self.find_resolved)(keys).await;
        for message in portion {
            let seq = message.stream_seq;
            let reply = stored_message::ack_subject(&self.origin.stream, &self.name, seq);
            if resolved.contains(&message.key) {
                // If it does not arrive the message comes once more, and is looked up then.
                let _ = self.nats.publish(reply, "+ACK".into()).await;
            } else {
                let (message, reply) = (Arc::new(message), Some(reply));
                if feed.bring(Delivered { message, reply, path: Path::Careful }).await.is_err() {
                    return false;
                }
            }
            self.read_until = Some(seq);
        }
        true
    }

    fn understood(&self, message: async_nats::Message, place: &Place) -> Message {
        let async_nats::Message { subject, headers, payload, .. } = message;
        let (headers, origin) = (headers.unwrap_or_default(), &self.origin);
        let (seq, at) = (place.stream_seq, place.stored_at);
        Message::new(subject.to_string(), headers, payload, origin, seq, at)
    }
}

/// What came of a request.
enum Pulled {
    /// What there was, as far as anybody can see.
    All,
    /// Something was delivered and not understood.
    Suspicious,
    /// The stream is another one, or the consumer is: it delivers again what is known here.
    OfAnother,
}

/// The server ends a request so when its bytes are used up, or the next message has more.
fn is_about_bytes(error: &async_nats::Error) -> bool {
    let text = error.to_string();
    text.contains("Message Size Exceeds MaxBytes") || text.contains("Batch Completed")
}

const PULLING: &str = "take messages from the consumer";
const READING: &str = "read what was delivered from the stream";
