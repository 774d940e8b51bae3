//! Reads the log again, through a temporary copy of the rewind slot.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use jiff::Timestamp;
use outbox::wire::Position;
use pgoutput::{Lsn, Message};
use tokio_postgres::RowStream;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{PgLsn, ToSql};
use tracing::debug;

use crate::config::{Config, RewindConfig};
use crate::engine::{Ignored, Outgoing, ReplayPage, ReplayRow, Unpublished};
use crate::error::Error;
use crate::nats::History;
use crate::postgres::encoding::AS_STORED;
use crate::postgres::sql::TakenReplay;
use crate::postgres::{Encoding, Messages, Rows, Store};
use crate::reporter::POSTGRES_EPOCH_UNIX_MICROS;

const READING: &str = "read the log again";

/// Changes after which the server ends a statement, with the transaction that it is at.
const CHANGES_AT_ONCE: i32 = 10_000;

/// Changes that are fetched of them at a time.
const FETCHED_AT_ONCE: u32 = 1_000;

/// The server keeps what a statement brought beyond its transaction: no snapshot holds vacuum back
/// while the broker takes the events.
const CURSOR: &str = "tailpost_log";

/// A reading of the log, from the rewind slot's position on. The temporary slot ends with its
/// connection.
pub(super) struct WalReader {
    store: Store,
    slot: String,
    publication: String,
    rows: Rows,
    messages: Messages,
    takes_messages: bool,
    history: History,
    replay: Arc<TakenReplay>,
    /// What is being fetched, and whether that brought anything.
    changes: Option<(Pin<Box<RowStream>>, bool)>,
    /// There is a cursor, and whether it brought anything.
    cursor: Option<bool>,
    /// Commit, its time, and the next event's number of the transaction that is being read.
    transaction: (Lsn, i64, u32),
    /// Events that were meant so far.
    place: i64,
}

/// What came of opening the log.
pub(super) enum Opened {
    Reader(Box<WalReader>),
    /// It does not reach back any more as far as it did when the replay was asked for, and why.
    Gone(String),
}

impl WalReader {
    pub(super) async fn open(
        config: &Config,
        replay: Arc<TakenReplay>,
        history: History,
    ) -> Result<Opened, Error> {
        let store = Store::connect(config, "tailpost replay of the log").await?;
        store.wait_for_locks(Some("1s")).await?;
        // While it decodes the server looks at nothing else, and nobody may wait for that any more.
        // Some platforms cannot.
        let watch = "SET client_connection_check_interval = '1s'";
        if let Err(error) = store.client().batch_execute(watch).await {
            debug!(%error, "the server does not notice who is gone");
        }
        let slot = format!("tailpost_replay_{}", uuid::Uuid::new_v4().simple());
        let rewind = RewindConfig::slot(&config.slot);
        let first = match store.copy_slot(&rewind, &slot, true).await {
            Err(error) if error.code() == Some(SqlState::UNDEFINED_OBJECT) => {
                return Ok(Opened::Gone(format!(
                    "the log is gone: there is no slot {rewind} any more. Cancel this replay, and see \
                     `tailpost status`"
                )));
            }
            copied => copied?,
        };
        if !replay.can_read_from(first) {
            let promised = replay.log_from.unwrap_or_default();
            return Ok(Opened::Gone(format!(
                "the log before {first} is gone: slot {rewind} began at {promised} when this was asked \
                 for. Cancel this replay, and plan it again"
            )));
        }
        // A statement lasts for as long as the broker takes what it brings.
        let encoding = Encoding::of(&store).await?;
        let patiently = format!("SET statement_timeout = 0; {AS_STORED}");
        store.batch_execute(READING, &patiently).await?;
        Ok(Opened::Reader(Box::new(Self {
            store,
            slot,
            publication: config.publication.clone(),
            rows: Rows::new(config.table.clone(), config.routing()).stored_in(encoding),
            messages: Messages::new(&config.table, true),
            takes_messages: config.wal.messages,
            history,
            replay,
            changes: None,
            cursor: None,
            transaction: (Lsn::ZERO, 0, 0),
            place: 0,
        })))
    }

    /// The events behind `after` that are meant, until they are `rows_max` or hold `bytes_max`.
    pub(super) async fn read(
        &mut self,
        after: i64,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<ReplayPage, Error> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < rows_max && bytes < bytes_max {
            let Some(change) = self.next_change().await? else {
                let read_to = self.place.max(after);
                return Ok(ReplayPage { rows, read_to, is_end: true, is_gone: None });
            };
            bytes += change.len();
            rows.extend(self.take(change)?.filter(|it| it.place > after));
        }
        Ok(ReplayPage { rows, read_to: self.place.max(after), is_end: false, is_gone: None })
    }

