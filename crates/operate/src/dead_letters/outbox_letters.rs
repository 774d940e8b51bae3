//! Finding and mending events that could not be published.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Action, Actor, Aggregate, AuditEntry, Filter, ambiguity, etag};
use crate::sql::Store;
use relay::Config;
use relay::Error;

/// An event that could not be published. Its payload is left out on purpose.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OutboxDeadLetter")]
pub struct DeadLetter {
    /// The event's id, and its `Nats-Msg-Id`.
    pub id: Uuid,
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// Its aggregate.
    pub aggregate_id: String,
    /// Its type.
    pub event_type: String,
    /// The version of its type.
    pub event_version: Option<i32>,
    /// When it happened.
    pub occurred_at: Option<Timestamp>,
    /// When it was parked.
    pub dead_at: Timestamp,
    /// Why.
    pub reason: String,
    /// Attempts to publish it; none if it only waits for another.
    pub attempts: Option<i32>,
    /// Later events of its aggregate wait.
    pub blocks: bool,
    /// Nothing is wrong with it: it waits for this one.
    pub blocked_by: Option<Uuid>,
    /// When it was discarded.
    pub discarded_at: Option<Timestamp>,
    /// The shard that publishes it once it is requeued, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<i64>,
    /// Its number in the order of insertion; only from the database.
    #[serde(skip)]
    pub seq: i64,
}

/// Where a dead letter is in a list: since when it is dead, its number, and its id.
pub type LetterPlace = (Timestamp, i64, Uuid);

impl DeadLetter {
    /// Where it is in a list.
    #[must_use]
    pub fn place(&self) -> LetterPlace {
        (self.dead_at, self.seq, self.id)
    }
}

/// A rejection is an answer to the broker, which an unpublished event does not have.
pub const NOT_REJECTED: &str = "only dead letters of an inbox can be rejected";

/// What a list shows, and what a plan is.
pub type Overview = super::Overview<DeadLetter>;

/// What became of one event.
pub type DeadLetterDetail = super::DeadLetterDetail<DeadLetter>;

/// The dead letters of an outbox. One connection to its database.
///
/// Every change is one statement: it happens whole, with its audit row, or not at all.
pub struct DeadLetters {
    store: Store,
}

impl DeadLetters {
    /// Connects to the outbox's database.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or [`Error::NotSetUp`].
    pub async fn connect(config: &Config) -> Result<Self, Error> {
        // As long as the server is at it, for locks of others too.
        let store = Store::patient(config, "tailpost dlq").await?;
        store.check_tables().await?;
        Ok(Self { store })
    }

    /// Has the server end statements that take longer, also while they wait for a lock.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses or cannot be reached.
    pub async fn bounded(self, max: Duration) -> Result<Self, Error> {
        let sql = format!("SET statement_timeout = {}", max.as_millis());
        self.store.batch_execute("bound statements", &sql).await?;
        Ok(self)
    }

    /// What matches: how many, why, and the newest, at most `limit`, of those behind
    /// `after`.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses or cannot be reached, as with all methods here.
    pub async fn overview(
        &self,
        filter: &Filter,
        after: Option<LetterPlace>,
        limit: u32,
    ) -> Result<Overview, Error> {
        let (total, oldest_seconds) = self.store.count_dead_letters(filter).await?;
        Ok(Overview {
            total,
            oldest_seconds,
            groups: self.store.dead_letter_groups(filter).await?,
            dead_letters: self.store.dead_letters(filter, after, limit).await?,
            next: None,
        })
    }

    /// What became of an event that is, or was, a dead letter.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeadLetter`] if it never was one.
    pub async fn detail(&self, id: Uuid, with_payload: bool) -> Result<DeadLetterDetail, Error> {
        let dead_letter = self.store.dead_letter(id).await?;
        let history = self.store.audit_entries(id).await?;
        if dead_letter.is_none() && history.is_empty() {
            return Err(Error::NoDeadLetter { id });
        }
        let row = self.store.outbox_row(id).await?;
        let state = match (&dead_letter, &row) {
            (Some(dead), _) if dead.discarded_at.is_some() => "discarded",
            (Some(_), _) => "dead",
            (None, Some((Some(_), ..))) => "published",
            (None, Some(_)) => "pending",
            (None, None) if self.store.marks_by_deleting() && was_put_back(&history) => "published",
            (None, None) => "gone",
        };
        let open = dead_letter.as_ref().filter(|it| it.discarded_at.is_none());
        let tag = open.map(|it| etag(it.dead_at));
        let mut detail = DeadLetterDetail::new(id, dead_letter, state, history);
        detail.etag = tag;
        (detail.published_at, detail.stream, detail.stream_seq) = row.unwrap_or_default();
        (detail.payload_bytes, detail.waiting) = self.store.weight(id).await?.unzip();
        let carried = if with_payload { self.store.carried(id).await? } else { None };
        Ok(match carried {
            Some((headers, payload)) => detail.carrying(headers, &payload),
            None => detail,
        })
    }

