//! The end of the stream, read through its leader.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Info, State};
use futures_util::{StreamExt, TryStreamExt, stream};
use outbox::wire::{StoredMessage, header, replayed_id};
use pgoutput::Lsn;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tracing::info;
use uuid::Uuid;

use super::direct_get;
use super::leave_server;
use super::limits::Limits;
use super::reading_pace::{Pace, READS_IN_FLIGHT};
use super::suspects::{self, Judge, Suspect};
use crate::engine::{LastEvent, Stored, Tail, TailMessage};
use crate::error::Error;

/// Requests for messages that are kept whole under way at a time.
pub(crate) const WHOLE_AT_ONCE: usize = 16;
/// Messages read at a time on the way back.
const CHUNK: usize = 512;

/// Sequences of messages that were removed from within are asked for if they are no more than this: all
/// come in one answer. Beyond, only their number is known.
const DELETED_MAX: u64 = 100_000;

/// The furthest way back of a session: more than any relay leaves unconfirmed, little enough to
/// hold.
pub(crate) const WAY_BACK_MAX: u64 = 1_000_000;

/// Events that are looked for in one reading of the whole stream: what is kept of them is 16 bytes each.
pub(crate) const SOUGHT_AT_ONCE: usize = 200_000;

/// Reads the stream's newest messages.
///
/// Always `STREAM.INFO` and `STREAM.MSG.GET`, which the stream's leader answers. Direct Get may be
/// answered by a replica or a mirror that lags, and a stale tail would let a stored event be
/// published again.
#[derive(Clone)]
pub struct TailReader {
    pub(super) client: Client,
    name: String,
    jetstream: Context,
    limits: Arc<watch::Sender<Limits>>,
    /// When the stream was created that was asked first.
    created: Arc<OnceLock<SystemTime>>,
    /// Tells a reading under way that its connection was replaced.
    replaced: Arc<Notify>,
    /// Without it every message is the event's whose id it has.
    judge: Option<Judge>,
}

/// What the leader tells of the stream.
#[derive(Deserialize)]
struct Answer {
    #[serde(flatten)]
    info: Info,
    #[serde(default)]
    domain: String,
}

/// How far back a session has to look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WayBack {
    /// Events committed before this are resolved.
    pub(crate) resolved_before: Lsn,
    pub(crate) system_id: u64,
    /// So many messages from before `resolved_before` may lie among later ones: an event may be
    /// overtaken by at most the rest of its window, in fenced mode when others write in between.
    pub(crate) overtaken_max: usize,
    /// Read at least so many messages.
    pub(crate) at_least: u64,
    /// And no more than so many.
    pub(crate) at_most: u64,
}

impl TailReader {
    /// Looks the stream up.
    pub async fn new(client: &Client, stream: &str) -> Result<Self, Error> {
        let (name, jetstream) = (stream.to_owned(), servers::jetstream_of(client));
        let limits = Arc::new(watch::Sender::new(Limits::default()));
        let replaced = Arc::new(Notify::new());
        let (client, created) = (client.clone(), Arc::default());
        Ok(Self { client, name, jetstream, limits, created, replaced, judge: None })
    }

    /// The same, which takes no other writer's message for an event whose id it has.
    pub(crate) fn judged_by(self, judge: Judge) -> Self {
        Self { judge: Some(judge), ..self }
    }

    /// Leaves the server that this reads through for another one of its cluster, if one is known.
    pub(crate) async fn leave_server(&self) {
        leave_server(&self.client).await;
    }

    /// The stream's configuration and state, as its leader knows them.
    ///
    /// Without a leader a replica answers for itself, and may lack what others have stored: that is
    /// an error here.
    pub async fn info(&self) -> Result<Info, Error> {
        self.info_with(&Value::Null).await
    }

