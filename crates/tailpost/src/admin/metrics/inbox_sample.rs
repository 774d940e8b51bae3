//! What only the servers know about consumers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use inbox::Upkept;
use jiff::Timestamp;
use operate::consumers::Backlog;

/// What the servers know about a consumer, as of some seconds ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) backlog: Backlog,
    /// What the broker knows, if it could be asked.
    pub(crate) durable: Option<Durable>,
    /// Its durable consumers.
    pub(crate) parts: Vec<Part>,
    /// How soon a worker takes over from another one.
    pub(crate) lease: Duration,
    /// For how long a handler may keep an event, while the worker may take no other.
    pub(crate) timeout: Duration,
    /// For how long an event has waited for an attempt of which no record says why.
    pub(crate) undone: Duration,
    /// What its stream keeps from it, in words.
    pub(crate) warnings: Vec<String>,
}

/// A durable consumer: the only one, or that of a partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// Events that the broker has not delivered yet.
    pub(crate) pending: u64,
    /// For how long events have been pending, and this process has had none of them delivered or
    /// handled, if they are for it to handle.
    pub(crate) unmoved: Duration,
    /// For how long it has had events, and none was delivered or acknowledged, whoever has it.
    pub(crate) stalled: Duration,
    /// For how long no worker has had the partition.
    pub(crate) free: Duration,
    /// Messages that left the stream unread, at most, and that nobody has settled; or that pass it by.
    pub(crate) unread: u64,
}

/// What the broker knows about a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable {
    /// Events that it has not delivered yet.
    pub(crate) pending: u64,
    /// The sequences of the latest that it has delivered, and up to where all are acknowledged.
    pub(crate) delivered: (u64, u64),
    pub(crate) ack_pending: u64,
    pub(crate) redelivered: u64,
    /// When it last delivered an event, or took an acknowledgement.
    pub(crate) active_at: Timestamp,
}

impl Durable {
    /// Both, as the one consumer whose partitions they are of.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            pending: self.pending + other.pending,
            delivered: self.delivered.max(other.delivered),
            ack_pending: self.ack_pending + other.ack_pending,
            redelivered: self.redelivered + other.redelivered,
            active_at: self.active_at.max(other.active_at),
        }
    }
}

/// What the servers know, as of some seconds ago.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    /// When the servers had told it; `None` if they have not yet.
    pub(crate) taken: Option<Instant>,
    pub(crate) consumers: BTreeMap<String, Sample>,
    pub(crate) upkept: Option<Upkept>,
}
