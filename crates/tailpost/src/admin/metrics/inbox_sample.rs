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
    /// For how long events have been pending, and none was delivered or handled.
    pub(crate) unmoved: Duration,
    /// For how long a handler may keep an event, while the worker may take no other.
    pub(crate) timeout: Duration,
}

/// What the broker knows about a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable {
    /// Events that it has not delivered yet.
    pub(crate) pending: u64,
    /// The sequence of the latest that it has delivered; of several the sum.
    pub(crate) delivered: u64,
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
            delivered: self.delivered + other.delivered,
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
