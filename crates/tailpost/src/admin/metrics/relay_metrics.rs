//! What a relay reports, as metrics. Where there are several shards, each figure has their labels.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use relay::{
    BreakerState, Config, Latency, RetentionStatus, RewindStatus, Role, SlotStatus, Status,
};
use tokio::sync::watch;

use super::Sink;

type Labels = Vec<(&'static str, String)>;

/// A figure of a status.
type Figure<S, T> = (&'static str, &'static str, fn(&S) -> T);

const GAUGES: [Figure<Status, f64>; 10] = [
    ("replication_connected", "1 while the replication connection is up.", |it| {
        f64::from(u8::from(it.postgres_connected))
    }),
    ("jetstream_connected", "1 while the connection to NATS is up.", |it| {
        f64::from(u8::from(it.nats_connected))
    }),
    ("replication_received_lsn_bytes", "Position up to which the log was read.", |it| {
        it.received_lsn.0 as f64
    }),
    (
        "replication_resolved_lsn_bytes",
        "Position up to which everything is stored or parked.",
        |it| it.resolved_lsn.0 as f64,
    ),
    (
        "replication_confirmed_flush_lsn_bytes",
        "Position up to which PostgreSQL may forget.",
        |it| it.confirmed_flush_lsn.0 as f64,
    ),
    ("replication_lag_bytes", "Log that was read but not confirmed.", |it| it.lag_bytes() as f64),
    ("outbox_inflight", "Events read but not resolved.", |it| it.in_flight_events as f64),
    ("outbox_inflight_bytes", "Bytes of the events read but not resolved.", |it| {
        it.in_flight_bytes as f64
    }),
    (
        "outbox_owed_rows",
        "Rows that are locked, to be marked or removed when they are free.",
        |it| it.owed_rows as f64,
    ),
    ("outbox_unidentified_rows", "Rows without an id, which cannot be published.", |it| {
        it.unidentified_rows as f64
    }),
];

const COUNTERS: [Figure<Status, u64>; 13] = [
    ("breaker_opened", "Times the breaker opened.", |it| it.breaker_opened_total),
    ("replication_reconnects", "Connections to either server that were opened again.", |it| {
        it.reconnects_total
    }),
    ("outbox_already_stored", "Events found in the stream, and so not published again.", |it| {
        it.already_stored_total
    }),
    ("outbox_dropped", "Events that a route dropped.", |it| it.dropped_total),
    ("outbox_rows_marked", "Rows marked as published.", |it| it.rows_marked_total),
    ("outbox_swept", "Rows whose lost mark was restored.", |it| it.swept_total),
    ("outbox_unlogged", "Rows that should have passed the log and did not.", |it| {
        it.unlogged_total
    }),
    (
        "outbox_scan_recovered",
        "Events that the log could not bring and the scanner published.",
        |it| it.scanned_total,
    ),
    ("outbox_batches", "Batches of messages sent to the broker.", |it| it.batches_total),
    ("outbox_resyncs", "Times the stream was asked for what it holds.", |it| it.resyncs_total),
    ("outbox_foreign", "Messages of other writers met in the stream.", |it| it.foreign_total),
    (
        "outbox_ignored_messages",
        "Messages in PostgreSQL's log with the outbox's prefix that were not published.",
        |it| it.ignored_total,
    ),
    ("outbox_dead_letters", "Events moved to the dead-letter table.", |it| it.dead_letters_total),
];

/// How many dead letters there are, and the age of the oldest in seconds; `None` if unknown.
pub(in crate::admin) type Counted = Arc<Mutex<Option<(u64, f64)>>>;

/// What one shard, or the only relay, says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    /// Its number, if there are several.
    pub(in crate::admin) shard: Option<u32>,
    pub(in crate::admin) stream: String,
    pub(in crate::admin) status: watch::Receiver<Status>,
    /// Of its rewind slot; `None` if there is to be none.
    pub(in crate::admin) rewind: watch::Receiver<Option<RewindStatus>>,
}

impl Watched {
    pub(crate) fn new(
        config: &Config,
        status: watch::Receiver<Status>,
        rewind: watch::Receiver<Option<RewindStatus>>,
    ) -> Self {
        let shard = config.shard().map(|it| it.number);
        Self { shard, stream: config.stream.name.clone(), status, rewind }
    }

    /// What tells the shards' metrics apart.
    fn labels(&self) -> Vec<(&'static str, String)> {
        let stream = ("stream", self.stream.clone());
        self.shard.map(|it| vec![("shard", it.to_string()), stream]).unwrap_or_default()
    }
}

