//! Where a replay reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use outbox::wire::{self, Position, StoredMessage, header};
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use super::wal_reader::{Opened, WalReader};
use crate::config::Config;
use crate::describe;
use crate::engine::{Outgoing, ReplayPage, ReplayRow, ReplayUnread, Tried};
use crate::error::Error;
use crate::nats::{History, TailReader, WHOLE_AT_ONCE};
use crate::postgres::Store;
use crate::postgres::sql::{ReplayedRow, TakenReplay};
use crate::replay_selection::ReplaySource;

/// Rows, or messages, that are read at a time.
pub(super) const PAGE: usize = 256;

/// The replay that is under way, and what reads for it.
#[derive(Clone)]
pub(crate) struct OpenReplay {
    pub(super) store: Arc<Store>,
    pub(super) taken: Arc<TakenReplay>,
    pub(super) tail: TailReader,
    /// The stream stores them under other subjects than those under which they are published.
    pub(super) transforms: bool,
    /// With the log as its source: what reads it, unless that broke.
    pub(super) wal: Arc<Mutex<Option<WalReader>>>,
    /// Ends what is being read.
    pub(super) over: CancellationToken,
    /// The latest reading failed, and that was said.
    pub(super) is_failing: Arc<AtomicBool>,
    pub(super) config: Arc<Config>,
    pub(super) history: History,
    /// What is read at a time, at most, but for the last row.
    pub(super) bytes_max: usize,
}

/// What was read for a replay.
pub(crate) enum Page {
    /// And whether there are no more.
    Rows(Vec<ReplayedRow>, bool),
    Messages(ReplayPage),
}

impl OpenReplay {
    /// What is behind `after`.
    pub(super) async fn read(&self, after: i64) -> Result<Page, Error> {
        Ok(match self.taken.source {
            ReplaySource::Table => {
                let read = self.store.replayed_rows(self.taken.id, after, PAGE, self.bytes_max);
                let (rows, is_end) = read.await?;
                Page::Rows(rows, is_end)
            }
            ReplaySource::Wal => Page::Messages(self.logged(after).await?),
            ReplaySource::Stream => Page::Messages(self.meant(after).await?),
        })
    }

    /// The events of the log behind `after` that are meant. After a failure the log is read from its
    /// beginning: a reading cannot go back.
    async fn logged(&self, after: i64) -> Result<ReplayPage, Error> {
        let mut kept = self.wal.lock().await;
        let mut reader = match kept.take() {
            Some(reader) => reader,
            None => {
                match WalReader::open(&self.config, Arc::clone(&self.taken), self.history).await? {
                    Opened::Reader(reader) => *reader,
                    Opened::Gone(why) => {
                        let (rows, is_gone) = (Vec::new(), Some(why));
                        return Ok(ReplayPage { rows, read_to: after, is_end: false, is_gone });
                    }
                }
            }
        };
        let mut page = reader.read(after, PAGE, self.bytes_max).await?;
        self.leave_out_parked(&mut page).await?;
        // Its slot keeps the log: at the end it is dropped.
        *kept = Some(reader).filter(|_| !page.is_end);
        Ok(page)
    }

    /// Published is what the relay resolved otherwise than by parking it. Over another connection: the
    /// reader's is in the midst of a statement.
    async fn leave_out_parked(&self, page: &mut ReplayPage) -> Result<(), Error> {
        let events: Vec<Uuid> = page.rows.iter().map(|it| it.event).collect();
        if events.is_empty() {
            return Ok(());
        }
        let parked = self.store.once_parked(&events).await?;
        for row in &mut page.rows {
            if let Some(why) = parked.get(&row.event) {
                row.outgoing = Err((*why).to_owned());
            }
        }
        Ok(())
    }

    /// Said once, until it has passed.
    pub(super) fn tolerate<T>(&self, outcome: Result<T, Error>) -> Result<T, ReplayUnread> {
        let failed = outcome.is_err();
        let is_new = self.is_failing.swap(failed, Ordering::Relaxed) != failed;
        let said = |error: &Error| {
            let (why, hint) = (describe(error), error.hint());
            match is_new {
                true => {
                    warn!(error = why, hint, "cannot read what is to be replayed, trying again")
                }
                false => debug!(error = why, "cannot read what is to be replayed, trying again"),
            }
        };
        outcome.inspect_err(said).map_err(|error| unread(&error))
    }

    /// The messages behind `after` that are meant.
    async fn meant(&self, after: i64) -> Result<ReplayPage, Error> {
        let last = self.taken.last_place.max(0).cast_unsigned();
        let mut read_to = after.max(0).cast_unsigned();
        let until = last.min(read_to + PAGE as u64);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while read_to < until && bytes < self.bytes_max {
            let to = until.min(read_to + WHOLE_AT_ONCE as u64);
            for answer in self.tail.read_whole(read_to + 1, to).await? {
                bytes += answer.bytes();
                if let Some(message) = answer.message()? {
                    rows.extend(self.row(&message));
                }
            }
            read_to = to;
        }
        Ok(ReplayPage {
            rows,
            read_to: read_to.cast_signed(),
            is_end: read_to >= last,
            is_gone: None,
        })
    }

    /// `None` if the message is not meant: others', and copies that an earlier replay stored, are not.
    fn row(&self, message: &StoredMessage<'_>) -> Option<ReplayRow> {
        let headers = message.headers().to_text().ok()?;
        let text = |name: &str| headers.iter().find(|it| it.0 == name).map(|it| it.1);
        if text(header::REPLAY).is_some() {
            return None;
        }
        let payload = Bytes::from(message.payload().ok()?);
        let event = wire::parse_event(headers.iter().copied(), payload).ok()?;
        // What names another event's position came from the table.
        let own = text(header::POSITION).filter(|_| text(header::POSITION_EVENT).is_none());
        let position: Option<Position> =
            own.and_then(|it| it.parse().ok()).filter(|it: &Position| it.lsn > 0);
        let system_id = self.history.system_id;
        if !self.taken.selection.takes(&event, position, message.time, system_id) {
            return None;
        }
        let (place, id) = (message.sequence.cast_signed(), event.id);
        let subject = match self.transforms {
            true => self.config.routing().subject(&event),
            false => Ok(message.subject.to_string()),
        };
        let tried = Tried::default();
        let outgoing =
            Outgoing { event, subject, seq: None, requeued: false, tried, replayed: None };
        let outgoing = Ok(self.taken.readdressed(outgoing, position));
        Some(ReplayRow { place, event: id, outgoing })
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "what else is wrong is asked of the error")]
fn unread(error: &Error) -> ReplayUnread {
    let hint = error.hint().map(|it| format!(": {it}")).unwrap_or_default();
    let why = format!("{}{hint}", describe(error));
    match error {
        // The whole relay waits for the broker.
        Error::Connect(_)
        | Error::Unheard { .. }
        | Error::JetStream { .. }
        | Error::Silent { .. }
        | Error::Stalled(_) => ReplayUnread::Waits(why),
        Error::Sql { .. } if error.code().is_none_or(|it| others_wait_for(&it)) => {
            ReplayUnread::Waits(why)
        }
        error if error.is_transient() => ReplayUnread::Failed(why),
        _ => ReplayUnread::Lasting(why),
    }
}

/// The server stops or starts, or a lock was met.
fn others_wait_for(code: &SqlState) -> bool {
    let locked = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code);
    locked || code.code().starts_with("08") || code.code().starts_with("57P")
}
