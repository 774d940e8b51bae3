//! Carries out requests to go back in the stream, between two sessions.
//!
//! Then nothing is at work, and what the session before acknowledged is with the broker, since it
//! went over the same connection. The consumer is reset first: until the request is ended no session
//! begins, so whoever takes over after a crash does the rest, and no event is handled in between.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{Json, ToSql};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::Error;
use crate::engine::Term;
use crate::message::Origin;
use crate::nats::durable_consumer::{self, filters_of, is_for_others, left_out};
use crate::nats::source::made_at;
use crate::nats::{stored_message, stream_range};
use crate::postgres::attended::{answered, asked, looked};
use crate::postgres::sql::handled_up_to;
use crate::postgres::sql::rewind_records::{self, FOLLOWS};
use crate::postgres::sqlstate::is_forbidden;
use crate::rewind::RewindState;
use crate::unhandled::Unhandled;
use crate::worker::unread_look;
use crate::worker::work::Context;

/// How often to look for a request.
const LOOK: Duration = Duration::from_secs(1);

/// Sequences whose records are removed by one statement.
const READ_AT_ONCE: u64 = 500;

/// How often a broker that answers may fail to reset the consumer: it may not be allowed.
const FAILURES_MAX: u32 = 3;

const LOOKING: &str = "look for a rewind";
const REWINDING: &str = "rewind the consumer";

/// Looks for requests, and carries them out.
pub(super) struct Rewinding {
    context: Arc<Context>,
    /// Quoted.
    schema: String,
    failures: u32,
    /// Where the consumer could not go back to.
    given_up: Option<u64>,
    /// Up to where the records know the end of all that was acknowledged when the session before had
    /// ended; nothing if they lack any.
    pub(super) level: Option<u64>,
    /// When the consumer was made of which that is true, if it was there.
    pub(super) made: Option<Timestamp>,
}

fn requested(rows: &[Row]) -> Result<Option<RewindState>, Error> {
    let read = rows.first().map(|row| row.try_get::<_, Json<RewindState>>(0)).transpose();
    read.map(|it| it.map(|it| it.0)).map_err(Error::sql(LOOKING))
}