    /// Puts an event back into the outbox; a relay publishes it within its `scan_interval`, with the
    /// same id, and the payload given here, if any. Only if it is dead since `dead_at`, if that is given.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeadLetter`], or [`Error::Conflict`] if the event is published already, or waits
    /// for another one that should go first.
    pub async fn requeue(
        &self,
        id: Uuid,
        payload: Option<&str>,
        dead_at: Option<Timestamp>,
        actor: &Actor,
    ) -> Result<(), Error> {
        let dead = self.store.dead_letter(id).await?;
        let is_meant = |it: &DeadLetter| {
            it.discarded_at.is_none() && dead_at.is_none_or(|at| at == it.dead_at)
        };
        let dead = dead.filter(is_meant).ok_or(Error::NoDeadLetter { id })?;
        if let Some((Some(at), stream, seq)) = self.store.outbox_row(id).await? {
            let stream = stream.unwrap_or_else(|| "the stream".into());
            let seq = seq.map_or_else(|| "an unknown sequence".into(), |seq| seq.to_string());
            return Err(Error::Conflict(format!(
                "event {id} is published already, in {stream} as {seq}, at {at}: discard the \
                 dead letter"
            )));
        }
        if let Some(by) = dead.blocked_by
            && self.is_dead(by).await?
        {
            let aggregate = Aggregate { kind: dead.aggregate_type, id: dead.aggregate_id };
            return Err(Error::Conflict(format!(
                "event {id} waits for {by}, an earlier event of its aggregate: mend that one, and \
                 this one follows by itself; or requeue --aggregate {aggregate}"
            )));
        }
        if self.store.requeue(id, payload, dead_at, actor).await? {
            return Ok(());
        }
        Err(Error::NoDeadLetter { id })
    }

    /// Records that its payload is read.
    ///
    /// # Errors
    ///
    /// See [`overview`](Self::overview).
    pub async fn note_reading(&self, id: Uuid, actor: &Actor) -> Result<(), Error> {
        self.store.note_reading(id, actor).await
    }

    async fn is_dead(&self, id: Uuid) -> Result<bool, Error> {
        let dead = self.store.dead_letter(id).await?;
        Ok(dead.is_some_and(|it| it.discarded_at.is_none()))
    }

    /// Puts all dead letters of an aggregate back, in one step; they are published in order. Returns
    /// how many.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if several aggregates are written so.
    pub async fn requeue_aggregate(
        &self,
        aggregate: &Aggregate,
        actor: &Actor,
    ) -> Result<u64, Error> {
        let filter = Filter { aggregate: Some(aggregate.clone()), ..Filter::default() };
        match &self.store.dead_aggregates(&filter).await?[..] {
            [] => Ok(0),
            [one] => self.store.requeue_aggregate(one, actor).await,
            several => Err(Error::Conflict(ambiguity(several).unwrap_or_default())),
        }
    }

    /// Takes an event off the list, for good: it is never published. Events that wait for it follow
    /// without it. Only if it is dead since `dead_at`, if that is given.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeadLetter`].
    pub async fn discard(
        &self,
        id: Uuid,
        dead_at: Option<Timestamp>,
        actor: &Actor,
    ) -> Result<(), Error> {
        let done = self.store.discard(id, dead_at, actor).await?;
        done.then_some(()).ok_or(Error::NoDeadLetter { id })
    }
}

impl super::Store for DeadLetters {
    type Error = Error;
    type Place = (i64, Uuid);
    const AT_ONCE: u32 = 1;

    async fn aggregates(&self, filter: &Filter) -> Result<Vec<(String, String)>, Error> {
        self.store.dead_aggregates(filter).await
    }

    async fn count(&self, filter: &Filter) -> Result<(u64, Timestamp), Error> {
        let until = self.store.clock().await?;
        Ok((self.store.count_dead_letters(filter).await?.0, until))
    }

    /// In order of insertion.
    async fn page(
        &self,
        filter: &Filter,
        until: Timestamp,
        after: Option<&Self::Place>,
        limit: u32,
    ) -> Result<Vec<Self::Place>, Error> {
        let after = after.copied().unwrap_or((i64::MIN, Uuid::nil()));
        self.store.dead_letter_ids(filter, until, after, limit).await
    }

    async fn decide(
        &self,
        action: Action,
        _: &Filter,
        page: &[Self::Place],
        actor: &Actor,
    ) -> Result<(usize, Option<String>), Error> {
        for (_, id) in page {
            let decided = match action {
                Action::Requeue => self.requeue(*id, None, None, actor).await,
                Action::Discard => self.discard(*id, None, actor).await,
                Action::Reject => Err(Error::Conflict(NOT_REJECTED.into())),
            };
            match decided {
                Err(error @ (Error::NoDeadLetter { .. } | Error::Conflict(_))) => {
                    return Ok((0, Some(error.to_string())));
                }
                decided => decided?,
            }
        }
        Ok((page.len(), None))
    }
}

/// Whether the last that was decided about it is that it goes to the stream.
fn was_put_back(history: &[AuditEntry]) -> bool {
    let last = history.iter().rfind(|entry| entry.action != "found");
    last.is_some_and(|entry| matches!(entry.action.as_str(), "requeue" | "release"))
}
