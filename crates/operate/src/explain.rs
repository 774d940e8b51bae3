//! What became of one event, from its row to the stream.

pub mod consumer_story;

use std::time::Duration;

use jiff::Timestamp;
use outbox::wire::{Position, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use super::dead_letters::AuditEntry;
use super::dead_letters::outbox_letters::DeadLetter;
use crate::sql::KnownEvent;
use crate::sql::Store;
pub use crate::sql::{ReplayOutcome, ReplayStory};
use relay::Config;
use relay::Error;
use relay::access::direct_get;
use relay::describe;

/// How long the broker may take: the rest is told without it.
const BROKER_MAX: Duration = Duration::from_secs(2);

/// What is known about an event. Times are as PostgreSQL prints them; payloads are left out.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Explanation {
    /// The event.
    pub id: Uuid,
    /// Its row, unless that was deleted or never committed.
    pub row: Option<RowStory>,
    /// Its dead letter, if there is one.
    pub dead_letter: Option<DeadLetter>,
    /// What was done to it as a dead letter, in order.
    pub decisions: Vec<AuditEntry>,
    /// What the stream has at its place, if a place is known.
    pub message: Option<MessageStory>,
    /// The newest replays that meant it, the newest first.
    pub replays: Vec<ReplayStory>,
    /// What could not be found out, and why.
    pub notes: Vec<String>,
}

impl Explanation {
    /// Whether nothing is known of the event.
    pub fn is_empty(&self) -> bool {
        self.row.is_none()
            && self.dead_letter.is_none()
            && self.decisions.is_empty()
            && self.message.is_none()
            && self.replays.is_empty()
    }
}

/// A row of the outbox.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RowStory {
    /// `PENDING`, `RETRYING` or `PUBLISHED`.
    pub status: String,
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// Its aggregate.
    pub aggregate_id: String,
    /// Its type.
    pub event_type: String,
    /// When it happened, by its producer.
    pub occurred_at: Option<String>,
    /// The transaction that inserted it.
    pub transaction: Option<String>,
    /// Its number in the order of insertion.
    pub seq: Option<i64>,
    /// Attempts to publish it that failed.
    pub attempts: i32,
    /// Why the last one failed, or why it is not published.
    pub error: Option<String>,
    /// When it is tried next.
    pub next_attempt_at: Option<String>,
    /// When it was marked as published.
    pub published_at: Option<String>,
    /// Where its transaction committed in the log, if the log brought it.
    pub commit_lsn: Option<String>,
    /// The stream that has it.
    pub stream: Option<String>,
    /// As which sequence.
    pub stream_seq: Option<i64>,
}

/// A message of the stream.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MessageStory {
    /// The stream.
    pub stream: String,
    /// Its sequence there.
    pub seq: u64,
    /// Its subject.
    pub subject: String,
    /// When the stream stored it.
    pub stored_at: String,
    /// Where its row was in the log: `Tailpost-Position`.
    pub position: Option<String>,
    /// `wal` if it never had a row: `Tailpost-Source`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Looks in the outbox, among the dead letters and in the stream. `place` is where a consumer's
/// record has the event, for one whose row is gone.
///
/// # Errors
///
/// If PostgreSQL refuses or cannot be reached, or the outbox is not set up. What the broker does not
/// say is left out, and a note says so.
pub async fn explain(
    config: &Config,
    id: Uuid,
    place: Option<(String, u64)>,
) -> Result<Explanation, Error> {
    let store = Store::brief(config, "tailpost explain").await?;
    store.check_tables().await?;
    let row = store.explain_row(id).await?;
    let dead_letter = store.dead_letter(id).await?;
    let decisions = store.audit_entries(id).await?;
    let mut notes = Vec::new();
    let marked = row.as_ref().and_then(|row| {
        Some((row.stream.clone()?, row.stream_seq.and_then(|it| u64::try_from(it).ok())?))
    });
    let message = match marked.or(place) {
        Some((stream, seq)) => look_for(config, id, (&stream, seq), &mut notes).await,
        None => {
            if row.as_ref().is_none_or(|row| row.status == "PUBLISHED") {
                notes.push("nothing says where the stream has it, if it has it".into());
            }
            if row.is_none() && config.wal.messages {
                notes.push(
                    "an event of outbox_emit_wal has no row: once it is published only the stream \
                     has it, and the inbox that processed it"
                        .into(),
                );
            }
            None
        }
    };
    let known = known(id, row.as_ref(), dead_letter.as_ref(), message.as_ref());
    let replays = match store.replays_of(&known).await {
        Ok(replays) => replays,
        Err(error) => {
            notes.push(format!("replays cannot be looked for: {}", describe(&error)));
            Vec::new()
        }
    };
    Ok(Explanation { id, row, dead_letter, decisions, message, replays, notes })
}

