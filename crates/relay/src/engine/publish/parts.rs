//! What a publishing session consists of.

use std::collections::VecDeque;
use std::time::Duration;

use pgoutput::Lsn;

use crate::engine::messages::{Counts, Resolved};
use crate::engine::request::Request;
use crate::engine::window::Limits;
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
