//! Publishing events again: what would be done, asking for it, and what became of it.

use async_nats::jetstream::stream::{RetentionPolicy, State};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use super::replay_plan::{ReplayPlan, SourceHolds};
use super::replay_target;
use super::rewind_holds::{check_log, wal_holds};
use crate::sql::Store;
use crate::whole_stream::WholeStream;
use relay::Error;
use relay::access::unless_denied;
use relay::{Config, MarkBy, Mode};
pub use relay::{ReplaySelection, ReplaySource};

const NAME: &str = "tailpost replay";

/// What is asked for.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// Which events.
    pub selection: ReplaySelection,
    /// Stands, with a dot, before each subject.
    pub subject_prefix: Option<String>,
    /// At most so many events a second.
    pub per_second: Option<u32>,
    /// Who asks.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A replay, as it is written down. Times and positions are as PostgreSQL prints them.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "the columns of tailpost_replays, which the migration explains")]
pub struct ReplayEntry {
    pub id: Uuid,
    pub slot: String,
    pub stream: String,
    /// `asked`, `running`, `paused`, `cancelled` or `done`.
    pub status: String,
    pub source: String,
    pub from_lsn: Option<String>,
    pub to_lsn: Option<String>,
    pub since: Option<String>,
    pub until: Option<String>,
    pub event_ids: Vec<Uuid>,
    pub aggregate_type: Option<String>,
    pub aggregate_id: Option<String>,
    pub event_type: Option<String>,
    pub subject_prefix: Option<String>,
    /// Why it does not get on now.
    pub waits_for: Option<String>,
    pub per_second: Option<i32>,
    pub asked_by: String,
    pub reason: String,
    pub asked_at: String,
    /// The same, to order by.
    #[serde(skip_serializing)]
    pub asked: Timestamp,
    pub started_at: Option<String>,
    pub noted_at: Option<String>,
    pub ended_at: Option<String>,
    pub decisions: serde_json::Value,
    pub events: Option<u64>,
    pub first_place: u64,
    pub last_place: u64,
    pub place: u64,
    pub published: u64,
    /// Events that could not be published again.
    pub failed: u64,
    /// Whether a relay reads the slot.
    pub has_relay: bool,
}

impl ReplayEntry {
    /// How much of how much is worked through.
    pub fn progress(&self) -> (u64, u64) {
        if self.source == ReplaySource::Wal.name() {
            // Their number is unknown.
            return (self.place, if self.has_ended() { self.place } else { 0 });
        }
        let behind = self.first_place.saturating_sub(1);
        (self.place.saturating_sub(behind), self.last_place.saturating_sub(behind))
    }

    /// Whether nothing more will be published.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "done" | "cancelled")
    }
}

/// An event that could not be published again.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Unreplayed {
    /// The event.
    pub event: Uuid,
    /// Why.
    pub reason: String,
}

/// What operators decide about a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayDecision {
    /// Publish nothing more for now.
    Pause,
    /// Go on where it was.
    Resume,
    /// Publish nothing more.
    Cancel,
}

impl ReplayDecision {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }
}

