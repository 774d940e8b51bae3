//! A stream and a durable consumer of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::Subject;

pub(super) const ACK_WAIT: Duration = Duration::from_secs(3);

/// What was delivered and not acknowledged.
struct Pending {
    /// When it is delivered again.
    due_at: Instant,
}

/// What arrives of a message.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) seq: u64,
    /// Counts deliveries.
    pub(super) consumer_seq: u64,
    pub(super) is_again: bool,
}

pub(super) struct BrokerModel {
    /// The sequences that there are: those between have gone, or are nothing for this consumer.
    pub(super) stream: Vec<u64>,
    pending: BTreeMap<u64, Pending>,
    unacked_max: usize,
    pub(super) delivered_until: u64,
    pub(super) consumer_seq: u64,
}

impl BrokerModel {
    pub(super) fn new(unacked_max: usize) -> Self {
        let (stream, pending) = (Vec::new(), BTreeMap::new());
        Self { stream, pending, unacked_max, delivered_until: 0, consumer_seq: 0 }
    }

    pub(super) fn deliver(&mut self, now: Instant) -> Option<Arrival> {
        let due = self.pending.iter().filter(|(_, it)| it.due_at <= now);
        let again = due.min_by_key(|(_, it)| it.due_at).map(|(seq, _)| *seq);
        let has_room = self.pending.len() < self.unacked_max;
        let new = self.stream.partition_point(|seq| *seq <= self.delivered_until);
        let new = self.stream.get(new).copied();
        let seq = again.or(new.filter(|_| has_room))?;
        self.delivered_until = self.delivered_until.max(seq);
        self.consumer_seq += 1;
        self.pending.insert(seq, Pending { due_at: now + ACK_WAIT });
        Some(Arrival { seq, consumer_seq: self.consumer_seq, is_again: again.is_some() })
    }

    /// Below it everything is acknowledged.
    pub(super) fn floor(&self) -> u64 {
        self.pending.keys().next().map_or(self.delivered_until, |seq| seq - 1)
    }

    /// What a source reads that is not sure what it has got.
    pub(super) fn outstanding(&self) -> Vec<u64> {
        let floor = self.floor();
        let is_outstanding = |seq: &u64| *seq > floor && *seq <= self.delivered_until;
        self.stream.iter().copied().filter(is_outstanding).collect()
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn acknowledge(&mut self, reply: &Subject) {
        self.pending.remove(&seq_of(reply));
    }

    pub(super) fn deliver_again_at(&mut self, reply: &Subject, due_at: Instant) {
        if let Some(pending) = self.pending.get_mut(&seq_of(reply)) {
            pending.due_at = due_at;
        }
    }
}

pub(super) fn reply_to(seq: u64) -> Subject {
    format!("ack.{seq}").into()
}

pub(super) fn seq_of(reply: &Subject) -> u64 {
    reply.strip_prefix("ack.").and_then(|seq| seq.parse().ok()).expect("one of ours")
}