    async fn info_with(&self, details: &Value) -> Result<Info, Error> {
        let doing = "read the stream's state";
        let answer = self.jetstream.request(format!("STREAM.INFO.{}", self.name), details);
        let Answer { info, domain } = match answer.await.map_err(Error::jetstream(doing))? {
            Response::Ok(answer) => answer,
            Response::Err { error } => return Err(Error::jetstream(doing)(error)),
        };
        let cluster = info.cluster.as_ref();
        if cluster.is_some_and(|it| it.leader.as_ref().is_none_or(String::is_empty)) {
            return Err(Error::JetStream { doing, source: "it has no leader now".into() });
        }
        let limits = Limits::of(&info.config, domain);
        self.limits.send_if_modified(|known| std::mem::replace(known, limits.clone()) != limits);
        self.created.get_or_init(|| SystemTime::from(info.created));
        Ok(info)
    }

    /// Whether the stream was made anew since it was asked first.
    pub(crate) fn is_another(&self, info: &Info) -> bool {
        self.created.get().is_some_and(|it| *it != SystemTime::from(info.created))
    }

    /// The stream's limits, as they were whenever it was asked for its state.
    pub(crate) fn limits(&self) -> watch::Receiver<Limits> {
        self.limits.subscribe()
    }

    /// The connection was replaced: requests on the former one may never be answered.
    pub(crate) fn connection_replaced(&self) {
        self.replaced.notify_waiters();
    }

    /// Everything from sequence `from` to the end, after waiting for `delay`. A reading whose
    /// connection was replaced begins again, rather than wait for answers. `event` is the last one that is
    /// known to be stored.
    pub(crate) async fn since(
        &self,
        from: u64,
        system_id: u64,
        delay: Duration,
        event: Option<LastEvent>,
    ) -> Result<Tail, Error> {
        tokio::time::sleep(delay).await;
        let read = || async {
            let is_replaced = self.is_replaced(event).await?;
            let mut tail = self.read_since(from, system_id).await?;
            tail.is_other |= is_replaced;
            Ok(Tail { known_seq: event.map_or(0, |it| it.seq), ..tail })
        };
        loop {
            tokio::select! {
                read = read() => return read,
                () = self.replaced.notified() => {}
            }
        }
    }

    /// Others may have written any number of messages since `from`: of those the newest are enough.
    async fn read_since(&self, from: u64, system_id: u64) -> Result<Tail, Error> {
        let info = self.info().await?;
        let is_other = self.is_another(&info);
        let Info { state, config, .. } = info;
        let last_seq = state.last_sequence;
        let floor = state.first_sequence.max(last_seq.saturating_sub(WAY_BACK_MAX)).max(1);
        let mut tail = Tail { is_other, ..Tail::ending_at(last_seq) };
        tail.refuses_batches = !config.allow_batch_publish;
        let mut pace = Pace::new(&state);
        let first = from.max(floor);
        for from in (first..=last_seq).step_by(CHUNK) {
            tail.add(system_id, self.chunk(from, last_seq, &mut pace).await?);
        }
        self.are_removed(first, (last_seq + 1).saturating_sub(first + tail.read as u64)).await?;
        Ok(tail)
    }

    /// Everything that may be there of what the log will bring again. Also says whether it is
    /// everything that ever was there: nothing was deleted, nothing was too far back.
    pub(crate) async fn all_back_to(&self, way: WayBack) -> Result<(Tail, bool), Error> {
        let Info { state, config, .. } = self.info().await?;
        let last_seq = state.last_sequence;
        let floor = state.first_sequence.max(last_seq.saturating_sub(way.at_most)).max(1);
        let mut tail = Tail::ending_at(last_seq);
        tail.has_markers = config.subject_delete_marker_ttl.is_some();
        let mut pace = Pace::new(&state);
        let mut overtaken = 0;
        let (mut to, mut is_reached) = (last_seq, floor <= 1);
        while to >= floor {
            let from = to.saturating_sub(CHUNK as u64 - 1).max(floor);
            let chunk = self.range(from, to, &mut pace).await?;
            overtaken += chunk.iter().filter(|it| is_before(it, way)).count();
            tail.add(way.system_id, chunk);
            to = from - 1;
            if overtaken > way.overtaken_max && last_seq - to >= way.at_least {
                is_reached = true;
                break;
            }
        }
        let missing = last_seq - to - tail.read as u64;
        self.are_removed(to + 1, missing).await?;
        Ok((tail, is_reached && missing == 0))
    }