/// What would be done, in each shard, and changes nothing. Without `source` one is chosen: the stream
/// where it surely has all that is meant, otherwise the table. `prefix` stands, with a dot, before each
/// subject.
///
/// # Errors
///
/// If a server cannot be reached or something is not set up; [`Error::Conflict`] if events cannot be
/// published again as things are.
pub async fn plan_replay(
    config: &Config,
    selection: &ReplaySelection,
    source: Option<ReplaySource>,
    prefix: Option<&str>,
) -> Result<Vec<ReplayPlan>, Error> {
    if config.mode == Mode::Poll {
        let problem = "events cannot be published again with relay.mode = \"poll\": a relay that \
                       reads a slot does that";
        return Err(Error::Conflict(problem.into()));
    }
    if config.needs_fence() {
        let problem = "events cannot be published again with relay.mark = \"lean\": copies among \
                       new events need the broker's index of message ids. Set relay.mark = \"row\" \
                       until the replay is done, and run `tailpost setup`";
        return Err(Error::Conflict(problem.into()));
    }
    let mut plans = Vec::new();
    for config in config.each_shard() {
        let store = Store::patient(&config, NAME).await?;
        store.check_tables().await?;
        let (nats, link) = config.nats.connect_watched(NAME).await?;
        let target = unless_denied(&link, replay_target::look(&config, &nats, prefix)).await?;
        let consumers = replay_target::consumers(&target, &link).await;
        let (of_table, oldest) = table_holds(&config, &store, selection).await?;
        let of_stream = Box::pin(stream_holds(&config, &store, &nats, selection, oldest));
        let of_stream = unless_denied(&link, of_stream).await?;
        let of_wal = wal_holds(&config, &store, selection).await?;
        let names_few = !selection.events.is_empty() || selection.aggregate.is_some();
        let prefers_table = names_few && of_table.is_complete;
        let deletes = config.mark.by == MarkBy::Delete;
        let chosen = source.unwrap_or(match of_stream.is_complete && !prefers_table {
            true => ReplaySource::Stream,
            false if (deletes || config.wal.messages) && of_wal.is_complete => ReplaySource::Wal,
            false if deletes => ReplaySource::Stream,
            false => ReplaySource::Table,
        });
        if chosen == ReplaySource::Wal {
            check_log(&of_wal, selection)?;
        }
        let sources = vec![of_stream, of_table, of_wal];
        let events = sources.iter().find(|it| it.source == chosen.name()).and_then(|it| it.events);
        plans.push(ReplayPlan {
            slot: config.slot.clone(),
            stream: config.stream.name.clone(),
            sources,
            chosen,
            warnings: replay_target::warning(&target, events)
                .into_iter()
                .chain(consumers.clone().err())
                .collect(),
            consumers: consumers.ok(),
        });
    }
    Ok(plans)
}

async fn table_holds(
    config: &Config,
    store: &Store,
    selection: &ReplaySelection,
) -> Result<(SourceHolds, Option<Timestamp>), Error> {
    let holds = store.table_holds(selection).await?;
    let deletes = config.mark.by == MarkBy::Delete;
    let deleted_before = store.retention_row().await?.and_then(|it| it.deleted_before);
    // Of positions it is unknown whether something before them was deleted.
    let keeps_all = match (deleted_before, selection.since) {
        (None, _) if !config.wal.messages => true,
        (Some(before), Some(since)) if !config.wal.messages => since >= before,
        _ => !selection.events.is_empty() && holds.events == selection.events.len() as u64,
    };
    let note = match holds.without_position {
        _ if deletes => Some("relay.mark = \"delete\": published rows are gone".to_owned()),
        0 if config.wal.messages => Some("events of outbox_emit_wal have no row".to_owned()),
        0 => deleted_before
            .filter(|_| !keeps_all)
            .map(|before| format!("rows published before {before} may be deleted")),
        rows => Some(format!(
            "{rows} more rows have no position in this cluster's log: use --since for those"
        )),
    };
    let of_table = SourceHolds {
        source: ReplaySource::Table.name(),
        from: holds.from.map(|it| it.to_string()),
        first_sequence: None,
        from_lsn: None,
        bytes: None,
        events: Some(holds.events),
        is_exact: true,
        is_complete: !deletes && holds.without_position == 0 && keeps_all,
        note,
        places: (1, 0),
    };
    Ok((of_table, holds.from))
}

/// Where in the stream the selection lies, and whether the stream reaches back so far.
async fn stream_holds(
    config: &Config,
    store: &Store,
    nats: &async_nats::Client,
    selection: &ReplaySelection,
    oldest: Option<Timestamp>,
) -> Result<SourceHolds, Error> {
    let name = &config.stream.name;
    let tail = relay::access::TailReader::new(nats, name).await?;
    let info = tail.info().await?;
    let reader = WholeStream::new(nats, name, false).await?;
    let (first, last) = (info.state.first_sequence.max(1), info.state.last_sequence);
    let (mut from, mut to) = (first, last);
    if let Some(since) = selection.since {
        from = from.max(reader.first_since((first, last), since).await?);
    }
    if let Some(until) = selection.until {
        to = to.min(reader.first_since((first, last), until).await?.saturating_sub(1));
    }
    if let Some(lsn) = selection.from_lsn {
        let state = store.load_state(&config.slot).await?;
        from = from.max(reader.first_at((first, last), lsn, state.as_ref(), config).await?);
    }
    let keeps = info.config.retention == RetentionPolicy::Limits
        && info.config.max_messages_per_subject <= 0
        && !info.config.allow_message_ttl
        && info.state.deleted_count.unwrap_or(0) == 0;
    let reaches = first <= 1 || from > first && last >= first;
    let said = selection.since.is_some() || selection.from_lsn.is_some();
    // One that was made anew has forgotten what an earlier one of its name had.
    let created = Timestamp::from_second(info.created.unix_timestamp()).unwrap_or(Timestamp::MAX);
    let oldest = oldest.into_iter().chain(selection.since).max();
    let is_old_enough = oldest.is_none_or(|it| created <= it);
    let is_complete = keeps && is_old_enough && (first <= 1 || said && reaches);
    let is_empty = last < first;
    let messages = if is_empty || to < from { 0 } else { to - from + 1 };
    Ok(SourceHolds {
        source: ReplaySource::Stream.name(),
        from: (!is_empty).then(|| stored_at(&info.state)),
        first_sequence: (!is_empty).then_some(first),
        from_lsn: None,
        bytes: None,
        events: Some(messages),
        is_exact: false,
        is_complete,
        note: match (is_empty, is_complete) {
            (true, _) => Some("it is empty".into()),
            (false, true) => None,
            (false, false) if !keeps => Some("messages were removed from within".into()),
            (false, false) => Some("what is meant may begin before its first message".into()),
        },
        places: (from, to.max(from.saturating_sub(1))),
    })
}