impl Rewinding {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let schema = context.config.quoted_schema();
        Self { context, schema, failures: 0, given_up: None, level: None, made: None }
    }

    /// The request that is pending, if there is one.
    pub(super) async fn pending(&self) -> Result<Option<RewindState>, Error> {
        let Context { config, pool, .. } = &*self.context;
        let sql = rewind_records::find_mine(&self.schema);
        let partition = config.partition.cast_signed();
        let found = looked(pool, LOOKING, &sql, &[&config.consumer, &partition]).await;
        // A role that may not read requests carries none out.
        if found.as_ref().is_err_and(is_forbidden) {
            return Ok(None);
        }
        requested(&found?)
    }

    /// Requests that the consumer goes back to where its stream did, if it was given more than the
    /// stream has, or `went_back` or the stream's message at `handled_to` says so: what took the place of
    /// that would never be delivered.
    pub(super) async fn follow_stream(
        &self,
        nats: &Client,
        went_back: bool,
    ) -> Result<Option<RewindState>, Error> {
        let Context { config, pool, .. } = &*self.context;
        let stream = durable_consumer::stream(nats, config).await?;
        let Some(found) = durable_consumer::find(&stream, config).await? else { return Ok(None) };
        // Asked for later than the consumer: the stream only grows meanwhile.
        let state = stream.get_info().await.map_err(Error::jetstream("look up the stream"))?.state;
        let given = found.delivered.stream_sequence.max(found.ack_floor.stream_sequence);
        let origin = Origin::of(config, &stream);
        let _turn = pool.turns.searches.acquire().await;
        let store = pool.try_get().await?;
        let on = store.client();
        let search = Unhandled { on, nats, config, origin: &origin, found: &found };
        let is_ahead = went_back || given > state.last_sequence;
        if !is_ahead && !search.is_of_another_end().await? {
            pool.put(store);
            return Ok(None);
        }
        let from = search.behind_recorded((state.first_sequence, state.last_sequence)).await?;
        pool.put(store);
        // The broker had it go back.
        if !is_ahead && from > given {
            return Ok(None);
        }
        let why = format!("stream {} came back without its last messages", config.stream);
        self.go_back(&origin, (from, given), &why).await
    }

    /// Requests that the consumer goes back to where the database did, if that knows no end of what
    /// is acknowledged. Otherwise everything is handled up to there, and that is written down.
    pub(super) async fn follow_database(
        &mut self,
        nats: &Client,
        term: Term,
    ) -> Result<Option<RewindState>, Error> {
        let Context { config, pool, .. } = &*Arc::clone(&self.context);
        let stream = durable_consumer::stream(nats, config).await?;
        let found = durable_consumer::find(&stream, config).await?;
        let floor = found.as_ref().map_or(0, |it| it.ack_floor.stream_sequence);
        let origin = Origin::of(config, &stream);
        let _turn = pool.turns.searches.acquire().await;
        let store = pool.try_get().await?;
        let on = store.client();
        let gone = stream.cached_info().state.first_sequence.saturating_sub(1);
        let (unhandled, unrecorded) = match &found {
            Some(found) => {
                let known = Unhandled { on, nats, config, origin: &origin, found };
                Self::unhandled(&known, term, gone).await?
            }
            None => (None, 0),
        };
        self.made = found.as_ref().and_then(made_at);
        self.level = unhandled.is_none().then_some(floor);
        if let Some(from) = unhandled {
            pool.put(store);
            // It could not go back: what is acknowledged stays so, and nothing is written down.
            if self.given_up == Some(from) {
                return Ok(None);
            }
            let found = found.as_ref();
            let is_other = found.is_some_and(|it| is_for_others(&it.config, config));
            let delivered = found.map_or(0, |it| it.delivered.stream_sequence);
            let (given, why) = match is_other {
                true => (delivered, "the durable consumer was for other subjects"),
                false => (floor, "the inbox's database lacks what was acknowledged"),
            };
            return self.go_back(&origin, (from, given), why).await;
        }
        let stored_at = stored_message::at(nats, &config.stream, floor).await?;
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &config.consumer,
            &origin.stream,
            &origin.created,
            &floor.cast_signed(),
            &term.token,
            &term.server,
            &stored_at,
            &unrecorded.cast_signed(),
        ];
        let sql = handled_up_to::write_handled(&self.schema);
        let writing = on.query_opt(&sql, &parameters);
        let written = answered(LOOKING, writing).await?.ok_or(Error::LeaseLost)?;
        pool.put(store);
        if unrecorded > 0 {
            unread_look::tell(&self.context, written.get(0)).await;
        }
        Ok(None)
    }

    /// What is acknowledged and the records know no end of. Where nobody has written down how far
    /// everything was handled, what is acknowledged may have been handled elsewhere: then how much that
    /// is, if the last of it has no record; or else how much the consumer was made anew behind. What is
    /// `gone` from the stream does not count.
    async fn unhandled(
        known: &Unhandled<'_>,
        term: Term,
        gone: u64,
    ) -> Result<(Option<u64>, u64), Error> {
        let floor = known.found.ack_floor.stream_sequence;
        let handled_to = known.handled_to(Some(term.server)).await?;
        if is_for_others(&known.found.config, known.config) {
            let left_out = left_out(&known.found.config, known.config);
            let first = handled_to.map(|it| it + 1).into_iter().chain(left_out).min();
            let delivered = known.found.delivered.stream_sequence;
            let first = first.map(|it| it.max(gone + 1)).filter(|it| *it <= delivered);
            if first.is_some() {
                return Ok((first, 0));
            }
        }
        if let Some(handled_to) = handled_to {
            return Ok(match known.first(handled_to).await? {
                Some(first) => (Some(first), 0),
                None => (None, known.passed_over(handled_to.max(gone)).await?),
            });
        }
        let is_unrecorded = known.first(floor.saturating_sub(1)).await?.is_some();
        Ok((None, if is_unrecorded { floor.saturating_sub(gone) } else { 0 }))
    }

    /// Has the consumer go back by itself.
    async fn go_back(
        &self,
        origin: &Origin,
        (from, given): (u64, u64),
        why: &str,
    ) -> Result<Option<RewindState>, Error> {
        let consumer = &self.context.config.consumer;
        let partition = vec![self.context.config.partition.cast_signed()];
        error!(consumer, from, given, "{why}: the consumer goes back to what is handled");
        self.context.tally.went_back();
        let (from, until) = (from.cast_signed(), vec![given.cast_signed()]);
        let all = None::<&str>;
        let parameters: [&(dyn ToSql + Sync); 12] = [
            consumer,
            &origin.stream,
            &origin.created,
            &from,
            &until,
            &false,
            &FOLLOWS,
            &why,
            &all,
            &all,
            &all,
            &partition,
        ];
        let sql = rewind_records::request(&self.schema);
        requested(&asked(&self.context.pool, REWINDING, &sql, &parameters).await?)
    }

    /// Ends the session by `stop` when there is a request.
    pub(super) async fn watch(&self, stop: &CancellationToken) {
        // A database that is away is reported and waited for by others.
        while !matches!(self.pending().await, Ok(Some(_))) {
            tokio::time::sleep(LOOK).await;
        }
        info!(consumer = self.context.config.consumer, "a rewind is requested");
        stop.cancel();
    }

    /// Carries out a request, or as much of it as there is time for before `shutdown`. What waiting
    /// does not mend ends the request, and not the consumer.
    pub(super) async fn carry_out(
        &mut self,
        rewind: &RewindState,
        (nats, term): (&Client, Term),
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let outcome = match self.attempt(rewind, (nats, term), shutdown).await {
            Ok(true) => "rewound".to_owned(),
            Ok(false) => return Ok(()),
            Err(error)
                if error.is_transient()
                    && (self.failures < FAILURES_MAX || self.is_deleted(nats).await) =>
            {
                return Err(error);
            }
            Err(error) => {
                let (consumer, error) = (&self.context.config.consumer, error.without_data());
                warn!(consumer, error, "the rewind is given up");
                self.given_up = Some(rewind.from_sequence);
                error
            }
        };
        self.failures = 0;
        self.execute(&rewind_records::end(&self.schema), &[&rewind.id, &outcome]).await.map(drop)
    }

    /// Whether there is no consumer, which was deleted to be made anew. Given up now, it would begin
    /// at the first message of the stream: only the request knows its place.
    async fn is_deleted(&self, nats: &Client) -> bool {
        let config = &self.context.config;
        let found = async {
            let stream = durable_consumer::stream(nats, config).await?;
            durable_consumer::find(&stream, config).await
        };
        matches!(found.await, Ok(None))
    }

    /// False if it is not done: the worker is to stop.
    async fn attempt(
        &mut self,
        rewind: &RewindState,
        (nats, term): (&Client, Term),
        shutdown: &CancellationToken,
    ) -> Result<bool, Error> {
        let config = Arc::clone(&self.context.config);
        let stream = durable_consumer::stream(nats, &config).await?;
        let created = durable_consumer::created(&stream);
        if (&rewind.stream, rewind.stream_created_at) != (&config.stream, created) {
            return Err(Error::Refused {
                problem: "the stream was made anew since the rewind was requested".into(),
                hint: "look at the plan again",
            });
        }
        let found = durable_consumer::find(&stream, &config).await?;
        let begins = |info| durable_consumer::begins_at(Some(info), rewind.from_sequence);
        let begins = found.as_ref().map(begins).map(u64::cast_signed);
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&config.consumer, &rewind.id, &begins, &term.token];
        let begun = self.execute(&rewind_records::begin(&self.schema), &parameters).await?;
        let begins = begun.map(i64::cast_unsigned).ok_or(Error::LeaseLost)?;
        let method = durable_consumer::rewind(nats, &stream, &config, begins).await;
        self.failures = if method.is_ok() { 0 } else { self.failures + 1 };
        let method = method?;
        if rewind.again && !self.remove(rewind, (nats, term), shutdown).await? {
            return Ok(false);
        }
        let (consumer, from) = (&config.consumer, rewind.from_sequence);
        info!(consumer, from, begins, ?method, again = rewind.again, "rewound the consumer");
        Ok(true)
    }

    /// Removes the records of what was processed, a few at a time.
    async fn remove(
        &self,
        rewind: &RewindState,
        (nats, term): (&Client, Term),
        shutdown: &CancellationToken,
    ) -> Result<bool, Error> {
        let config = &self.context.config;
        let stream = durable_consumer::stream(nats, config).await?;
        let origin = Origin { stream: config.stream.clone(), created: rewind.stream_created_at };
        let found = durable_consumer::find(&stream, config).await?;
        let filters = found.map(|it| filters_of(&it.config)).unwrap_or_default();
        let mut removed_to = rewind.removed_to;
        while removed_to < rewind.until_sequence {
            if shutdown.is_cancelled() {
                return Ok(false);
            }
            let next = (removed_to + READ_AT_ONCE).min(rewind.until_sequence);
            let range = (removed_to + 1, next);
            let keys = stream_range::meant(nats, &origin, &filters, range, &rewind.only).await?;
            let (ids, times): (Vec<Uuid>, Vec<Timestamp>) =
                keys.iter().filter(|it| it.2).map(|(_, it, _)| (it.id, it.event_time)).unzip();
            let (before, after) = (removed_to.cast_signed(), next.cast_signed());
            let parameters: [&(dyn ToSql + Sync); 7] =
                [&config.consumer, &ids, &times, &rewind.id, &before, &after, &term.token];
            // Nothing comes of it if the role, and the rest, are somebody else's.
            let removed = self.execute(&rewind_records::remove(&self.schema), &parameters).await?;
            removed.ok_or(Error::LeaseLost)?;
            removed_to = next;
        }
        Ok(true)
    }

    /// The first column of the row that comes of it, if one does.
    async fn execute(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<i64>, Error> {
        let rows = asked(&self.context.pool, REWINDING, sql, parameters).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}
