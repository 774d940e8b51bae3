//! What was delivered and did not arrive, or has not had its end: read from the stream itself.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, pull};
use futures_util::{StreamExt, stream};
use tracing::info;

use super::place::Place;
use super::{READ_DEADLINE, READING, Source, is_about_bytes, made_at};
use crate::Error;
use crate::engine::{Delivered, Path};
use crate::feed::Feed;
use crate::message::Message;
use crate::nats::durable_consumer::{self, PULLED_MAX, filters_of};
use crate::nats::{reconnects, stored_message};

/// The broker forgets the reader of what was delivered before after so long without a request.
const READER_IDLE_MAX: Duration = Duration::from_secs(300);

/// Up to so many are read one by one in any case: the connection survives whatever they are.
const ONE_BY_ONE_MAX: u64 = 1_000;

/// What was fed before is read again, in case that its acknowledgement was lost, where it is no more
/// than this: others wait meanwhile.
const READ_AGAIN_MAX: u64 = 10_000;

/// So many are looked up behind an acknowledgement floor that is stuck.
pub(super) const LOOKED_UP_MAX: u64 = 2 * READ_AGAIN_MAX;

/// Messages asked for at a time where they are read one by one.
const READ_AHEAD: usize = 8;

impl Source {
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
        let found = reconnects::asked(nats, || stored_message::next(nats, name, first)).await?;
        let Some(found) = found else { return Ok(()) };
        let read = |seq| reconnects::asked(nats, move || stored_message::get(nats, name, seq));
        let mut messages = stream::iter(found.seq..=last).map(read).buffered(READ_AHEAD);
        let mut count = 0_u64;
        while let Some(stored) = messages.next().await {
            let Some(stored) = stored? else { continue };
            if !durable_consumer::take(filters, &stored.subject) {
                continue;
            }
            count += 1;
            self.newest = self.newest.max((stored.seq, Some(stored.stored_at)));
            let reply = Some(stored.ack_subject(name, &self.name));
            let message = Arc::new(stored.understood(&self.origin));
            if feed.room_for(1).await.is_err() {
                return Ok(());
            }
            self.read_until = Some(message.stream_seq);
            if self.bring(Delivered { message, reply, path: Path::Careful }, feed).await.is_err() {
                return Ok(());
            }
        }
        info!(consumer = self.name, count, "read one by one what was delivered before");
        (self.one_by_one, self.read_until) = (false, None);
        Ok(())
    }

    /// Reads what the consumer has delivered and knows of no end of, as fast as there is room for it.
    pub(super) async fn read_outstanding(&mut self, feed: &mut Feed) -> Result<(), Error> {
        let info = self.ask().await?;
        let (acked, last) = (info.ack_floor.stream_sequence, info.delivered.stream_sequence);
        if made_at(&info) != self.fed_of || last < self.fed_until {
            (self.fed_of, self.fed_until) = (made_at(&info), acked);
        }
        // Others may have taken what did not arrive, and acknowledged it.
        let misses = info.delivered.consumer_sequence > self.consumer_seq;
        self.consumer_seq = info.delivered.consumer_sequence;
        let known = if misses { acked.min(self.fed_until) } else { acked };
        // What was read already is held, or has its end.
        let mut first = known.max(self.read_until.unwrap_or(0)) + 1;
        if last.saturating_sub(first) >= READ_AGAIN_MAX {
            first = first.max(self.fed_until + 1);
        }
        if (info.num_ack_pending == 0 && known == acked) || first > last {
            (self.one_by_one, self.read_until) = (false, None);
            return Ok(());
        }
        self.read(first, last, &info.config, feed).await?;
        self.fed_until = self.fed_until.max(last);
        Ok(())
    }

    /// Reads these messages of the consumer's, and acknowledges those that have had their end.
    pub(super) async fn read(
        &mut self,
        first: u64,
        last: u64,
        of: &consumer::Config,
        feed: &mut Feed,
    ) -> Result<(), Error> {
        if self.one_by_one || last.saturating_sub(first) < ONE_BY_ONE_MAX {
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
                request
                    .max_messages(most.min(PULLED_MAX))
                    .max_bytes(self.config.hold_limits().bytes)
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
                    self.newest = self.newest.max((place.stream_seq, Some(place.stored_at)));
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
                if self
                    .bring(Delivered { message, reply, path: Path::Careful }, feed)
                    .await
                    .is_err()
                {
                    return false;
                }
            }
            self.read_until = Some(seq);
        }
        true
    }
}