    /// The next change; `None` when the log has come to the replay's end.
    async fn next_change(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some((changes, brought)) = &mut self.changes {
                if let Some(row) = changes.try_next().await.map_err(Error::sql(READING))? {
                    *brought = true;
                    return Ok(Some(Bytes::copy_from_slice(row.get(0))));
                }
                let (is_empty, had_any) = (!*brought, self.cursor == Some(true));
                self.changes = None;
                if is_empty && !had_any {
                    return Ok(None);
                }
                self.cursor = (!is_empty).then_some(true);
                if is_empty {
                    self.store.batch_execute(READING, &format!("CLOSE {CURSOR}")).await?;
                }
            }
            if self.cursor.is_none() {
                self.declare().await?;
                self.cursor = Some(false);
            }
            let sql = format!("FETCH FORWARD {FETCHED_AT_ONCE} FROM {CURSOR}");
            let parameters: [&(dyn ToSql + Sync); 0] = [];
            let changes = self.store.query_raw(READING, &sql, parameters).await?;
            self.changes = Some((Box::pin(changes), false));
        }
    }

    /// Decodes what comes next.
    async fn declare(&self) -> Result<(), Error> {
        let until = PgLsn::from(self.replay.last_place.max(0).cast_unsigned());
        // As the plugin parses a list of identifiers.
        let publication = format!("\"{}\"", self.publication.replace('"', "\"\""));
        let sql = format!(
            "DECLARE {CURSOR} NO SCROLL CURSOR WITH HOLD FOR
             SELECT data FROM pg_logical_slot_get_binary_changes($1, $2, $3,
                 VARIADIC ARRAY['proto_version', '1', 'binary', 'true', 'messages', 'true',
                     'publication_names', $4])"
        );
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&self.slot, &until, &CHANGES_AT_ONCE, &publication];
        self.store.perform(READING, &sql, &parameters).await
    }

    fn take(&mut self, change: Bytes) -> Result<Option<ReplayRow>, Error> {
        match Message::decode(change)? {
            Message::Begin(begin) => {
                self.transaction = (begin.final_lsn, begin.commit_time_micros, 0);
            }
            Message::Relation(relation) => self.rows.relation(&relation)?,
            Message::Insert(insert) => {
                let outgoing = self.rows.insert(&insert)?;
                return Ok(outgoing.and_then(|it| self.choose(it)));
            }
            Message::Logical(message) => {
                match self.messages.read(&self.rows, &message, self.transaction.1) {
                    Some(Ok(outgoing)) => {
                        // Parked, or not taken at all.
                        let is_left_out = outgoing.subject.is_err() || !self.takes_messages;
                        return Ok(self.choose(outgoing).filter(|_| !is_left_out));
                    }
                    Some(Err(Ignored::Off | Ignored::NotTransactional)) | None => {}
                }
            }
            // The publication brings inserts only.
            Message::Commit(_)
            | Message::Origin(_)
            | Message::Type(_)
            | Message::Update(_)
            | Message::Delete(_)
            | Message::Truncate(_) => {}
        }
        Ok(None)
    }

    /// The transaction's next event, if it is meant.
    fn choose(&mut self, outgoing: Outgoing) -> Option<ReplayRow> {
        let (commit_lsn, micros, ordinal) = self.transaction;
        self.transaction.2 += 1;
        let History { system_id, timeline } = self.history;
        let position = Position { system_id, timeline, lsn: commit_lsn.0, ordinal };
        let unix = micros.saturating_add(POSTGRES_EPOCH_UNIX_MICROS);
        let at = Timestamp::from_microsecond(unix).unwrap_or(Timestamp::MAX);
        let selection = &self.replay.selection;
        if !selection.takes(&outgoing.event, Some(position), at, system_id) {
            return None;
        }
        // What is left out counts: a replay goes on at its place whatever the settings are by then.
        self.place += 1;
        if outgoing.subject == Err(Unpublished::Dropped) {
            return None;
        }
        let (place, event) = (self.place, outgoing.event.id);
        let outgoing = Ok(self.replay.readdressed(outgoing, Some(position)));
        Some(ReplayRow { place, event, outgoing })
    }
}
