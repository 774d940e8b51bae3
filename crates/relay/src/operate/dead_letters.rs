//! Finding and mending events that could not be published.

use std::time::Duration;

use jiff::Timestamp;
use outbox::dead_letters::GROUPS_MAX;
pub use outbox::dead_letters::{Aggregate, Filter, GROUPED_MAX, Group, Progress};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::Config;
use crate::error::Error;
use crate::postgres::{Opening, Store};

/// Dead letters looked up at a time while many are worked through.
const AT_ONCE: u32 = 10_000;

/// An event that could not be published. Its payload is left out on purpose.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
}

/// What a list shows, and what a plan is.
pub type Overview = outbox::dead_letters::Overview<DeadLetter>;

/// What became of one event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Story {
    /// The dead letter, if it is one.
    pub dead_letter: Option<DeadLetter>,
    /// `dead`, `discarded`, `pending`, `published`, or `gone`. With `relay.mark = "delete"` also
    /// `published` if its row is gone after it was put back: then nothing says when and where.
    pub state: String,
    /// When the outbox's row was marked as published.
    pub published_at: Option<Timestamp>,
    /// Where.
    pub stream: Option<String>,
    /// As which sequence.
    pub stream_seq: Option<i64>,
    /// What was done to it, in order.
    pub history: Vec<Deed>,
    /// The payload, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The headers, if the payload was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<String>,
}

/// Something that was done to a dead letter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Deed {
    /// When.
    pub at: Timestamp,
    /// `requeue`, `release`, `discard`, `purge`, or `found`.
    pub action: String,
    /// By whom.
    pub actor: String,
    /// Through what: `http`, `cli`, or `relay`.
    pub via: String,
    /// What for.
    pub why: Option<String>,
    /// Why it was a dead letter.
    pub reason: Option<String>,
    /// Its payload was replaced; the audit keeps the old one.
    pub payload_replaced: bool,
}

/// Who does something, for the audit.
#[derive(Debug, Clone)]
pub struct Author {
    /// A name.
    pub name: String,
    /// `http` or `cli`.
    pub via: String,
    /// What for.
    pub why: Option<String>,
}

/// What is done to many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Publish them after all.
    Requeue,
    /// Take them off the list.
    Discard,
}

/// The dead letters of an outbox. One connection to its database.
///
/// Every change is one statement: it happens whole, with its audit row, or not at all.
pub struct DeadLetters {
    store: Store,
    opening: Opening,
}

impl DeadLetters {
    /// Connects to the outbox's database.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or [`Error::NotSetUp`].
    pub async fn connect(config: &Config) -> Result<Self, Error> {
        let store = Store::connect(config, "tailpost dlq").await?;
        let dead_letters = Self { store, opening: Opening::unobserved(config) };
        dead_letters.ask(dead_letters.store.check_tables()).await?;
        Ok(dead_letters)
    }

    /// Has the server end statements that take longer, also while they wait for a lock.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses or cannot be reached.
    pub async fn bounded(self, max: Duration) -> Result<Self, Error> {
        let sql = format!("SET statement_timeout = {}", max.as_millis());
        self.ask(async {
            let set = self.store.client().batch_execute(&sql).await;
            set.map_err(Error::sql("bound statements"))
        })
        .await?;
        Ok(self)
    }

