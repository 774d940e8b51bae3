use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use relay::{Config, Latency, Role, SlotStatus, Status};
use tokio::sync::watch;

/// The exposition format that `encode` writes.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = [(&'static str, &'static str); 1];
type NoLabels = [(&'static str, &'static str); 0];

/// Turns the relay's status into metrics at each scrape.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
}

impl Metrics {
    pub(super) fn new(status: watch::Receiver<Status>, pipeline: String, config: &Config) -> Self {
        let labels = [
            ("pipeline".into(), pipeline.into()),
            ("stream".into(), config.stream.name.clone().into()),
        ];
        let mut registry = Registry::with_prefix_and_labels("tailpost", labels.into_iter());
        let in_flight_limit = config.window.events;
        registry.register_collector(Box::new(StatusCollector { status, in_flight_limit }));
        Self { registry }
    }

    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        let mut buffer = String::new();
        text::encode(&mut buffer, &self.registry)?;
        Ok(buffer)
    }
}

#[derive(Debug)]
struct StatusCollector {
    status: watch::Receiver<Status>,
    in_flight_limit: usize,
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Copied, so that the relay does not wait for the scrape.
        let status = self.status.borrow().clone();
        let mut sink = Sink { encoder: &mut encoder };
        sink.replication(&status)?;
        sink.outbox(&status)?;
        sink.gauge(
            "outbox_inflight_limit",
            "Events that may be read but not resolved.",
            self.in_flight_limit as f64,
        )?;
        sink.family(
            "build_info",
            "The version that runs.",
            &[([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        )
    }
}

struct Sink<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Sink<'_, '_> {
    fn replication(&mut self, status: &Status) -> fmt::Result {
        let roles = Role::ALL
            .map(|role| ([("role", role.name())], f64::from(u8::from(role == status.role))));
        self.family("relay_role", "1 for what the relay is doing.", &roles)?;
        for (name, help, value) in [
            (
                "replication_connected",
                "1 while the replication connection is up.",
                f64::from(u8::from(status.postgres_connected)),
            ),
            (
                "jetstream_connected",
                "1 while the connection to NATS is up.",
                f64::from(u8::from(status.nats_connected)),
            ),
            (
                "replication_received_lsn_bytes",
                "Position up to which the log was read.",
                status.received_lsn.0 as f64,
            ),
            (
                "replication_resolved_lsn_bytes",
                "Position up to which everything is stored or parked.",
                status.resolved_lsn.0 as f64,
            ),
            (
                "replication_confirmed_lsn_bytes",
                "Position up to which PostgreSQL may forget.",
                status.confirmed_lsn.0 as f64,
            ),
            (
                "replication_lag_bytes",
                "Log that was read but not confirmed.",
                status.lag_bytes() as f64,
            ),
        ] {
            self.gauge(name, help, value)?;
        }
        if let Some(age) = status.last_progress_age() {
            let help = "Time since the relay last got on, or had nothing to do.";
            self.gauge("relay_last_progress_age_seconds", help, age.as_secs_f64())?;
        }
        if let Some(slot) = &status.slot {
            self.slot(slot)?;
        }
        self.counter(
            "replication_reconnects",
            "Connections to either server that were opened again.",
            status.reconnects_total,
        )
    }

    fn slot(&mut self, slot: &SlotStatus) -> fmt::Result {
        let statuses = ["reserved", "extended", "unreserved", "lost"].map(|name| {
            let is_it = slot.wal_status.as_deref() == Some(name);
            ([("status", name)], f64::from(u8::from(is_it)))
        });
        self.family("replication_slot_wal_status", "1 for the slot's wal_status.", &statuses)?;
        let help = "Log that the slot makes the server keep.";
        self.gauge("replication_slot_retained_bytes", help, slot.retained_bytes as f64)?;
        if let Some(bytes) = slot.left_bytes {
            let help = "Log until the slot's limit: relay.wal_limit or max_slot_wal_keep_size.";
            self.gauge("replication_slot_left_bytes", help, bytes as f64)?;
        }
        if let Some(seconds) = slot.left_seconds {
            let help = "Time until the slot's limit, if the log goes on growing as it does.";
            self.gauge("replication_slot_left_seconds", help, seconds as f64)?;
        }
        Ok(())
    }

    fn outbox(&mut self, status: &Status) -> fmt::Result {
        let help = "Events read but not resolved.";
        self.gauge("outbox_inflight", help, status.in_flight_events as f64)?;
        let help = "Bytes of the events read but not resolved.";
        self.gauge("outbox_inflight_bytes", help, status.in_flight_bytes as f64)?;
        self.published(status)?;
        for (name, help, value) in [
            ("outbox_settled", "Events found in the stream already.", status.settled_total),
            ("outbox_dropped", "Events that a route dropped.", status.dropped_total),
            ("outbox_mark", "Rows marked as published.", status.marked_total),
            ("outbox_swept", "Rows whose lost mark was restored.", status.swept_total),
            (
                "outbox_unlogged",
                "Rows that should have passed the log and did not.",
                status.unlogged_total,
            ),
            (
                "outbox_scan_recovered",
                "Events that the log could not bring and the scanner published.",
                status.scanned_total,
            ),
            ("outbox_batches", "Batches of messages sent to the broker.", status.batches_total),
            (
                "outbox_resyncs",
                "Times the stream was asked for what it holds.",
                status.resyncs_total,
            ),
            (
                "outbox_foreign",
                "Messages of other writers met in the stream.",
                status.foreign_total,
            ),
            ("dlq_writes", "Events moved to the dead-letter table.", status.parked_total),
        ] {
            self.counter(name, help, value)?;
        }
        self.latency(&status.commit_to_ack)
    }

    fn published(&mut self, status: &Status) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(
            "outbox_published",
            "Events that the broker acknowledged.",
            None,
            MetricType::Counter,
        )?;
        let results = [("stored", status.published_total), ("duplicate", status.duplicates_total)];
        for (result, value) in results {
            let labels: Labels = [("result", result)];
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn family(&mut self, name: &str, help: &str, values: &[(Labels, f64)]) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn latency(&mut self, latency: &Latency) -> fmt::Result {
        let bounds = Latency::BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(latency.counts).collect();
        let mut metric = self.encoder.encode_descriptor(
            "outbox_commit_to_ack_seconds",
            "From the commit in PostgreSQL to the acknowledgement by the broker.",
            None,
            MetricType::Histogram,
        )?;
        metric.encode_histogram::<NoLabels>(latency.sum_seconds, latency.count(), &buckets, None)
    }
}
