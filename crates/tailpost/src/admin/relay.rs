//! The relay, as operators see it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use futures_util::future::BoxFuture;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use relay::{BreakerState, Config, Latency, Role, SlotStatus, Status};
use serde::Serialize;
use tokio::sync::watch;

use super::dead_letters::{self, Desk};
use super::metrics::{Metrics, Sink};
use super::{Admin, Engine};

type NoLabels = [(&'static str, &'static str); 0];

/// A running relay.
pub(crate) struct Relay {
    status: watch::Receiver<Status>,
    metrics: Metrics,
    desk: Desk,
    counted: Counted,
}

/// How many dead letters there are, and the age of the oldest in seconds; `None` if unknown.
type Counted = Arc<Mutex<Option<(u64, f64)>>>;

impl Relay {
    pub(crate) fn new(status: watch::Receiver<Status>, config: &Config) -> Self {
        let pipeline = format!("{}/{}", config.slot, config.publication);
        let labels = [("pipeline", pipeline), ("stream", config.stream.name.clone())];
        let in_flight_limit = config.window.events;
        let counted = Counted::default();
        let dead_letters = Arc::clone(&counted);
        let collector = StatusCollector { status: status.clone(), in_flight_limit, dead_letters };
        let desk = Desk::new(config.clone());
        Self { status, metrics: Metrics::new(labels, collector), desk, counted }
    }
}

impl Engine for Relay {
    fn readiness(&self) -> (bool, String) {
        let readiness = Readiness::of(&self.status.borrow());
        let json = serde_json::to_string(&readiness).unwrap_or_default();
        (readiness.ready, json)
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.metrics.encode()
    }

    fn look(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let count = self.desk.count().await;
            *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = count;
        })
    }

    fn api(&self) -> Router<Admin> {
        let routes = dead_letters::routes().with_state(self.desk.clone());
        Router::new().nest("/api/v1/outbox", routes)
    }

    fn api_paths(&self) -> &'static str {
        ", and /api/v1/outbox/dead-letter"
    }

    fn status(&self) -> anyhow::Result<String> {
        let status = self.status.borrow().clone();
        crate::output::to_json(&status)
    }
}

/// A relay that has work and does not get on for this long is not ready.
///
/// Longer than a broker or a database takes to restart: a restart should not raise an alarm.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the relay does its job.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Readiness {
    ready: bool,
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Readiness {
    /// Judges by progress: a connection that is up proves nothing, and one that was just lost
    /// does not matter yet.
    fn of(status: &Status) -> Self {
        let reason = match status.role {
            Role::Standby => None,
            Role::Starting => Some(match &status.last_error {
                Some(error) => format!("starting: {error}"),
                None => "starting".into(),
            }),
            Role::Stopped => Some("stopped".into()),
            Role::Active => stalled(status),
        };
        Self { ready: reason.is_none(), role: status.role, reason }
    }
}

fn stalled(status: &Status) -> Option<String> {
    let age = status.last_progress_age();
    if age.is_some_and(|age| age < PROGRESS_TIMEOUT) {
        return None;
    }
    let since = age.map_or_else(|| "yet".into(), |age| format!("for {} s", age.as_secs()));
    let events = status.in_flight_events;
    let cause = status.last_error.as_deref();
    let cause = cause.map(|it| format!(": {it}")).unwrap_or_default();
    let retry = status.breaker_retry_in.map(|it| format!(", trying again in {} s", it.as_secs()));
    let retry = retry.unwrap_or_default();
    Some(format!("no progress {since} with {events} events in flight{cause}{retry}"))
}

#[derive(Debug)]
struct StatusCollector {
    status: watch::Receiver<Status>,
    in_flight_limit: usize,
    dead_letters: Counted,
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Copied, so that the relay does not wait for the scrape.
        let status = self.status.borrow().clone();
        let mut sink = Sink { encoder: &mut encoder };
        sink.replication(&status)?;
        sink.outbox(&status)?;
        let counted = *self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, oldest)) = counted {
            sink.dead_letters(count as f64, oldest)?;
        }
        sink.gauge(
            "outbox_inflight_limit",
            "Events that may be read but not resolved.",
            self.in_flight_limit as f64,
        )?;
        sink.build_info()
    }
}

impl Sink<'_, '_> {
    fn replication(&mut self, status: &Status) -> fmt::Result {
        let roles = Role::ALL
            .map(|role| ([("role", role.name())], f64::from(u8::from(role == status.role))));
        self.family("relay_role", "1 for what the relay is doing.", roles)?;
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
        let breaker = match status.breaker {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        };
        let help = "Whether the broker is tried: 0 closed, 1 half-open, 2 open.";
        self.family("breaker_state", help, [([("target", "nats")], breaker)])?;
        let help = "Times the breaker opened.";
        self.counter("breaker_opened", help, status.breaker_opened_total)?;
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
        self.family("replication_slot_wal_status", "1 for the slot's wal_status.", statuses)?;
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
        let message = status.deferred_total + status.parked_total;
        let classes = [("outage", status.outages_total), ("message", message)];
        let classes = classes.map(|(class, count)| ([("class", class)], count));
        let help = "Attempts to publish that failed, by whose fault it was.";
        self.counters("outbox_publish_failures", help, classes)?;
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
        let results = [("stored", status.published_total), ("duplicate", status.duplicates_total)];
        let results = results.map(|(result, count)| ([("result", result)], count));
        self.counters("outbox_published", "Events that the broker acknowledged.", results)
    }

    fn dead_letters(&mut self, count: f64, oldest: f64) -> fmt::Result {
        let outbox = |value| [([("source", "outbox")], value)];
        self.family("dead_letter_count", "Dead letters that nobody discarded.", outbox(count))?;
        let help = "Age of the oldest dead letter, or 0.";
        self.family("dead_letter_oldest_age_seconds", help, outbox(oldest))
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn active(progress: Option<Duration>) -> Status {
        let last_progress = progress.and_then(|age| Instant::now().checked_sub(age));
        Status { role: Role::Active, last_progress, in_flight_events: 7, ..Status::default() }
    }

    #[test]
    fn an_active_relay_is_ready_while_it_gets_on() {
        assert!(Readiness::of(&active(Some(Duration::ZERO))).ready);
        // Whatever the sockets do.
        let status = active(Some(Duration::from_secs(5)));
        assert!(!status.nats_connected && Readiness::of(&status).ready);
    }

    #[test]
    fn a_stalled_relay_is_not_ready_although_it_is_connected() {
        let status = Status {
            postgres_connected: true,
            nats_connected: true,
            last_error: Some("no responders".into()),
            breaker_retry_in: Some(Duration::from_secs(7)),
            ..active(Some(Duration::from_secs(31)))
        };
        let reason = Readiness::of(&status).reason.expect("not ready");
        assert_eq!(
            reason,
            "no progress for 31 s with 7 events in flight: no responders, trying again in 7 s"
        );
        assert!(!Readiness::of(&active(None)).ready);
    }

    #[test]
    fn a_standby_is_ready_and_one_that_starts_or_has_stopped_is_not() {
        let ready = |role| Readiness::of(&Status { role, ..Status::default() }).ready;
        assert!(ready(Role::Standby));
        assert!(!ready(Role::Starting));
        assert!(!ready(Role::Stopped));
    }
}
