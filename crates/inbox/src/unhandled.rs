//! Whether the records know the end of everything that the broker holds acknowledged.
//!
//! An acknowledgement follows the commit of the record. A database that is put back to an earlier
//! state, or a standby that lacks commits, knows less than the broker. `handled_to` tells: up to
//! there everything has its end, in the same history of the database. What is acknowledged behind it
//! is looked up, message by message: after a crash all of it has its record.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{DeliverPolicy, Info};
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use tracing::info;
use uuid::Uuid;

use crate::Error;
use crate::config::Config;
use crate::engine::Halving;
use crate::message::Origin;
use crate::nats::durable_consumer::filters_of;
use crate::nats::{stored_message, stream_range};
use crate::postgres::attended::answered;
use crate::postgres::sql::handled_up_to;
use crate::unread::Seen;

/// Sequences that are looked up by one statement.
const LOOKED_UP_AT_ONCE: u64 = 500;

/// How often a search says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(10);

const LOOKING: &str = "look for what is handled";

/// Where to look. Dropping a search leaves nothing behind.
pub struct Unhandled<'a> {
    /// The database.
    pub on: &'a Client,
    /// The broker.
    pub nats: &'a async_nats::Client,
    /// The settings of the consumer.
    pub config: &'a Config,
    /// Its stream.
    pub origin: &'a Origin,
    /// The durable consumer.
    pub found: &'a Info,
}

impl Unhandled<'_> {
    /// Up to where everything is handled, if it is written down of this stream. An error if another
    /// server than `server` says so.
    ///
    /// # Errors
    ///
    /// If a server refuses or does not answer.
    pub async fn handled_to(&self, server: Option<i64>) -> Result<Option<u64>, Error> {
        let Some(row) = self.row().await? else { return Ok(None) };
        if server.is_some_and(|it| it != row.get::<_, i64>(1)) {
            return Err(Error::LeaseLost);
        }
        Ok(row.get::<_, Option<i64>>(0).map(i64::cast_unsigned))
    }

    /// Whether the stream has another message where the last one was that was handled: it came back
    /// without its end, and has grown again.
    pub(crate) async fn is_of_another_end(&self) -> Result<bool, Error> {
        let Some(row) = self.row().await? else { return Ok(false) };
        let known = row.get::<_, Option<i64>>(0).zip(row.get::<_, Option<Timestamp>>(5));
        let Some((seq, at)) = known else { return Ok(false) };
        let found = stored_message::at(self.nats, &self.origin.stream, seq.cast_unsigned()).await?;
        // It may have been removed since.
        Ok(found.is_some_and(|it| it != at))
    }

    /// What of this stream was seen, if anybody has looked, and how many messages are told to have left
    /// it unread.
    ///
    /// # Errors
    ///
    /// If the database refuses or does not answer.
    pub async fn seen(&self) -> Result<(Option<Seen>, u64), Error> {
        let Some(row) = self.row().await? else { return Ok((None, 0)) };
        let count = |it: Option<i64>| it.map(i64::cast_unsigned);
        let seen = count(row.get(2)).zip(count(row.get(3)));
        Ok((seen.map(|(to, given)| Seen { to, given }), row.get::<_, i64>(4).cast_unsigned()))
    }

    async fn row(&self) -> Result<Option<Row>, Error> {
        let (sql, Origin { stream, created }) =
            (handled_up_to::find_handled(&self.schema()), self.origin);
        let partition = self.config.partition.cast_signed();
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&self.config.consumer, stream, created, &partition];
        answered(LOOKING, self.on.query_opt(&sql, &parameters)).await
    }

    /// The first message behind `handled_to` that is acknowledged and that the records know no end
    /// of.
    ///
    /// # Errors
    ///
    /// If a server refuses or does not answer.
    pub async fn first(&self, handled_to: u64) -> Result<Option<u64>, Error> {
        let floor = self.found.ack_floor.stream_sequence;
        if handled_to >= floor {
            return Ok(None);
        }
        let begins = self.begins((1, floor)).await?;
        let (first, began) = (begins.max(handled_to + 1), Instant::now());
        let (sql, mut next, mut said) =
            (handled_up_to::first_unhandled(&self.schema()), first, began);
        while next <= floor {
            let last = (next + LOOKED_UP_AT_ONCE - 1).min(floor);
            if let Some(seq) = self.ask(&sql, (next, last)).await? {
                return Ok(Some(seq));
            }
            next = last + 1;
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                let consumer = &self.config.consumer;
                info!(consumer, next, floor, "looking up what is acknowledged");
            }
        }
        Ok(None)
    }

    /// How many messages behind `handled_to` come before those that the consumer is for.
    pub(crate) async fn passed_over(&self, handled_to: u64) -> Result<u64, Error> {
        let floor = self.found.ack_floor.stream_sequence;
        if handled_to >= floor {
            return Ok(0);
        }
        let begins = self.begins((handled_to + 1, floor)).await?;
        Ok(begins.min(floor + 1).saturating_sub(handled_to + 1))
    }

    /// Behind the last message of the range that is recorded with its sequence; where the consumer
    /// began if there is none.
    pub(crate) async fn behind_recorded(&self, (first, last): (u64, u64)) -> Result<u64, Error> {
        // A stream that lost everything says that its first message is number 0.
        let range = (first.max(1), last);
        let sql = handled_up_to::last_in_place(&self.schema());
        let mut halving = Halving::new(range.0..=range.1, LOOKED_UP_AT_ONCE);
        while let Some(window) = halving.next() {
            halving.found(window, self.ask(&sql, window).await?);
        }
        match halving.behind {
            Some(seq) => Ok(seq),
            None => self.begins(range).await,
        }
    }

    /// The first message of the range that the consumer is for; behind the range if none is.
    async fn begins(&self, (first, last): (u64, u64)) -> Result<u64, Error> {
        let begins_at = match self.found.config.deliver_policy {
            DeliverPolicy::ByStartSequence { start_sequence } => return Ok(start_sequence),
            DeliverPolicy::ByStartTime { start_time } => start_time,
            DeliverPolicy::New => self.found.created,
            DeliverPolicy::All | DeliverPolicy::Last | DeliverPolicy::LastPerSubject => {
                return Ok(first);
            }
        };
        let since = begins_at.unix_timestamp_nanos();
        let since = Timestamp::from_nanosecond(since).unwrap_or_default();
        let stream = &self.origin.stream;
        let found = stream_range::first_since(self.nats, stream, (first, last), since).await?;
        Ok(found.map_or(last + 1, |it| it.seq))
    }

    /// The sequence that a statement finds among the messages of a range.
    async fn ask(&self, sql: &str, range: (u64, u64)) -> Result<Option<u64>, Error> {
        let filters = filters_of(&self.found.config);
        let keys = stream_range::keys(self.nats, self.origin, &filters, range).await?;
        let (seqs, (ids, times)): (Vec<i64>, (Vec<Uuid>, Vec<Timestamp>)) =
            keys.iter().map(|(seq, it)| (seq.cast_signed(), (it.id, it.event_time))).unzip();
        let parameters: [&(dyn ToSql + Sync); 4] = [&self.config.consumer, &ids, &times, &seqs];
        let row = answered(LOOKING, self.on.query_one(sql, &parameters)).await?;
        Ok(row.get::<_, Option<i64>>(0).map(i64::cast_unsigned))
    }

    fn schema(&self) -> String {
        self.config.quoted_schema()
    }
}