#[derive(Debug)]
pub(in crate::admin) struct StatusCollector {
    pub(in crate::admin) watched: Vec<Watched>,
    pub(in crate::admin) in_flight_limit: usize,
    pub(in crate::admin) dead_letters: Counted,
    pub(in crate::admin) retention: watch::Receiver<RetentionStatus>,
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Copied, so that the relay does not wait for the scrape.
        let status = |it: &Watched| (it.labels(), it.status.borrow().clone());
        let shards = self.watched.iter().map(status).collect();
        let mut scrape = Scrape { sink: Sink { encoder: &mut encoder }, shards };
        scrape.replication()?;
        scrape.slot()?;
        scrape.outbox()?;
        let mut sink = scrape.sink;
        let rewind = |it: &Watched| Some((it.labels(), it.rewind.borrow().clone()?));
        sink.rewind(&self.watched.iter().filter_map(rewind).collect::<Vec<_>>())?;
        let counted = *self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, oldest)) = counted {
            sink.dead_letters(count as f64, oldest)?;
        }
        sink.retention(&self.retention.borrow().clone())?;
        sink.gauge(
            "outbox_inflight_limit",
            "Events that may be read but not resolved.",
            self.in_flight_limit as f64,
        )?;
        sink.build_info()
    }
}

/// The statuses as they are now.
struct Scrape<'a, 'e> {
    sink: Sink<'a, 'e>,
    shards: Vec<(Labels, Status)>,
}

impl Scrape<'_, '_> {
    fn replication(&mut self) -> fmt::Result {
        let help = "1 for what the relay is doing.";
        self.gauges("relay_role", help, "role", |status| {
            let value = |role: Role| f64::from(u8::from(role == status.role));
            Role::ALL.map(|role| (role.name(), value(role))).to_vec()
        })?;
        for (name, help, value) in GAUGES {
            self.gauge(name, help, |status| Some(value(status)))?;
        }
        let help = "Whether the broker is tried: 0 closed, 1 half-open, 2 open.";
        self.gauges("breaker_state", help, "target", |status| {
            let breaker = match status.breaker {
                BreakerState::Closed => 0.0,
                BreakerState::HalfOpen => 1.0,
                BreakerState::Open => 2.0,
            };
            vec![("nats", breaker)]
        })?;
        let help = "Time since the relay last got on, or had nothing to do.";
        self.gauge("relay_last_progress_age_seconds", help, |status| {
            status.last_progress_age().map(|age| age.as_secs_f64())
        })
    }

    fn slot(&mut self) -> fmt::Result {
        let help = "1 for the slot's wal_status.";
        self.gauges("replication_slot_wal_status", help, "status", |status| {
            let is_it = |slot: &SlotStatus, name| slot.wal_status.as_deref() == Some(name);
            let value = |slot, name| (name, f64::from(u8::from(is_it(slot, name))));
            let names = ["reserved", "extended", "unreserved", "lost"];
            status.slot.iter().flat_map(|slot| names.map(|name| value(slot, name))).collect()
        })?;
        let help = "Log that the slot makes the server keep.";
        self.gauge("replication_slot_retained_bytes", help, |status| {
            status.slot.as_ref().map(|slot| slot.retained_bytes as f64)
        })?;
        let help = "Log until the slot's limit: relay.wal_limit or max_slot_wal_keep_size.";
        self.gauge("replication_slot_wal_headroom_bytes", help, |status| {
            status.slot.as_ref()?.wal_headroom_bytes.map(|bytes| bytes as f64)
        })?;
        let help = "Time until the slot's limit, if the log goes on growing as it does.";
        self.gauge("replication_slot_wal_headroom_seconds", help, |status| {
            status.slot.as_ref()?.wal_headroom_seconds.map(|seconds| seconds as f64)
        })
    }

    fn outbox(&mut self) -> fmt::Result {
        let help = "Events that the broker acknowledged.";
        self.counters("outbox_published", help, "result", |status| {
            [("stored", status.published_total), ("duplicate", status.duplicates_total)]
        })?;
        let help = "Attempts to publish that failed, by whose fault it was.";
        self.counters("outbox_publish_failures", help, "class", |status| {
            let message = status.deferred_total + status.dead_letters_total;
            [("outage", status.outages_total), ("message", message)]
        })?;
        for (name, help, value) in COUNTERS {
            let values = self.shards.iter().map(|(labels, status)| (labels.clone(), value(status)));
            let values: Vec<_> = values.collect();
            self.sink.counters(name, help, values)?;
        }
        self.latency()
    }

