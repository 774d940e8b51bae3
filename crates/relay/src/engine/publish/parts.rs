//! What a publishing session consists of.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use super::counting::Counting;
use crate::engine::messages::{Counts, Request, Resolved};
use crate::engine::progress::Progress;
use crate::engine::tail_messages::Seen;
use crate::engine::window::{LastPosition, Limits, Tried};
use crate::latency::Latency;

/// What does not change in a session.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) limits: Limits,
    pub(super) ack_timeout: Duration,
    /// Transactions that committed before this are resolved already.
    pub(super) resolved_before: Lsn,
    /// Where the log ended when the session began.
    pub(super) log_end: Lsn,
    pub(super) max_attempts: u32,
    /// Whether later events of a parked event's aggregate wait.
    pub(super) parking_blocks: bool,
    /// Whether fenced mode never gives way to keyed mode.
    pub(super) stays_fenced: bool,
}

/// How far the log has come.
#[derive(Debug, Default, Clone)]
pub(super) struct Log {
    pub(super) progress: Progress,
    /// Commit LSN, commit time and next ordinal of the transaction being received.
    pub(super) transaction: (Lsn, i64, u32),
    pub(super) last_position: Option<LastPosition>,
    /// The highest one that the stream was seen to have.
    pub(super) stored_position: Option<LastPosition>,
    /// Events that the log has brought.
    pub(super) logged: u64,
    /// Those that it brought again, and that were not looked at any more.
    pub(super) skipped: u64,
    /// It was said that messages are ignored, and why.
    pub(super) told_off: bool,
    pub(super) told_not_transactional: bool,
}

/// What is known of events that earlier sessions worked on.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Events that are resolved although the stream does not have them.
    pub(super) dead: HashSet<Uuid>,
    /// Events that earlier sessions have tried, and that the log brings again.
    pub(super) tried: HashMap<Uuid, Tried>,
    /// Ids that the stream had when the session began.
    pub(super) seen: Seen,
    /// No event logged after this position can be in `seen`.
    pub(super) seen_before: Lsn,
    /// What the stream has of events whose messages it has lost, until that is known.
    pub(super) counting: Option<Counting>,
    /// What is counted committed before this.
    pub(super) counted_before: Lsn,
    /// Events before this place are resolved, whatever the stream has of them.
    pub(super) passed_before: Option<(Lsn, u32)>,
}

/// What is to be done outside.
#[derive(Debug, Default, Clone)]
pub(super) struct Output {
    pub(super) requests: VecDeque<Request>,
    /// What became resolved and was not taken.
    pub(super) resolved: Vec<Resolved>,
}

/// What is told of a session.
#[derive(Debug, Default, Clone)]
pub(super) struct Figures {
    pub(super) counts: Counts,
    /// From sending a message to the answer that it is stored.
    pub(super) answer_times: Latency,
}
