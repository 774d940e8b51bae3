//! Sends one consumer back in its stream. Nothing is published: other consumers see nothing of it.
//!
//! ```text
//!   plan ──▶ request ──▶ inbox_rewinds ──▶ the worker that has the consumer ends its session,
//!                                          resets the consumer, removes records, begins anew
//! ```
//!
//! What comes again and was processed is skipped, as every redelivery is: the records decide. With
//! `again` the records of processed events are removed first, so that each has its effect once more.

use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::Stream;
use inbox::access::durable_consumer::{self, filters_of};
use inbox::access::stream_range::{self, StoredAt};
use inbox::access::{Config, MAKE_DURABLE, Origin, Unhandled, rewind_records};
use inbox::{Builder, Connection, Error, RewindMethod, RewindOnly, RewindState};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::rewind_list;
use crate::dead_letters::Actor;
use crate::sql::records::{plan_rewinds, query, select};

/// Sequences looked up by one statement.
const LOOKED_UP_AT_ONCE: u64 = 500;

const DOING: &str = "look at the inbox";

/// Plans and requests that a consumer goes back.
pub struct Rewinder {
    config: Config,
    nats: Client,
    connection: Connection,
    /// Quoted.
    schema: String,
    count_within: Option<Duration>,
}

/// Where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewindTarget {
    /// To the first message that was stored at this time or later.
    Since(Timestamp),
    /// To the first message with this sequence or a later one.
    Sequence(u64),
}

/// What a rewind would do, as things are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RewindPlan {
    /// The consumer.
    pub consumer: String,
    /// Its stream.
    pub stream: String,
    #[serde(skip)]
    stream_created_at: Option<Timestamp>,
    /// The first message that the stream holds.
    pub stream_first_sequence: u64,
    /// When the stream stored it.
    pub stream_first_at: Timestamp,
    /// The last one.
    pub stream_last_sequence: u64,
    /// The last message that was delivered to the consumer, or passed it by.
    pub delivered_sequence: u64,
    /// Up to where the broker has every acknowledgement of the consumer's.
    pub acknowledged_sequence: u64,
    /// Where it goes back to.
    pub from_sequence: u64,
    /// When the stream stored that.
    pub from_at: Timestamp,
    /// Where it begins: there, or before it at the first message that is not acknowledged.
    pub begins_sequence: u64,
    /// Whether messages before the stream's first one were asked for too. They do not come again.
    pub reaches_beyond_stream: bool,
    /// How: `reset`, or `made_anew`.
    #[schemars(with = "String")]
    pub method: RewindMethod,
    /// Whether processed events are handled again.
    pub again: bool,
    /// Which of them.
    #[serde(flatten)]
    #[schemars(with = "OnlySchema")]
    pub only: RewindOnly,
    /// The partitions that go back, each with what was delivered to it last.
    #[serde(skip)]
    partitions: Vec<(i32, i64)>,
    /// Up to where it was counted what comes again: the delivered sequence, or less if that took too
    /// long.
    pub counted_to_sequence: u64,
    /// What comes again from there on.
    #[serde(flatten)]
    pub counts: RewindCounts,
    /// Whether a worker has the consumer, or some of it. Otherwise the next one carries it out.
    pub worker_active: bool,
}

/// [`RewindOnly`], as the document has it.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only the document has it")]
struct OnlySchema {
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
}

/// The messages that come again, by what the records say about their events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RewindCounts {
    /// Messages that come again.
    pub messages: u64,
    /// Events that have had their effect, by their records.
    pub processed: u64,
    /// These too, but they are not meant.
    pub others: u64,
    /// These too, but they are older than the inbox remembers: their records stay.
    pub kept: u64,
    /// Dead letters, and those that were discarded.
    pub dead: u64,
    /// Events that were rejected.
    pub rejected: u64,
    /// Events that were begun and have no end.
    pub unfinished: u64,
    /// Events without a record.
    pub unrecorded: u64,
    /// Events without a record that are so old that they become dead letters.
    pub forgotten: u64,
    /// How many are skipped: they are resolved.
    pub skipped: u64,
    /// How many are handled.
    pub handled: u64,
}

impl Rewinder {
    /// Plans and requests that the consumer goes back in its stream, with this connection to the
    /// database of the inbox.
    ///
    /// # Errors
    ///
    /// If a setting is missing or makes no sense.
    pub fn new(consumer: Builder, connection: Connection) -> Result<Self, Error> {
        let (config, nats) = consumer.into_parts()?;
        let schema = config.quoted_schema();
        Ok(Self { config, nats, connection, schema, count_within: None })
    }