    /// Waits as long as the server is at it, for locks of others too.
    async fn ask<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.opening.on(&self.store, "work on the dead letters", work).await
    }

    /// What matches: how many, why, and the newest, at most `limit`.
    ///
    /// # Errors
    ///
    /// If PostgreSQL refuses or cannot be reached, as with all methods here.
    pub async fn overview(&self, filter: &Filter, limit: u32) -> Result<Overview, Error> {
        let (total, oldest_seconds) = self.ask(self.store.count_dead_letters(filter)).await?;
        Ok(Overview {
            total,
            oldest_seconds,
            groups: self.ask(self.store.dead_letter_groups(filter, GROUPS_MAX)).await?,
            dead_letters: self.ask(self.store.dead_letters(filter, limit)).await?,
        })
    }

    /// What became of an event that is, or was, a dead letter.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeadLetter`] if it never was one.
    pub async fn story(&self, id: Uuid, with_payload: bool) -> Result<Story, Error> {
        let dead_letter = self.ask(self.store.dead_letter(id)).await?;
        let history = self.ask(self.store.deeds(id)).await?;
        if dead_letter.is_none() && history.is_empty() {
            return Err(Error::NoDeadLetter { id });
        }
        let row = self.ask(self.store.outbox_row(id)).await?;
        let state = match (&dead_letter, &row) {
            (Some(dead), _) if dead.discarded_at.is_some() => "discarded",
            (Some(_), _) => "dead",
            (None, Some((Some(_), ..))) => "published",
            (None, Some(_)) => "pending",
            (None, None) if self.store.marks_by_deleting() && was_put_back(&history) => "published",
            (None, None) => "gone",
        };
        let (published_at, stream, stream_seq) = row.unwrap_or_default();
        let shown = if with_payload { self.ask(self.store.shown_payload(id)).await? } else { None };
        let (payload, headers) = shown.map_or((None, None), |(payload, it)| (Some(payload), it));
        let state = state.to_owned();
        Ok(Story {
            dead_letter,
            state,
            published_at,
            stream,
            stream_seq,
            history,
            payload,
            headers,
        })
    }

    /// Puts an event back into the outbox; a relay publishes it within its `scan_interval`, with the
    /// same id, and the payload given here, if any.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeadLetter`], or [`Error::Conflict`] if the event is published already, or waits
    /// for another one that should go first.
    pub async fn requeue(
        &self,
        id: Uuid,
        payload: Option<&str>,
        author: &Author,
    ) -> Result<(), Error> {
        let dead = self.ask(self.store.dead_letter(id)).await?;
        let dead = dead.filter(|it| it.discarded_at.is_none()).ok_or(Error::NoDeadLetter { id })?;
        if let Some((Some(at), stream, seq)) = self.ask(self.store.outbox_row(id)).await? {
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
        if self.ask(self.store.requeue(id, payload, author)).await? {
            return Ok(());
        }
        Err(Error::NoDeadLetter { id })
    }

    async fn is_dead(&self, id: Uuid) -> Result<bool, Error> {
        let dead = self.ask(self.store.dead_letter(id)).await?;
        Ok(dead.is_some_and(|it| it.discarded_at.is_none()))
    }

    /// Puts all dead letters of an aggregate back, in one step; they are published in order. Returns
    /// how many.
    ///
    /// # Errors
    ///
    /// See [`overview`](Self::overview).
    pub async fn requeue_aggregate(
        &self,
        aggregate: &Aggregate,
        author: &Author,
    ) -> Result<u64, Error> {
        self.ask(self.store.requeue_aggregate(aggregate, author)).await
    }

    /// Takes an event off the list, for good: it is never published. Events that wait for it follow
    /// without it.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeadLetter`].
    pub async fn discard(&self, id: Uuid, author: &Author) -> Result<(), Error> {
        if self.ask(self.store.discard(id, author)).await? {
            Ok(())
        } else {
            Err(Error::NoDeadLetter { id })
        }
    }

    /// Works through everything that matches now, in order of insertion, at most `rate` a second.
    /// Tells how far it got; stops between two events when `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// See [`overview`](Self::overview). What is refused for a single event is counted and skipped.
    pub async fn work_through(
        &self,
        action: Action,
        filter: &Filter,
        rate: Option<u32>,
        author: &Author,
        progress: &watch::Sender<Progress>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let until = self.ask(self.store.server_time()).await?;
        let total = self.ask(self.store.count_dead_letters(filter)).await?.0;
        progress.send_modify(|it| it.total = total);
        let pause = Duration::from_secs(1) / rate.unwrap_or(u32::MAX).max(1);
        let mut pace = tokio::time::interval(pause.max(Duration::from_nanos(1)));
        let mut after = (i64::MIN, Uuid::nil());
        loop {
            let ids = self.ask(self.store.dead_letter_ids(filter, until, after, AT_ONCE)).await?;
            let is_last = ids.len() < AT_ONCE as usize;
            for (place, id) in ids {
                if stop.is_cancelled() {
                    progress.send_modify(|it| (it.cancelled, it.ended) = (true, true));
                    return Ok(());
                }
                if rate.is_some() {
                    pace.tick().await;
                }
                after = place;
                let outcome = match action {
                    Action::Requeue => self.requeue(id, None, author).await,
                    Action::Discard => self.discard(id, author).await,
                };
                match outcome {
                    Ok(()) => progress.send_modify(|it| it.done += 1),
                    Err(error @ (Error::NoDeadLetter { .. } | Error::Conflict(_))) => progress
                        .send_modify(|it| {
                            it.skipped += 1;
                            it.last_refusal = Some(error.to_string());
                        }),
                    Err(error) => return Err(error),
                }
            }
            if is_last {
                progress.send_modify(|it| it.ended = true);
                return Ok(());
            }
        }
    }
}

/// Whether the last that was decided about it is that it goes to the stream.
fn was_put_back(history: &[Deed]) -> bool {
    let last = history.iter().rfind(|deed| deed.action != "found");
    last.is_some_and(|deed| matches!(deed.action.as_str(), "requeue" | "release"))
}