/// The message, if the broker says in time that it is there.
async fn look_for(
    config: &Config,
    id: Uuid,
    (stream, seq): (&str, u64),
    notes: &mut Vec<String>,
) -> Option<MessageStory> {
    let why = match timeout(BROKER_MAX, message(config, id, stream, seq)).await {
        Ok(Ok(Ok(message))) => return Some(message),
        Ok(Ok(Err(why))) => why,
        Ok(Err(error)) => format!("the broker cannot be asked: {}", describe(&error)),
        Err(_) => format!("the broker cannot be asked: no answer within {BROKER_MAX:?}"),
    };
    notes.push(why);
    None
}

/// What replays' selections are compared with.
fn known(
    id: Uuid,
    row: Option<&RowStory>,
    dead: Option<&DeadLetter>,
    message: Option<&MessageStory>,
) -> KnownEvent {
    let of_row = row.map(|it| (&it.aggregate_type, &it.aggregate_id, &it.event_type));
    let of_dead = dead.map(|it| (&it.aggregate_type, &it.aggregate_id, &it.event_type));
    let of = of_row.or(of_dead);
    let marked_at = row.and_then(|it| it.published_at.as_deref()?.parse::<Timestamp>().ok());
    let stored_at = message.and_then(|it| it.stored_at.parse::<Timestamp>().ok());
    let position = message.and_then(|it| it.position.as_deref()?.parse::<Position>().ok());
    let commit_lsn = row.and_then(|it| it.commit_lsn.as_deref()?.parse::<PgLsn>().ok());
    KnownEvent {
        id,
        has_row: row.is_some(),
        aggregate: of.map(|(of_type, of, _)| (of_type.clone(), of.clone())),
        event_type: of.map(|(.., event_type)| event_type.clone()),
        published_at: marked_at.or(stored_at),
        commit_lsn: commit_lsn.or(position.map(|it| it.lsn.into())),
    }
}

/// The message, or why it is not there.
async fn message(
    config: &Config,
    id: Uuid,
    stream: &str,
    seq: u64,
) -> Result<Result<MessageStory, String>, Error> {
    let client = config.nats.connect("tailpost explain").await?;
    let answer = direct_get::read(&client, stream, seq).await?;
    let Some(message) = answer.message()? else {
        return Ok(Err(format!("stream {stream} has message {seq} no more")));
    };
    let headers = message.headers();
    let text = |name: &str| {
        headers.get(name).and_then(|it| std::str::from_utf8(it).ok()).map(str::to_owned)
    };
    let is_its = [header::EVENT_ID, header::MSG_ID]
        .into_iter()
        .any(|name| text(name).is_some_and(|it| it.parse() == Ok(id)));
    if !is_its {
        return Ok(Err(format!("message {seq} of stream {stream} is another event's")));
    }
    Ok(Ok(MessageStory {
        stream: stream.to_owned(),
        seq: message.sequence,
        subject: message.subject.to_string(),
        stored_at: message.time.to_string(),
        // Another event's, if it came from the table.
        position: text(header::POSITION).filter(|_| text(header::POSITION_EVENT).is_none()),
        source: text(header::SOURCE),
    }))
}
