//! The replication connection: the log's messages in, confirmations out.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use pgoutput::{Logical, Lsn, Message};
use pgwire_replication::ReplicationEvent;

use crate::engine::LogInput;
use crate::error::Error;
use crate::postgres::{Messages, Rows, Walsender};

/// Messages taken at a time, so that answers and sends get their turns.
const MESSAGES_AT_ONCE: usize = 256;

/// And bytes: rows may be large, and the window is asked for room only now and then.
const BYTES_AT_ONCE: usize = 256 << 10;

/// How long the last confirmation may take to leave when the session ends. The client sends one
/// every 100 ms.
const LAST_CONFIRMATION: Duration = Duration::from_secs(1);

/// A started replication connection.
///
/// The client answers the walsender's keepalives by itself, also while nobody reads from here: that
/// is how a slow broker stops the reading of the socket without losing the connection.
pub(crate) struct LogStream {
    walsender: Walsender,
    rows: Rows,
    messages: Messages,
    committed_at_micros: i64,
    last_heard: Instant,
}

impl LogStream {
    pub(crate) fn new(walsender: Walsender, rows: Rows, messages: Messages) -> Self {
        let (committed_at_micros, last_heard) = (0, Instant::now());
        Self { walsender, rows, messages, committed_at_micros, last_heard }
    }

    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Waits for the log and appends what it brings, at most a bounded number of inputs.
    ///
    /// Cancel safe: a message taken is a message appended.
    pub(crate) async fn receive(&mut self, into: &mut Vec<LogInput>) -> Result<(), Error> {
        let mut next = self.walsender.0.recv().await;
        let mut bytes = 0;
        for _ in 0..MESSAGES_AT_ONCE {
            let event = next.map_err(Error::replication("read the log"))?;
            bytes += match &event {
                Some(ReplicationEvent::XLogData { data, .. }) => data.len(),
                Some(ReplicationEvent::Message { content, .. }) => content.len(),
                _ => 0,
            };
            self.last_heard = Instant::now();
            into.extend(self.input(event.ok_or(Error::Stalled("the server ended it"))?)?);
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            match self.walsender.0.recv().now_or_never() {
                Some(event) => next = event,
                None => break,
            }
        }
        Ok(())
    }

    /// When the server was last heard of.
    pub(crate) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// Nobody was listening until now: silence counts from here.
    pub(crate) fn listen_anew(&mut self) {
        self.last_heard = Instant::now();
    }

    /// Lets PostgreSQL forget everything before `lsn`, which must have come from this connection.
    pub(crate) fn confirm(&self, lsn: Lsn) {
        self.walsender.0.update_applied_lsn(pgwire_replication::Lsn(lsn.0));
    }

    /// Ends the connection. Says whether the last confirmation left: the client drops what it has
    /// not sent when it is stopped.
    pub(crate) async fn stop(mut self, confirmed: Lsn) -> bool {
        let metrics = self.walsender.0.metrics();
        let deadline = Instant::now() + LAST_CONFIRMATION;
        let mut left = metrics.last_applied_lsn().0 >= confirmed.0;
        while !left && Instant::now() < deadline && self.walsender.0.is_running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            left = metrics.last_applied_lsn().0 >= confirmed.0;
        }
        self.walsender.0.stop();
        let _ = tokio::time::timeout(LAST_CONFIRMATION, self.walsender.0.shutdown()).await;
        left
    }

    fn message(&self, message: &Logical) -> Option<LogInput> {
        Some(match self.messages.read(&self.rows, message, self.committed_at_micros)? {
            Ok(outgoing) => LogInput::Emitted(outgoing),
            Err(why) => LogInput::Ignored(why),
        })
    }

    fn input(&mut self, event: ReplicationEvent) -> Result<Option<LogInput>, Error> {
        Ok(match event {
            ReplicationEvent::Begin { final_lsn, commit_time_micros, .. } => {
                self.committed_at_micros = commit_time_micros;
                Some(LogInput::Begin { commit_lsn: Lsn(final_lsn.0), commit_time_micros })
            }
            ReplicationEvent::Commit { end_lsn, .. } => {
                Some(LogInput::Commit { end_lsn: Lsn(end_lsn.0) })
            }
            ReplicationEvent::KeepAlive { wal_end, .. } => {
                Some(LogInput::Keepalive { wal_end: Lsn(wal_end.0) })
            }
            ReplicationEvent::XLogData { data, .. } => match Message::decode(data)? {
                Message::Insert(insert) => self.rows.insert(&insert)?.map(LogInput::Logged),
                Message::Relation(relation) => {
                    self.rows.relation(&relation)?;
                    None
                }
                // The publication brings inserts only, and the client understands the rest.
                Message::Begin(_)
                | Message::Logical(_)
                | Message::Commit(_)
                | Message::Origin(_)
                | Message::Type(_)
                | Message::Update(_)
                | Message::Delete(_)
                | Message::Truncate(_) => None,
            },
            // The client asks for messages whether or not any are taken.
            ReplicationEvent::Message { transactional, lsn, prefix, content } => {
                self.message(&Logical { transactional, lsn: Lsn(lsn.0), prefix, content })
            }
            ReplicationEvent::StoppedAt { .. } => None,
        })
    }
}
