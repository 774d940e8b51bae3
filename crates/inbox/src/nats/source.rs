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

mod changed;
mod floor;
mod outstanding;
mod place;
pub mod silence;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::consumer::{self, pull};
use async_nats::jetstream::stream::Stream;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::changed::{is_changed, lacks_body};
use self::floor::Floor;
use self::outstanding::LOOKED_UP_MAX;
use self::place::Place;
use self::silence::Silence;
use crate::Error;
use crate::config::Config;
use crate::engine::{Delivered, Path};
use crate::feed::{Closed, Feed};
use crate::message::{Message, Origin};
use crate::nats::durable_consumer::{self, PULL_EXPIRES, PULLED_MAX};
use crate::nats::reconnects::{self, Unanswered};
use crate::nats::stored_message;
use crate::record::Key;
use crate::tally::Tally;
use servers::describe;

/// Nothing is asked for while there is room for less: each request costs a round trip.
const PULLED_MIN: usize = 64;

/// How long the stream may be silent while what was delivered is read from it.
const READ_DEADLINE: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(500);

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
    /// The sequence of the last message that was delivered, and when that was stored, if it was there.
    newest: (u64, Option<Timestamp>),
    /// Something is out there that the client does not survive.
    pub(crate) one_by_one: bool,
    /// The next message is larger than a request's bytes.
    oversized: bool,
    looked_at: Instant,
    floor: Floor,
    config: Config,
    /// How far what was delivered before has been read again, if that was interrupted.
    read_until: Option<u64>,
    /// All that was delivered up to this sequence has been fed: nobody has to read it again.
    fed_until: u64,
    /// When the consumer was made that was there at the beginning.
    pub(crate) made: Option<Timestamp>,
    /// When the consumer was made of which `fed_until` is true.
    fed_of: Option<Timestamp>,
    find_resolved: FindResolved,
    silence: Silence,
    unanswered: Arc<Unanswered>,
    tally: Arc<Tally>,
    /// Why nothing can be taken, while that is so.
    trouble: watch::Sender<Option<String>>,
}