    /// A server that leads since just now, or no more, may lack messages that the leader has told of. They
    /// would be stored again: that so many are `missing` from sequence `first` on has to be the stream's
    /// doing.
    async fn are_removed(&self, first: u64, missing: u64) -> Result<(), Error> {
        if missing == 0 {
            return Ok(());
        }
        // Now: some may have been removed while they were asked for.
        let mut state = self.info().await?.state;
        if state.deleted_count.is_some_and(|it| (1..=DELETED_MAX).contains(&it)) {
            state = self.info_with(&json!({ "deleted_details": true })).await?.state;
        }
        if missing <= removed_from(first, &state) {
            return Ok(());
        }
        let source = "a server lacks messages of the stream: its leader changes".into();
        Err(Error::JetStream { doing: "read the stream's end", source })
    }

    /// Where the stream has any of the events `sought`, wherever that is: reads all of it, from the
    /// oldest message on, until nothing is sought any more.
    pub(crate) async fn find(&self, mut sought: HashSet<Uuid>) -> Result<Vec<Stored>, Error> {
        let mut found = Vec::new();
        if sought.is_empty() {
            return Ok(found);
        }
        let state = self.info().await?.state;
        info!(
            sought = sought.len(),
            messages = state.messages,
            "reading the whole stream for rows that were marked, and are not any more"
        );
        let last_seq = state.last_sequence;
        let mut pace = Pace::new(&state);
        for from in (state.first_sequence.max(1)..=last_seq).step_by(CHUNK) {
            if sought.is_empty() {
                break;
            }
            for message in self.chunk(from, last_seq, &mut pace).await? {
                if let Some(id) = message.id.filter(|id| sought.remove(id)) {
                    found.push(Stored { id, seq: message.seq, commit_lsn: Lsn::ZERO });
                }
            }
        }
        Ok(found)
    }

    /// The copies that `replay` stored from sequence `from` on, as far as [`WAY_BACK_MAX`] messages
    /// reach.
    pub(crate) async fn replayed(&self, from: u64, replay: Uuid) -> Result<HashSet<Uuid>, Error> {
        let state = self.info().await?.state;
        let mut pace = Pace::new(&state);
        // Beyond the end: the stream was made anew since.
        let from = if from > state.last_sequence + 1 { 1 } else { from };
        let from = from.max(state.first_sequence).max(1);
        let last_seq = state.last_sequence.min(from.saturating_add(WAY_BACK_MAX));
        let mut copies = HashSet::new();
        for from in (from..=last_seq).step_by(CHUNK) {
            let chunk = self.chunk(from, last_seq, &mut pace).await?;
            let of_replay = chunk.iter().filter(|it| it.replay == Some(replay));
            copies.extend(of_replay.filter_map(|it| it.id));
        }
        Ok(copies)
    }

    /// What the leader says of each sequence from `from` to `to`: each answer has the whole message.
    pub(crate) async fn read_whole(
        &self,
        from: u64,
        to: u64,
    ) -> Result<Vec<direct_get::Answer>, Error> {
        let reads =
            stream::iter(from..=to).map(|seq| direct_get::read(&self.client, &self.name, seq));
        reads.buffered(WHOLE_AT_ONCE).try_collect().await
    }

    /// Where the stream's last message is.
    pub(crate) async fn last_sequence(&self) -> Result<u64, Error> {
        Ok(self.info().await?.state.last_sequence)
    }