    fn latency(&mut self) -> fmt::Result {
        let mut metric = self.sink.encoder.encode_descriptor(
            "outbox_commit_to_ack_seconds",
            "From the commit in PostgreSQL to the acknowledgement by the broker.",
            None,
            MetricType::Histogram,
        )?;
        for (labels, status) in &self.shards {
            let latency = &status.commit_to_ack;
            let bounds = Latency::BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(latency.counts).collect();
            metric.encode_family(labels)?.encode_histogram::<Labels>(
                latency.sum_seconds,
                latency.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    /// What not every status has; without any, there is no such metric.
    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&Status) -> Option<f64>,
    ) -> fmt::Result {
        let values =
            self.shards.iter().map(|(labels, status)| Some((labels.clone(), value(status)?)));
        let values: Vec<_> = values.flatten().collect();
        if values.is_empty() { Ok(()) } else { self.sink.family(name, help, values) }
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Fn(&Status) -> Vec<(&'static str, f64)>,
    ) -> fmt::Result {
        let all: Vec<_> = each(&self.shards, label, values).collect();
        if all.is_empty() { Ok(()) } else { self.sink.family(name, help, all) }
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl Fn(&Status) -> [(&'static str, u64); 2],
    ) -> fmt::Result {
        let all: Vec<_> = each(&self.shards, label, |it| values(it).to_vec()).collect();
        self.sink.counters(name, help, all)
    }
}

/// The values of each shard, with one more label.
fn each<T>(
    shards: &[(Labels, Status)],
    label: &'static str,
    values: impl Fn(&Status) -> Vec<(&'static str, T)>,
) -> impl Iterator<Item = (Labels, T)> {
    shards.iter().flat_map(move |(labels, status)| {
        let values = values(status).into_iter();
        values.map(|(value, it)| ([&labels[..], &[(label, value.to_owned())]].concat(), it))
    })
}

impl Sink<'_, '_> {
    /// Where there is a rewind slot, or is to be one.
    fn rewind(&mut self, slots: &[(Labels, RewindStatus)]) -> fmt::Result {
        if slots.is_empty() {
            return Ok(());
        }
        let gauges: [Figure<RewindStatus, Option<f64>>; 4] = [
            ("rewind_slot_exists", "1 while there is a rewind slot.", |it| {
                Some(f64::from(u8::from(it.exists)))
            }),
            ("rewind_retained_bytes", "Log that the rewind slot makes the server keep.", |it| {
                Some(it.retained_bytes as f64)
            }),
            ("rewind_extra_bytes", "Log that only the rewind slot makes the server keep.", |it| {
                Some(it.extra_bytes as f64)
            }),
            (
                "rewind_oldest_timestamp_seconds",
                "What committed then or later can be replayed from the log.",
                |it| Some(it.from?.as_microsecond() as f64 / 1e6),
            ),
        ];
        for (name, help, value) in gauges {
            let values = slots.iter().filter_map(|(of, it)| Some((of.clone(), value(it)?)));
            self.family(name, help, values.collect::<Vec<_>>())?;
        }
        let counters: [Figure<RewindStatus, u64>; 2] = [
            ("rewind_made", "Times the rewind slot was made, by any process.", |it| it.made_total),
            ("rewind_failures", "Looks at the rewind slot that failed.", |it| it.failures_total),
        ];
        for (name, help, value) in counters {
            let values = slots.iter().map(|(of, it)| (of.clone(), value(it)));
            self.counters(name, help, values.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn retention(&mut self, status: &RetentionStatus) -> fmt::Result {
        self.last_success(status.last_success_at)?;
        let help = "Rows deleted because they are kept for long enough, by this process.";
        let deleted = [
            ("published", status.published_deleted_total),
            ("dead_letter", status.dead_letters_deleted_total),
            ("audit", status.audit_deleted_total),
        ];
        let deleted = deleted.map(|(what, count)| ([("what", what)], count));
        self.counters("retention_deleted", help, deleted)?;
        let help = "Attempts to delete old rows that failed.";
        let none: [(&str, &str); 0] = [];
        self.counters("retention_failures", help, [(none, status.failures_total)])?;
        let help = "Partitions of the outbox that this process dropped.";
        self.counters("partitions_dropped", help, [(none, status.partitions_dropped_total)])?;
        let Some(until) = status.partitions_until else { return Ok(()) };
        let help = "For how long inserts into the outbox have a partition; they fail afterwards.";
        let ahead = until.duration_since(Timestamp::now()).as_secs_f64();
        self.gauge("partition_horizon_seconds", help, ahead)
    }

    fn dead_letters(&mut self, count: f64, oldest: f64) -> fmt::Result {
        let outbox = |value| [([("source", "outbox")], value)];
        self.family("dead_letter_count", "Dead letters that nobody discarded.", outbox(count))?;
        let help = "Age of the oldest dead letter, or 0.";
        self.family("dead_letter_oldest_age_seconds", help, outbox(oldest))
    }
}
