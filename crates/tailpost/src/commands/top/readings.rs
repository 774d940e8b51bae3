//! What the API of a relay and of an inbox tells. What an older one leaves out is zero or nothing.

use std::collections::BTreeMap;

use relay::Lsn;
use serde::{Deserialize, Deserializer};

/// `/api/v1/status` of a relay: of the only one, or of each shard.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RelayStatus {
    pub(super) shards: Vec<ShardStatus>,
    #[serde(flatten)]
    only: Option<ShardStatus>,
}

impl RelayStatus {
    /// The shards, which may be one.
    pub(super) fn shards(&self) -> &[ShardStatus] {
        match (&*self.shards, &self.only) {
            ([], Some(only)) => std::slice::from_ref(only),
            (shards, _) => shards,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ShardStatus {
    pub(super) process_id: u32,
    pub(super) shard: Option<u32>,
    pub(super) role: String,
    pub(super) postgres_connected: bool,
    pub(super) nats_connected: bool,
    #[serde(deserialize_with = "lsn")]
    received_lsn: Lsn,
    #[serde(deserialize_with = "lsn")]
    resolved_lsn: Lsn,
    pub(super) lag_seconds: f64,
    pub(super) in_flight_events: u64,
    pub(super) in_flight_bytes: u64,
    pub(super) window: Window,
    pub(super) published_total: u64,
    pub(super) replayed_total: u64,
    pub(super) dead_letters_total: u64,
    pub(super) commit_to_ack: Latency,
    pub(super) publish_to_ack: Latency,
    pub(super) breaker: String,
    pub(super) breaker_retry_in_seconds: Option<f64>,
    pub(super) slot: Option<Slot>,
    pub(super) waiting_for: Option<String>,
    pub(super) last_error: Option<String>,
}

impl ShardStatus {
    /// What the broker has yet to take, in bytes of log.
    pub(super) fn lag_bytes(&self) -> u64 {
        self.received_lsn.0.saturating_sub(self.resolved_lsn.0)
    }
}

/// How much may be in flight.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Window {
    pub(super) events: u64,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Slot {
    pub(super) wal_status: Option<String>,
    pub(super) retained_bytes: u64,
    pub(super) wal_headroom_bytes: Option<u64>,
    pub(super) wal_headroom_seconds: Option<u64>,
}

/// A histogram since the start: how many durations each bucket has, by its number.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) buckets: Vec<(i32, u64)>,
}

impl Latency {
    /// Adds what is counted to `counts`.
    pub(super) fn add_to(&self, counts: &mut BTreeMap<i32, u64>) {
        for (bucket, count) in &self.buckets {
            *counts.entry(*bucket).or_default() += count;
        }
    }
}

/// `/api/v1/outbox/dead-letter?limit=0`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct DeadLetters {
    pub(super) total: u64,
    pub(super) oldest_seconds: Option<f64>,
}

/// `/api/v1/replays`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Replays {
    pub(super) replays: Vec<Replay>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Replay {
    pub(super) id: String,
    pub(super) status: String,
    pub(super) events: Option<u64>,
    pub(super) published: u64,
    pub(super) failed: u64,
    pub(super) waits_for: Option<String>,
}

impl Replay {
    pub(super) fn is_under_way(&self) -> bool {
        matches!(&*self.status, "asked" | "running" | "paused")
    }
}

/// `/api/v1/status` of an inbox.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct InboxStatus {
    pub(super) consumers: BTreeMap<String, ConsumerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ConsumerStatus {
    pub(super) state: String,
    pub(super) paused: Option<String>,
    pub(super) handler: Handler,
    pub(super) busy: u64,
    pub(super) held: u64,
    pub(super) left: u64,
    pub(super) counts: Counts,
    /// What the broker has not delivered yet, if it could be asked.
    pub(super) pending: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Handler {
    pub(super) breaker: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    pub(super) processed: u64,
}

/// `/api/v1/consumers`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Consumers {
    pub(super) consumers: Vec<Consumer>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) worker: Option<Worker>,
    pub(super) processing: u64,
    pub(super) failed: u64,
    pub(super) dead: u64,
    pub(super) oldest_seconds: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Worker {
    pub(super) owner: String,
    pub(super) is_valid: bool,
    pub(super) state: Option<String>,
    pub(super) breaker: Option<String>,
}

fn lsn<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_relay_and_several_shards_are_read_alike() {
        let one = json!({ "role": "active", "published_total": 7, "received_lsn": "0/30",
            "resolved_lsn": "0/10", "retention": {}, "schema_version": 1 });
        let all = json!({ "shards": [{ "shard": 1, "published_total": 7 }], "retention": {} });
        let one: RelayStatus = serde_json::from_value(one).expect("a status");
        let all: RelayStatus = serde_json::from_value(all).expect("a status");
        assert_eq!((one.shards().len(), one.shards()[0].lag_bytes()), (1, 0x20));
        assert_eq!((all.shards().len(), all.shards()[0].shard), (1, Some(1)));
        assert_eq!(all.shards()[0].published_total, 7);
    }

    /// What the relay writes is what is read here.
    #[test]
    fn a_status_of_this_version_is_read_whole() {
        let mut status = relay::Status::default();
        status.commit_to_ack.record(std::time::Duration::from_secs(1));
        let told = serde_json::to_value(&status).expect("serialisable");
        let read: ShardStatus = serde_json::from_value(told).expect("a status");
        assert_eq!(read.commit_to_ack.buckets, [(0, 1)], "bucket 0 ends at 1 s");
        assert_eq!((&*read.role, &*read.breaker), ("starting", "closed"));
    }
}
