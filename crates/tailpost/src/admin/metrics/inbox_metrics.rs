//! What an inbox exports: all of it is declared here.

use inbox::{BreakerState, State, Status, Summary, Upkept};
use jiff::Timestamp;

use super::declare::{Declared, Kind, Metric, Values, by, of, one_if, table};
use super::inbox_sample::{Part, Sample};

/// Of each consumer.
pub(super) static CONSUMER: &[Metric<Status>] = table![
    Gauge("inbox_active", "1 while the consumer handles events."):
        |it| Some(one_if(it.state == State::Active)),
    Gauge("inbox_standby", "1 while another worker has the consumer."):
        |it| Some(one_if(it.state == State::Standby)),
    Counter("inbox_outcomes", ["outcome"],
        "Events by outcome, and the broker's markers."):
        |it| {
            let Summary { processed, skipped, retried, dead, released } = it.counts;
            by([
                ("processed", processed),
                ("skipped", skipped),
                ("retried", retried),
                ("dead", dead),
                ("released", released),
                ("marker", it.markers),
            ])
        },
    Histogram("inbox_attempt_duration_seconds",
        "How long handlers took."):
        |it| Some(it.attempts.durations()),
    Counter("inbox_claims", ["result"],
        "Claims by result. New events that share a transaction are not claimed."):
        |it| by(it.claims.by_result()),
    Counter("inbox_lease_renewals", "Leases renewed during handling."):
        |it| Some(it.leases.renewed),
    Counter("inbox_lease_lost", "Leases lost during handling."):
        |it| Some(it.leases.lost),
    Counter("dead_letters", ["source", "reason"], "Events that this process made dead letters."):
        |it| of("inbox", it.dead_letters.by_reason()),
    Gauge("inbox_breaker_state", "State of the breaker: 0 closed, 1 half-open, 2 open."):
        |it| {
            Some(match it.handler.breaker {
                BreakerState::Closed => 0.0,
                BreakerState::HalfOpen => 1.0,
                BreakerState::Open => 2.0,
            })
        },
    Counter("inbox_breaker_opened", "Times the breaker opened."): |it| Some(it.handler.opened),
    Gauge("inbox_inflight", "Events that a handler has."): |it| Some(it.busy as f64),
    Gauge("inbox_held", "Events in memory, in handling or waiting for their aggregate."):
        |it| Some(it.held as f64),
    Gauge("inbox_left", "Events left in the stream behind one without progress."):
        |it| Some(it.left as f64),
    Gauge("inbox_lanes", "Aggregates with an event in memory."): |it| Some(it.lanes as f64),
    Gauge("inbox_went_back_timestamp_seconds", "When the consumer last went back by itself."):
        |it| it.went_back_at.map(|at| at.as_second() as f64),
];

/// What the servers know of each consumer, as of some seconds ago.
pub(super) static SAMPLED: &[Metric<Sample>] = table![
    Gauge("inbox_backlog", "Events that were begun and are not processed."):
        |it| Some((it.backlog.processing + it.backlog.failed) as f64),
    Gauge("inbox_oldest_backlog_age_seconds",
        "Time since the oldest event that was begun and is not processed occurred, or 0."):
        |it| Some(it.backlog.oldest_seconds.unwrap_or(0.0)),
    Gauge("inbox_failed_attempts", "Events of the backlog with more than 3 attempts."):
        |it| Some(it.backlog.stubborn as f64),
    Gauge("dead_letter_count", ["source"], "Dead letters without a decision."):
        |it| by([("inbox", it.backlog.dead as f64)]),
    Gauge("dead_letter_oldest_age_seconds", ["source"],
        "Age of the oldest dead letter without a decision, or 0."):
        |it| by([("inbox", it.backlog.oldest_dead_letter_seconds.unwrap_or(0.0))]),
    Gauge("jetstream_consumer_pending", "Events that the broker has not delivered yet."):
        |it| it.durable.map(|it| it.pending as f64),
    Gauge("jetstream_consumer_ack_pending", "Events delivered and not acknowledged."):
        |it| it.durable.map(|it| it.ack_pending as f64),
    Gauge("jetstream_consumer_redelivered",
        "Events delivered more than once and not acknowledged."):
        |it| it.durable.map(|it| it.redelivered as f64),
    Gauge("jetstream_consumer_idle_seconds",
        "Time since the broker last delivered an event or took an acknowledgement."):
        |it| {
            let idle = it.durable.map(|it| Timestamp::now().duration_since(it.active_at));
            idle.map(|it| it.as_secs_f64().max(0.0))
        },
];

/// Of each durable consumer.
pub(super) static PARTS: &[Metric<Part>] = table![
    Gauge("inbox_stalled_seconds",
        "Time without a delivery or an acknowledgement while there are events, or without a worker. By `durable`."):
        |it| Some(it.stalled.max(it.free).as_secs_f64()),
    Gauge("inbox_unread", "Messages that the consumer missed, at most. By `durable`."):
        |it| Some(it.unread as f64),
];

pub(super) static RETENTION: &[Metric<Upkept>] = table![
    Gauge("retention_last_success_timestamp_seconds",
        "When old rows were last deleted, by any process."):
        |it| it.last_success_at.map(|at| at.as_microsecond() as f64 / 1e6),
    Gauge("retention_overdue",
        "1 while deleting old rows fails, or has not succeeded for three intervals."):
        |it| Some(one_if(it.failure.is_some())),
    Counter("retention_deleted", ["what"],
        "Old rows that were deleted, by this relay or by any inbox."):
        |it| {
            by([
                ("record", it.records_deleted),
                ("partition", it.partitions_dropped),
                ("decision", it.decisions_deleted),
            ])
        },
];