    /// Those of the newest `count` messages that are stored at sequence `from` or later.
    pub(crate) async fn newest_since(
        &self,
        from: u64,
        count: u64,
        system_id: u64,
    ) -> Result<Tail, Error> {
        let last_seq = self.last_sequence().await?;
        // Beyond the end: the stream was made anew since.
        let from = if from > last_seq + 1 { 1 } else { from };
        self.read_since(from.max((last_seq + 1).saturating_sub(count)), system_id).await
    }

    /// The next messages from `from` on, [`CHUNK`] at most, and none behind `last`.
    async fn chunk(
        &self,
        from: u64,
        last: u64,
        pace: &mut Pace,
    ) -> Result<Vec<TailMessage>, Error> {
        self.range(from, last.min(from + CHUNK as u64 - 1), pace).await
    }

    async fn range(
        &self,
        mut from: u64,
        to: u64,
        pace: &mut Pace,
    ) -> Result<Vec<TailMessage>, Error> {
        let mut read = Vec::new();
        while from <= to {
            let upto = to.min(from + READS_IN_FLIGHT as u64 - 1);
            let reads = stream::iter(from..=upto).map(|seq| self.message(seq));
            let answers: Vec<_> = reads.buffered(pace.at_once).try_collect().await?;
            pace.saw(answers.iter().map(|it| it.bytes).max().unwrap_or(0));
            let (mut messages, mut suspects) = (Vec::new(), Vec::new());
            for Read { message, suspect, .. } in answers {
                messages.extend(message);
                suspects.extend(suspect);
            }
            self.disown(&mut messages, suspects).await?;
            read.extend(messages);
            from = upto + 1;
        }
        Ok(read)
    }

    /// Takes its id from each message that is not the event's whose id it has.
    async fn disown(
        &self,
        messages: &mut [TailMessage],
        suspects: Vec<Suspect>,
    ) -> Result<(), Error> {
        let Some(judge) = self.judge.as_ref().filter(|_| !suspects.is_empty()) else {
            return Ok(());
        };
        let others = judge(suspects).await?;
        for message in messages.iter_mut().filter(|it| others.contains(&it.seq)) {
            message.id = None;
        }
        Ok(())
    }

    /// The id of the event that is stored there; `None` if there is no message.
    pub(crate) async fn id_at(&self, seq: u64) -> Result<Option<Uuid>, Error> {
        let Read { message, suspect, .. } = self.message(seq).await?;
        let Some(mut message) = message else { return Ok(None) };
        self.disown(std::slice::from_mut(&mut message), suspect.into_iter().collect()).await?;
        Ok(Some(message.id.unwrap_or_default()))
    }

    /// Whether the stream has another message in the place of the event.
    pub(crate) async fn is_replaced(&self, event: Option<LastEvent>) -> Result<bool, Error> {
        let Some(event) = event else { return Ok(false) };
        Ok(event.is_replaced(self.id_at(event.seq).await?))
    }

    /// What the stream has where it says that it has this event.
    pub(crate) async fn look_up(&self, seq: u64, id: Uuid) -> Result<LookedUp, Error> {
        let Read { message, suspect, .. } = self.message(seq).await?;
        let Some(mut message) = message.filter(|it| it.id == Some(id)) else {
            return Ok(LookedUp::Nothing);
        };
        self.disown(std::slice::from_mut(&mut message), suspect.into_iter().collect()).await?;
        Ok(message.id.map_or(LookedUp::Another, |_| LookedUp::Event))
    }

    async fn message(&self, seq: u64) -> Result<Read, Error> {
        let answer = direct_get::read(&self.client, &self.name, seq).await?;
        let bytes = answer.bytes() as u64;
        let Some(stored) = answer.message()? else {
            return Ok(Read { bytes, message: None, suspect: None });
        };
        let message = tail_message(&stored);
        let id = message.id.filter(|_| self.judge.is_some() && !suspects::is_relays(&stored));
        let suspect = id.map(|id| Suspect::new(&stored, id)).transpose()?;
        Ok(Read { bytes, message: Some(message), suspect })
    }
}