impl Source {
    /// Finds the durable consumer, or makes it.
    pub(crate) async fn open(
        nats: &Client,
        config: &Config,
        find_resolved: FindResolved,
        (tally, unanswered): (&Arc<Tally>, &Arc<Unanswered>),
    ) -> Result<Self, Error> {
        let stream = durable_consumer::stream(nats, config).await?;
        durable_consumer::check_server(nats, &stream)?;
        let name = config.durable();
        let (consumer, _) = durable_consumer::open(&stream, config).await?;
        let last = stream.cached_info().state.last_sequence;
        let found = consumer.cached_info();
        let last = last.min(found.delivered.stream_sequence);
        let (fed_until, fed_of) = (found.ack_floor.stream_sequence, made_at(found));
        let newest = (last, stored_at(nats, &config.stream, last).await?);
        let created = durable_consumer::created(&stream);
        Ok(Self {
            origin: Origin { stream: config.stream.clone(), created },
            nats: nats.clone(),
            stream,
            consumer,
            name,
            consumer_seq: 0,
            newest,
            one_by_one: false,
            oversized: false,
            looked_at: Instant::now(),
            floor: Floor::new(0),
            config: config.clone(),
            read_until: None,
            fed_until,
            made: fed_of,
            fed_of,
            find_resolved,
            silence: Silence::new(),
            unanswered: Arc::clone(unanswered),
            tally: Arc::clone(tally),
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

    /// Up to here everything has its end, if that is known.
    pub(crate) fn known(&mut self, level: Option<u64>) {
        self.fed_until = level.unwrap_or(self.fed_until);
    }

    /// Why nothing can be taken from the stream, while that is so.
    pub(crate) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream.clone()
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// For how long the stream keeps messages, if there is a limit.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        Some(self.stream.cached_info().config.max_age).filter(|age| !age.is_zero())
    }

    /// Brings messages while there is room for them, until the session takes nothing more. Ends the
    /// session by `stop` if the stream was made anew, or came back without its end: says whether it
    /// did.
    pub(crate) async fn run(mut self, mut feed: Feed, stop: &CancellationToken) -> bool {
        let (mut behind, mut connects) = (true, reconnects::count(&self.nats));
        loop {
            let waits = Instant::now();
            let Ok(most) =
                feed.room_for(PULLED_MIN.min(self.config.hold_limits().events / 4)).await
            else {
                return false;
            };
            if std::mem::replace(&mut connects, reconnects::count(&self.nats)) != connects {
                // What was under way is lost, and may be what broke the connection.
                (behind, self.one_by_one) = (true, true);
            }
            let result = async {
                if (behind || waits.elapsed() > PULL_EXPIRES)
                    && let Some(other) = self.other_stream().await?
                {
                    return Ok(other);
                }
                if behind {
                    self.read_outstanding(&mut feed).await?;
                    behind = false;
                }
                self.pull(most.min(PULLED_MAX), connects, &mut feed).await
            };
            let result = result.await;
            match &result {
                Ok(_) => self.is_heard(),
                Err(error) => self.unanswered.failed(&self.nats, error).await,
            }
            match result {
                Ok(Pulled::All) => {}
                Ok(Pulled::Suspicious) => (behind, self.one_by_one) = (true, true),
                Ok(Pulled::OfAnother { went_back }) => {
                    warn!(
                        consumer = self.name,
                        went_back,
                        "stream or consumer was made anew, reset or changed: beginning anew"
                    );
                    stop.cancel();
                    return went_back;
                }
                Err(error) => {
                    let error = describe(&error);
                    warn!(consumer = self.name, error, "could not take messages");
                    (behind, self.one_by_one) = (true, true);
                    let refused = self.make_again().await;
                    let why = refused.unwrap_or_else(|| format!("the broker is away: {error}"));
                    self.trouble.send_replace(Some(why));
                    tokio::time::sleep(PAUSE).await;
                }
            }
            if feed.is_closed() {
                return false;
            }
        }
    }

    /// The broker answers, and may have nothing to say although it should.
    fn is_heard(&self) {
        self.unanswered.answered();
        let why = self.silence.why();
        self.trouble.send_if_modified(|it| {
            if let (None, Some(reason)) = (&it, &why) {
                warn!(consumer = self.name, reason, "nothing comes");
            }
            std::mem::replace(it, why.clone()) != why
        });
    }

    /// The broker's own markers are nobody's events. One whose acknowledgement does not arrive comes
    /// once more.
    async fn bring(&self, delivered: Delivered, feed: &Feed) -> Result<(), Closed> {
        if !delivered.message.is_marker() {
            return feed.bring(delivered).await;
        }
        if let Some(reply) = delivered.reply {
            let _ = self.nats.publish(reply, "+ACK".into()).await;
        }
        self.tally.passed_marker();
        Ok(())
    }

    /// Makes the durable consumer again if somebody has deleted it. What it delivers then is known.
    /// Says why the one that is there cannot be used.
    async fn make_again(&mut self) -> Option<String> {
        match durable_consumer::open(&self.stream, &self.config).await {
            Ok((consumer, true)) => {
                warn!(consumer = self.name, "the durable consumer was deleted: made it again");
                (self.consumer, self.read_until) = (consumer, None);
            }
            Ok((_, false)) => {}
            Err(error) => {
                let said = describe(&error);
                warn!(consumer = self.name, error = said, "could not look up the durable consumer");
                return (!error.is_transient()).then_some(said);
            }
        }
        None
    }

    /// Whether other messages have the sequences of what is held: another stream has the name, or it
    /// came back without its end.
    async fn other_stream(&self) -> Result<Option<Pulled>, Error> {
        let look = || durable_consumer::stream(&self.nats, &self.config);
        let stream = reconnects::asked(&self.nats, look).await?;
        if durable_consumer::created(&stream) != self.origin.created {
            return Ok(Some(Pulled::OfAnother { went_back: false }));
        }
        let (seq, at) = self.newest;
        let look = || stored_at(&self.nats, &self.origin.stream, seq);
        let went_back = match reconnects::asked(&self.nats, look).await? {
            // It may have been removed since.
            None => stream.cached_info().state.last_sequence < seq,
            found => found != at,
        };
        Ok(went_back.then_some(Pulled::OfAnother { went_back }))
    }

    async fn pull(&mut self, max: usize, connects: u64, feed: &mut Feed) -> Result<Pulled, Error> {
        let is_large = std::mem::take(&mut self.oversized);
        let (max, bytes) = if is_large { (1, 0) } else { (max, self.config.hold_limits().bytes) };
        let request = self.consumer.batch().expires(PULL_EXPIRES).max_messages(max);
        let request = request.max_bytes(bytes); // 0 is no limit
        let (began, mut received) = (Instant::now(), 0);
        let mut messages = request.messages().await.map_err(Error::jetstream(PULLING))?;
        loop {
            // Of many messages most are there already: no timers for each.
            let next = match messages.next().now_or_never() {
                Some(next) => next,
                None => tokio::select! {
                    biased;
                    next = timeout(PULL_EXPIRES + READ_DEADLINE, messages.next()) => {
                        next.map_err(Error::jetstream(PULLING))?
                    }
                    () = reconnects::beyond(&self.nats, connects) => return Ok(Pulled::All),
                },
            };
            let Some(message) = next else { break };
            let mut message = match message {
                // Nobody has looked whether the stream is the same behind another connection.
                Ok(_) if reconnects::count(&self.nats) != connects => return Ok(Pulled::All),
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
            let reply = message.message.reply.take();
            let message = match lacks_body(&message) {
                true => self.read_whole(place.stream_seq).await?,
                false => Some(self.understood(message.message, &place)),
            };
            let Some(message) = message else { return Ok(Pulled::Suspicious) };
            let unusual = redelivered || message.event.is_err();
            let path = if unusual { Path::Careful } else { Path::Fast };
            let delivered = Delivered { message: Arc::new(message), reply, path };
            if seq > self.consumer_seq + 1 {
                info!(consumer = self.name, "deliveries are missing: reading them from the stream");
                self.read_outstanding(feed).await?;
            }
            self.consumer_seq = self.consumer_seq.max(seq);
            if self.bring(delivered, feed).await.is_err() {
                return Ok(Pulled::All);
            }
            if !redelivered {
                self.fed_until = self.fed_until.max(place.stream_seq);
                self.newest = self.newest.max((place.stream_seq, Some(place.stored_at)));
            }
        }
        if received > 0 {
            self.silence.heard();
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
        let info = self.ask().await?;
        if is_changed(&info, &self.config) || made_at(&info) != self.made {
            return Ok(Pulled::OfAnother { went_back: false });
        }
        let is_owed = info.num_ack_pending > 0;
        if is_idle {
            self.silence.look(&info, LOOK);
        }
        if is_idle && info.delivered.consumer_sequence > self.consumer_seq {
            return Ok(Pulled::Suspicious);
        }
        if info.delivered.consumer_sequence < self.consumer_seq {
            return Ok(Pulled::OfAnother { went_back: false });
        }
        let floor = info.ack_floor.stream_sequence;
        if is_owed && self.floor.is_stuck(floor) {
            let last = info.delivered.stream_sequence.min(floor + LOOKED_UP_MAX);
            self.read(floor + 1, last, &info.config, feed).await?;
        }
        Ok(Pulled::All)
    }

    /// A message that came without its body, if the stream has it still.
    async fn read_whole(&self, seq: u64) -> Result<Option<Message>, Error> {
        let read = || stored_message::get(&self.nats, &self.origin.stream, seq);
        let stored = reconnects::asked(&self.nats, read).await?;
        Ok(stored.map(|it| it.understood(&self.origin)))
    }

    /// What the broker knows of the consumer.
    async fn ask(&self) -> Result<consumer::Info, Error> {
        let info = reconnects::asked(&self.nats, || self.consumer.get_info()).await;
        info.map_err(Error::jetstream(READING))
    }

    fn understood(&self, message: async_nats::Message, place: &Place) -> Message {
        let async_nats::Message { subject, headers, payload, .. } = message;
        let (headers, origin) = (headers.unwrap_or_default(), &self.origin);
        let (seq, at) = (place.stream_seq, place.stored_at);
        Message::new(subject.to_string(), headers, payload, origin, seq, at)
    }
}

/// When the consumer was made.
pub(crate) fn made_at(info: &consumer::Info) -> Option<Timestamp> {
    Timestamp::from_nanosecond(info.created.unix_timestamp_nanos()).ok()
}

/// When the stream stored this message, if it has it.
async fn stored_at(nats: &Client, stream: &str, seq: u64) -> Result<Option<Timestamp>, Error> {
    if seq == 0 {
        return Ok(None);
    }
    Ok(stored_message::get(nats, stream, seq).await?.map(|it| it.stored_at))
}

/// What came of a request.
enum Pulled {
    /// What there was, as far as anybody can see.
    All,
    /// Something was delivered and not understood.
    Suspicious,
    /// The stream is another one, or has lost its end, or the consumer is another: it delivers again
    /// what is known here, or other messages with the same sequences.
    OfAnother { went_back: bool },
}

/// The server ends a request so when its bytes are used up, or the next message has more.
fn is_about_bytes(error: &async_nats::Error) -> bool {
    let text = error.to_string();
    text.contains("Message Size Exceeds MaxBytes") || text.contains("Batch Completed")
}

const PULLING: &str = "take messages from the consumer";
const READING: &str = "read what was delivered from the stream";