/// When the stream's first message was stored.
fn stored_at(state: &State) -> String {
    let micros = i64::try_from(state.first_timestamp.unix_timestamp_nanos() / 1_000);
    let at = micros.ok().and_then(|it| Timestamp::from_microsecond(it).ok());
    at.unwrap_or(Timestamp::MAX).to_string()
}

/// Asks the relays for a replay, as [`plan_replay`] says. Returns the ids, one for each shard in which
/// there is something to do.
///
/// # Errors
///
/// As [`plan_replay`]. If one is asked for and the next cannot be, the first ones are done.
pub async fn ask_replay(
    config: &Config,
    plans: &[ReplayPlan],
    request: &ReplayRequest,
) -> Result<Vec<Uuid>, Error> {
    let mut ids = Vec::new();
    for config in config.each_shard() {
        let plan = plans.iter().find(|it| it.slot == config.slot);
        let Some((plan, source)) = plan.and_then(|it| Some((it, it.source()?))) else { continue };
        if source.events == Some(0) {
            continue;
        }
        let (store, writer) =
            (Store::connect(&config, NAME).await?, Store::connect(&config, NAME).await?);
        let asked = store.ask_replay(&writer, &config.slot, &plan.stream, source, request);
        ids.push(asked.await?);
    }
    Ok(ids)
}

/// The newest replays, of all shards; of those that were asked for before `after`, a time and an id.
///
/// # Errors
///
/// If PostgreSQL cannot be reached, or the outbox is not set up.
pub async fn replays(
    config: &Config,
    after: Option<(Timestamp, Uuid)>,
    limit: u32,
) -> Result<Vec<ReplayEntry>, Error> {
    open(config).await?.replays(None, after, limit).await
}

/// One replay, and the first `limit` events that it could not publish.
///
/// # Errors
///
/// As [`replays`], and [`Error::NoReplay`].
pub async fn replay(
    config: &Config,
    id: Uuid,
    limit: u32,
) -> Result<(ReplayEntry, Vec<Unreplayed>), Error> {
    let store = open(config).await?;
    let entry = store.replays(Some(id), None, 1).await?.pop();
    let entry = entry.ok_or(Error::NoReplay { id })?;
    Ok((entry, store.unreplayed(id, limit).await?))
}

/// Pauses, resumes or cancels a replay, and writes down who did. The relay heeds it within a second.
///
/// # Errors
///
/// As [`replay`], and [`Error::Conflict`] if the replay is in no state for that.
pub async fn decide_replay(
    config: &Config,
    id: Uuid,
    decision: ReplayDecision,
    by: &str,
    why: Option<&str>,
) -> Result<ReplayEntry, Error> {
    let store = open(config).await?;
    let is_done = store.decide_replay(id, decision, by, why).await?;
    if is_done && decision == ReplayDecision::Cancel {
        while store.forget_listed(id).await? {}
    }
    let (entry, _) = replay(config, id, 0).await?;
    if !is_done {
        let (status, decision) = (&entry.status, decision.name());
        let problem = format!("replay {id} is {status}: nothing there is to {decision}");
        return Err(Error::Conflict(problem));
    }
    Ok(entry)
}

async fn open(config: &Config) -> Result<Store, Error> {
    let store = Store::brief(config, "tailpost replays").await?;
    store.check_tables().await?;
    Ok(store)
}