    /// A plan counts for no longer: then its counts are of the first messages.
    pub fn counting_within(self, limit: Duration) -> Self {
        Self { count_within: Some(limit), ..self }
    }

    /// Works out what a rewind would do, and changes nothing. With `again` the events that are meant
    /// are handled again if they were processed; then it goes back to the first of them. `looked_at`
    /// tells how many of how many sequences were looked up.
    ///
    /// # Errors
    ///
    /// [`Error::NoConsumer`]; [`Error::Refused`] if the target is not before the consumer's place,
    /// nothing that is meant comes again, or no worker can carry it out; if a server refuses or does
    /// not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn plan(
        &self,
        target: RewindTarget,
        (again, only): (bool, RewindOnly),
        looked_at: &watch::Sender<(u64, u64)>,
    ) -> Result<RewindPlan, Error> {
        let config = &self.config;
        let stream = durable_consumer::stream(&self.nats, config).await?;
        let parts = config.parts();
        let mut all = Vec::new();
        for part in &parts {
            let Some(found) = durable_consumer::find(&stream, part).await? else {
                let (stream, consumer) = (config.stream.clone(), part.durable());
                return Err(Error::NoConsumer { stream, consumer });
            };
            all.push(found);
        }
        let worker_active = self.has_worker().await?;
        let last = stream.cached_info().state.last_sequence;
        // The broker does not tell of what it passed over: messages of other subjects.
        let passed = |it: &Info| if it.num_pending == 0 { last } else { 0 };
        let to = |it: &Info| it.delivered.stream_sequence.max(passed(it));
        let delivered = all.iter().map(to).max().unwrap_or(0);
        let (from, reaches_beyond_stream) = self.find_target(&stream, target, delivered).await?;
        let filters: Vec<_> = all.iter().flat_map(|it| filters_of(&it.config)).collect();
        let meant = self.first_meant(&stream, &filters, (from, delivered), &only).await?;
        let from = meant.ok_or_else(|| nothing_is_meant(&only, from))?;
        let first = stream.cached_info().state.first_sequence;
        let first_stored = stream_range::first_from(&self.nats, &config.stream, first).await?;
        let back: Vec<_> = parts.iter().zip(&all).filter(|it| to(it.1) >= from.seq).collect();
        let begins = |it: &Info| durable_consumer::begins_at(Some(it), from.seq);
        let is_reset = |it: &Info| {
            let method = durable_consumer::rewind_method(&self.nats, Some(it), begins(it));
            method == RewindMethod::Reset
        };
        let method = match back.iter().all(|it| is_reset(it.1)) {
            true => RewindMethod::Reset,
            false => RewindMethod::MadeAnew,
        };
        let place = |(part, found): &(&Config, &Info)| {
            (part.partition.cast_signed(), to(found).cast_signed())
        };
        let floors = back.iter().map(|it| it.1.ack_floor.stream_sequence);
        if method == RewindMethod::MadeAnew && !durable_consumer::keeps_messages(&stream) {
            return Err(Error::cannot_rewind(&config.stream));
        }
        let mut plan = RewindPlan {
            consumer: config.consumer.clone(),
            stream: config.stream.clone(),
            stream_created_at: durable_consumer::created(&stream),
            stream_first_sequence: first,
            stream_first_at: first_stored.map_or(from.at, |it| it.at),
            stream_last_sequence: last,
            delivered_sequence: delivered,
            acknowledged_sequence: floors.min().unwrap_or(0),
            from_sequence: from.seq,
            from_at: from.at,
            begins_sequence: back.iter().map(|it| begins(it.1)).min().unwrap_or(from.seq),
            reaches_beyond_stream,
            method,
            again,
            only,
            partitions: back.iter().map(place).collect(),
            worker_active,
            counted_to_sequence: from.seq.saturating_sub(1),
            counts: RewindCounts::default(),
        };
        self.count(&mut plan, &filters, looked_at).await?;
        Ok(plan)
    }

    /// The first message that the consumer has acknowledged and that its records know no end of: the
    /// database was put back to an earlier state, and no worker has looked since. Nothing if no worker
    /// ever ran it here. And how many messages left the stream unread, at most, in a partition,
    /// that nobody has settled.
    ///
    /// # Errors
    ///
    /// If a server refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn unhandled(&self) -> Result<(Option<u64>, u64), Error> {
        let config = &self.config;
        let stream = durable_consumer::stream(&self.nats, config).await?;
        let (on, origin) = (self.connection.client(), Origin::of(config, &stream));
        let (before, mut unread) = (stream.cached_info().state.first_sequence, 0);
        for config in &config.parts() {
            let Some(found) = durable_consumer::find(&stream, config).await? else { continue };
            let known = Unhandled { on, nats: &self.nats, config, origin: &origin, found: &found };
            if let Some(handled_to) = known.handled_to(None).await?
                && let Some(seq) = known.first(handled_to).await?
            {
                return Ok((Some(seq), unread));
            }
            let (seen, told) = known.seen().await?;
            let seen = seen.filter(|_| durable_consumer::keeps_messages(&stream));
            unread = unread.max(told + seen.map_or(0, |it| it.missed(before, &found.delivered)));
        }
        Ok((None, unread))
    }

    /// The message to go back to, and whether earlier ones were asked for that the stream has lost.
    async fn find_target(
        &self,
        stream: &Stream,
        target: RewindTarget,
        delivered: u64,
    ) -> Result<(StoredAt, bool), Error> {
        let (nats, name) = (&self.nats, &self.config.stream);
        let first = stream.cached_info().state.first_sequence;
        let (found, beyond) = match target {
            RewindTarget::Sequence(seq) => {
                (stream_range::first_from(nats, name, seq.max(first)).await?, seq < first)
            }
            RewindTarget::Since(time) => {
                let range = (first, delivered);
                let found = stream_range::first_since(nats, name, range, time).await?;
                (found, first > 1 && found.is_some_and(|it| it.seq == first && it.at > time))
            }
        };
        match found.filter(|it| it.seq <= delivered) {
            Some(found) => Ok((found, beyond)),
            None => Err(Error::Refused {
                problem: format!(
                    "nothing from there on was delivered to consumer \"{}\", which is at sequence \
                     {delivered}",
                    self.config.consumer
                ),
                hint: "a rewind only goes back: name an earlier time or sequence",
            }),
        }
    }

    /// The first message from `from` on that is meant: there is none to go back further for.
    async fn first_meant(
        &self,
        stream: &Stream,
        filters: &[String],
        (from, delivered): (StoredAt, u64),
        only: &RewindOnly,
    ) -> Result<Option<StoredAt>, Error> {
        if only.is_all() {
            return Ok(Some(from));
        }
        let (nats, origin) = (&self.nats, Origin::of(&self.config, stream));
        let mut next = from.seq;
        while next <= delivered {
            let range = (next, (next + LOOKED_UP_AT_ONCE - 1).min(delivered));
            let found = stream_range::meant(nats, &origin, filters, range, only).await?;
            if let Some((seq, ..)) = found.iter().find(|it| it.2) {
                return stream_range::first_from(nats, &origin.stream, *seq).await;
            }
            next = range.1 + 1;
        }
        Ok(None)
    }

    fn partitions(&self) -> i32 {
        self.config.partitions.map_or(1, |it| it.get().cast_signed())
    }

    async fn has_worker(&self) -> Result<bool, Error> {
        let sql = format!(
            "SELECT bool_or(expires_at > clock_timestamp()) FROM {}.inbox_roles
             WHERE consumer = $1 AND partition < $2 HAVING count(*) > 0",
            self.schema
        );
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.config.consumer, &self.partitions()];
        let rows = query(&self.connection, DOING, &sql, &parameters).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| Error::Refused {
            problem: format!("no worker ever ran consumer \"{}\" here", self.config.consumer),
            hint: "what has no inbox is rewound at the broker: `nats consumer reset`; its effects \
                   repeat",
        })
    }

    async fn count(
        &self,
        plan: &mut RewindPlan,
        filters: &[String],
        looked_at: &watch::Sender<(u64, u64)>,
    ) -> Result<(), Error> {
        let origin = Origin { stream: plan.stream.clone(), created: plan.stream_created_at };
        let sql = plan_rewinds::count_states(&self.schema);
        let (first, last) = (plan.from_sequence, plan.delivered_sequence);
        let (mut next, began) = (first, Instant::now());
        let has_time = || self.count_within.is_none_or(|it| began.elapsed() < it);
        while next <= last && has_time() {
            let end = (next + LOOKED_UP_AT_ONCE - 1).min(last);
            let range = (next, end);
            let found =
                stream_range::meant(&self.nats, &origin, filters, range, &plan.only).await?;
            let (ids, (times, meant)): (Vec<Uuid>, (Vec<Timestamp>, Vec<bool>)) =
                found.iter().map(|&(_, it, meant)| (it.id, (it.event_time, meant))).unzip();
            let parameters: [&(dyn ToSql + Sync); 4] =
                [&self.config.consumer, &ids, &times, &meant];
            for row in query(&self.connection, DOING, &sql, &parameters).await? {
                let count = row.get::<_, i64>(1).cast_unsigned();
                plan.counts.add(row.get(0), count, plan.again);
            }
            (plan.counted_to_sequence, next) = (end, end + 1);
            looked_at.send_replace((next - first, last + 1 - first));
        }
        Ok(())
    }

    /// Requests what was planned. Returns the request that is pending then: this one, or another
    /// that was before it.
    ///
    /// # Errors
    ///
    /// If the database refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// It may be requested or not when the future is dropped: [`Self::pending`] says so.
    pub async fn request(&self, plan: &RewindPlan, actor: &Actor) -> Result<RewindState, Error> {
        query(&self.connection, DOING, MAKE_DURABLE, &[]).await?;
        let from = plan.from_sequence.cast_signed();
        let (created, why) = (plan.stream_created_at, actor.why());
        let (partitions, until): (Vec<i32>, Vec<i64>) = plan.partitions.iter().copied().unzip();
        let RewindOnly { aggregate_type, aggregate_id, event_type } = &plan.only;
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &plan.consumer,
            &plan.stream,
            &created,
            &from,
            &until,
            &plan.again,
            &actor.name,
            &why,
            aggregate_type,
            aggregate_id,
            event_type,
            &partitions,
        ];
        let sql = rewind_records::request(&self.schema);
        let requested: Vec<RewindState> =
            select(&self.connection, DOING, &sql, &parameters).await?;
        let found = match requested.first() {
            None => self.pending().await?,
            Some(one) => self.state(one.id).await?,
        };
        found.ok_or_else(|| Error::Refused {
            problem: "another rewind of the consumer ended at this moment".into(),
            hint: "look at the plan again",
        })
    }

    /// The request that is not carried out, if there is one.
    ///
    /// # Errors
    ///
    /// If the database refuses or does not answer.
    pub async fn pending(&self) -> Result<Option<RewindState>, Error> {
        let sql = plan_rewinds::find_pending(&self.schema);
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.config.consumer, &self.partitions()];
        Ok(select(&self.connection, DOING, &sql, &parameters).await?.pop())
    }

    /// How far a request is.
    ///
    /// # Errors
    ///
    /// If the database refuses or does not answer.
    pub async fn state(&self, id: i64) -> Result<Option<RewindState>, Error> {
        let sql = plan_rewinds::find(&self.schema);
        Ok(select(&self.connection, DOING, &sql, &[&id]).await?.pop())
    }

    /// Withdraws the request that no worker has begun with, and says what it was.
    ///
    /// # Errors
    ///
    /// If the database refuses or does not answer.
    pub async fn cancel(&self, actor: &Actor) -> Result<Option<RewindState>, Error> {
        let on = (&self.connection, &*self.schema);
        rewind_list::cancel(on, &self.config.consumer, actor).await
    }
}

fn nothing_is_meant(only: &RewindOnly, from: StoredAt) -> Error {
    Error::Refused {
        problem: format!(
            "no message from sequence {} on that was delivered is of {only}",
            from.seq
        ),
        hint: "name aggregate and type as the events have them, or an earlier time or sequence",
    }
}

impl RewindCounts {
    fn add(&mut self, state: &str, count: u64, again: bool) {
        let (counter, is_handled) = match state {
            "processed" => (&mut self.processed, again),
            "kept" => (&mut self.kept, false),
            "others" => (&mut self.others, false),
            "dead" => (&mut self.dead, false),
            "rejected" => (&mut self.rejected, false),
            "forgotten" => (&mut self.forgotten, false),
            "unfinished" => (&mut self.unfinished, true),
            _ => (&mut self.unrecorded, true),
        };
        *counter += count;
        self.messages += count;
        if is_handled {
            self.handled += count;
        } else if state != "forgotten" {
            self.skipped += count;
        }
    }
}
