//! What goes into the engine and what comes out of it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox::Event;
use pgoutput::Lsn;
use uuid::Uuid;

use super::last_event::LastEvent;
use super::tail_messages::Tail;
use super::window::{LastPosition, Origin, Replayed, Tried, WindowLimits};
use super::written_down::{Place, WrittenDown};
use crate::status::DeadLetterCounts;

/// How order and uniqueness are kept (DESIGN 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Every message names the last sequence that it expects; the broker refuses a wrong one, and
    /// what is behind it in its fast-ingest batch.
    Fenced,
    /// One unanswered message per aggregate; `Nats-Msg-Id` and the tail remove duplicates.
    Keyed,
}

/// Why nothing becomes of a message of `outbox_emit_wal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ignored {
    /// The relay takes none (`relay.wal_messages`).
    Off,
    /// It is outside of its transaction, so the function did not write it.
    NotTransactional,
}

/// What does not change in a session.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) limits: WindowLimits,
    /// Silence after which unanswered messages count as lost.
    pub(crate) ack_timeout: Duration,
    /// Transactions that committed before this are resolved already. The highest there is: nothing
    /// comes from a log.
    pub(crate) resolved_before: Lsn,
    /// Where the log ended when the session had the slot. What the stream has from beyond is of
    /// another log.
    pub(crate) log_end: Lsn,
    /// Attempts after which an event that the stream does not take is parked.
    pub(crate) max_attempts: u32,
    /// Whether later events of a parked event's aggregate wait for it.
    pub(crate) parking_blocks: bool,
    /// Messages have no id by which the broker could deduplicate them: fenced mode stays, also if
    /// others write to the stream.
    pub(crate) stays_fenced: bool,
}

/// Where a session starts.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) mode: Mode,
    pub(crate) settings: Settings,
    /// The stream's end, read back far enough to hold whatever the slot may bring again.
    pub(crate) tail: Tail,
    /// What an earlier session wrote down of that.
    pub(crate) written: WrittenDown,
    /// Events that are dead letters, or were and have been published since. The log may bring them
    /// again, and they are resolved all the same.
    pub(crate) dead: HashSet<Uuid>,
    /// Events that were tried in vain by earlier sessions, with what their rows say of it.
    pub(crate) tried: HashMap<Uuid, Tried>,
    /// For the breaker's pauses.
    pub(crate) seed: u64,
}

/// A message to send now.
#[derive(Debug, Clone)]
pub(crate) struct Send<'a> {
    pub(crate) epoch: u32,
    pub(crate) index: u64,
    /// `Nats-Expected-Last-Sequence`, in fenced mode.
    pub(crate) expected: Option<u64>,
    pub(crate) event: &'a Event,
    pub(crate) subject: &'a str,
    pub(crate) position: Option<LastPosition>,
    /// `None` for a message that goes by itself.
    pub(crate) part: Option<Part>,
    /// What it is a copy of. Then `position` is how far the log had come.
    pub(crate) replayed: Option<&'a Replayed>,
    /// Whether the event has, or had, a row.
    pub(crate) has_row: bool,
}

/// A message's place in its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Unique in the session.
    pub(crate) batch: u32,
    /// Counts from 1.
    pub(crate) number: u64,
    /// Nothing follows it in this batch.
    pub(crate) last: bool,
}

/// An event that needs no publishing any more, and whose row is to be marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) id: Uuid,
    /// Where the stream has it; `None` if a route dropped it.
    pub(crate) seq: Option<u64>,
    pub(crate) origin: Origin,
    pub(crate) commit_lsn: Lsn,
    pub(crate) commit_time_micros: i64,
    /// The broker acked it just now, rather than long ago or never.
    pub(crate) acked: bool,
}

impl Resolved {
    /// An event that the stream has, who knows where.
    pub(crate) fn somewhere(id: Uuid) -> Self {
        let (origin, commit_lsn) = (Origin::Log, Lsn::ZERO);
        Self { id, seq: None, origin, commit_lsn, commit_time_micros: 0, acked: false }
    }

    /// The last one that the stream has.
    pub(crate) fn last_of(resolved: &[Self]) -> Option<LastEvent> {
        let stored = resolved.iter().filter_map(|it| Some(LastEvent { seq: it.seq?, id: it.id }));
        stored.max_by_key(|it| it.seq)
    }

    /// The stream had it before it was sent.
    pub(crate) fn is_found(&self) -> bool {
        self.seq.is_some() && !self.acked
    }
}

/// Events counted since the session began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) acked: u64,
    pub(crate) found: u64,
    /// Those of them that the broker answered as duplicates.
    pub(crate) duplicates: u64,
    pub(crate) parked: DeadLetterCounts,
    pub(crate) dropped: u64,
    pub(crate) resyncs: u64,
    pub(crate) foreign: u64,
    /// Answers that were not the stream's.
    pub(crate) strangers: u64,
    /// Failures of the broker.
    pub(crate) outages: u64,
    /// Attempts that failed and are repeated later.
    pub(crate) deferred: u64,
    /// Batches begun.
    pub(crate) batches: u64,
    /// Events that were published once more. No other number counts them.
    pub(crate) replayed: u64,
    /// Messages of the log that might have been events.
    pub(crate) ignored: u64,
}

impl Counts {
    /// Events that need no further work.
    pub(crate) fn resolved(&self) -> u64 {
        self.acked + self.found + self.parked.total() + self.dropped
    }
}

/// An aggregate, and the event that the others of it wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) by: Uuid,
}

/// An event on its way into the dead-letter table.
#[derive(Debug, Clone)]
pub(crate) struct Dead {
    pub(crate) event: Box<Event>,
    /// Its row's place in the order of insertion.
    pub(crate) seq: Option<i64>,
    pub(crate) reason: String,
    pub(crate) attempts: u32,
    /// Later events of its aggregate wait.
    pub(crate) blocks: bool,
    /// Nothing is wrong with it: it waits for this one.
    pub(crate) blocked_by: Option<Uuid>,
    /// Whether a row is to be removed.
    pub(crate) has_row: bool,
    /// It was a dead letter before, and that row is meant.
    pub(crate) is_requeued: bool,
}

/// What becomes of the [`Place`] that is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotedPlace {
    At(Place),
    /// The one there is still tells everything, as of now.
    Unchanged,
    /// The one there tells more than this session knows.
    Kept,
    /// Everything before the one there is resolved, but nothing can be counted from there any more.
    Uncounted,
}