/// What the stream has where it says that it has an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookedUp {
    Event,
    /// Another writer's message, under the event's id.
    Another,
    Nothing,
}

/// How many messages the stream has removed at most from sequence `first` on.
fn removed_from(first: u64, state: &State) -> u64 {
    let left = (state.last_sequence + 1).saturating_sub(state.first_sequence);
    let within = match &state.deleted {
        Some(deleted) => deleted.iter().filter(|seq| **seq >= first).count() as u64,
        None => left.saturating_sub(state.messages),
    };
    within + state.first_sequence.saturating_sub(first)
}

/// What is kept of a message, and how large the answer with it was.
struct Read {
    bytes: u64,
    /// `None` if it was deleted.
    message: Option<TailMessage>,
    /// The same, if it has an id and is no relay's.
    suspect: Option<Suspect>,
}

fn is_before(message: &TailMessage, way: WayBack) -> bool {
    message.position.is_some_and(|position| {
        let is_somewhere = position.lsn > 0 && position.system_id == way.system_id;
        is_somewhere && Lsn(position.lsn) < way.resolved_before
    })
}

/// A message whose headers are no text is foreign.
fn tail_message(message: &StoredMessage<'_>) -> TailMessage {
    let headers = message.headers();
    if let Some(copy) = copy(message) {
        return copy;
    }
    let id = headers.text(header::MSG_ID).or_else(|| headers.text(header::EVENT_ID));
    TailMessage {
        seq: message.sequence,
        id: id.and_then(|id| id.parse().ok()),
        position: headers.text(header::POSITION).and_then(|position| position.parse().ok()),
        position_event: headers.text(header::POSITION_EVENT).and_then(|id| id.parse().ok()),
        replay: None,
        is_marker: headers.get(header::MARKER_REASON).is_some(),
    }
}

/// A message that a replay stored.
fn copy(message: &StoredMessage<'_>) -> Option<TailMessage> {
    let headers = message.headers();
    let replay: Uuid = headers.text(header::REPLAY)?.parse().ok()?;
    let event: Uuid = headers.text(header::EVENT_ID)?.parse().ok()?;
    let (position, after) = headers.text(header::REPLAY_AFTER)?.split_once(' ')?;
    Some(TailMessage {
        seq: message.sequence,
        id: Some(replayed_id(event, replay)),
        position: position.parse().ok(),
        position_event: after.parse().ok(),
        replay: Some(replay),
        is_marker: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_stream_removed_may_be_missing_and_nothing_else() {
        let removed = |first, state: [u64; 3]| {
            let [first_sequence, last_sequence, messages] = state;
            let state = serde_json::json!({
                "messages": messages, "bytes": 0, "first_seq": first_sequence,
                "first_ts": "1970-01-01T00:00:00Z", "last_seq": last_sequence,
                "last_ts": "1970-01-01T00:00:00Z", "consumer_count": 0,
            });
            removed_from(first, &serde_json::from_value(state).unwrap())
        };
        assert_eq!(removed(5, [1, 10, 10]), 0, "it is whole");
        assert_eq!(removed(5, [1, 10, 7]), 3, "from within");
        assert_eq!(removed(5, [8, 10, 3]), 3, "from its start, while it was read");
        assert_eq!(removed(5, [11, 10, 0]), 6, "all");
    }

    #[test]
    fn what_was_removed_before_it_does_not_count() {
        let state = serde_json::json!({
            "messages": 7, "bytes": 0, "first_seq": 1, "first_ts": "1970-01-01T00:00:00Z",
            "last_seq": 10, "last_ts": "1970-01-01T00:00:00Z", "consumer_count": 0,
            "num_deleted": 3, "deleted": [2, 3, 6],
        });
        assert_eq!(removed_from(5, &serde_json::from_value(state).unwrap()), 1);
    }
}
