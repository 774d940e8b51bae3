//! What an inbox exports: all of it is declared here.

use std::time::Duration;

use inbox::{BreakerState, State, Status, Summary, Upkept};
use jiff::Timestamp;

use super::declare::{
    Metric, Unit, build_info, by, counter, counters, dead_letter_count, dead_letter_oldest,
    dead_letters, gauge, of, one_if, retention_deleted, retention_last_success, retention_overdue,
    sample_age, spans_dropped, spans_exported, table, this_build,
};
use super::inbox_sample::Sample;
use crate::otlp;

/// Of each consumer.
pub(super) static CONSUMER: &[Metric<Status>] = table![
    gauge("inbox_active", Unit::State, "1 while the consumer handles events."):
        |it| Some(one_if(it.state == State::Active)),
    gauge("inbox_standby", Unit::State, "1 while another worker has the consumer."):
        |it| Some(one_if(it.state == State::Standby)),
    counters("inbox_outcomes", &["outcome"], "Events by outcome, and markers of the broker, which are no events."):
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
    counters("inbox_claims", &["result"],
        "Claims by result. New events that share a transaction are not claimed."):
        |it| by(it.claims.by_result()),
    counter("inbox_lease_renewals",
        "Leases that were renewed during handling."):
        |it| it.leases.renewed,
    counter("inbox_lease_lost", "Leases that were lost during handling."):
        |it| it.leases.lost,
    dead_letters(): |it| of("inbox", it.dead_letters.by_reason()),
    gauge("inbox_breaker_state", Unit::State,
        "State of the breaker: 0 closed, 1 half-open, 2 open."):
        |it| {
            Some(match it.handler.breaker {
                BreakerState::Closed => 0.0,
                BreakerState::HalfOpen => 1.0,
                BreakerState::Open => 2.0,
            })
        },
    counter("inbox_breaker_opened",
        "Times the breaker opened."):
        |it| it.handler.opened,
    gauge("inbox_inflight", Unit::Number, "Events that a handler has."): |it| Some(it.busy as f64),
    gauge("inbox_held", Unit::Number, "Events in memory, in handling or waiting for their aggregate."):
        |it| Some(it.held as f64),
    gauge("inbox_left", Unit::Number, "Events left in the stream behind one without progress."):
        |it| Some(it.left as f64),
    gauge("inbox_lanes", Unit::Number, "Aggregates with an event in memory."):
        |it| Some(it.lanes as f64),
    gauge("inbox_went_back_timestamp_seconds", Unit::Timestamp,
        "When the consumer last went back by itself."):
        |it| it.went_back_at.map(|at| at.as_second() as f64),
];

/// What the servers know of each consumer, as of some seconds ago.
pub(super) static SAMPLED: &[Metric<Sample>] = table![
    gauge("inbox_backlog", Unit::Number, "Events that were begun and are not processed."):
        |it| Some((it.backlog.processing + it.backlog.failed) as f64),
    gauge("inbox_oldest_backlog_age_seconds", Unit::Seconds,
        "Time since the oldest event that was begun and is not processed occurred, or 0."):
        |it| Some(it.backlog.oldest_seconds.unwrap_or(0.0)),
    gauge("inbox_failed_attempts", Unit::Number,
        "Events of the backlog with more than 3 attempts."):
        |it| Some(it.backlog.stubborn as f64),
    dead_letter_count(): |it| by([("inbox", it.backlog.dead as f64)]),
    dead_letter_oldest():
        |it| by([("inbox", it.backlog.oldest_dead_letter_seconds.unwrap_or(0.0))]),
    gauge("jetstream_consumer_pending", Unit::Number,
        "Events that the broker has not delivered yet."):
        |it| it.durable.map(|it| it.pending as f64),
    gauge("jetstream_consumer_ack_pending", Unit::Number,
        "Events delivered and not acknowledged."):
        |it| it.durable.map(|it| it.ack_pending as f64),
    gauge("jetstream_consumer_redelivered", Unit::Number,
        "Events delivered more than once and not acknowledged."):
        |it| it.durable.map(|it| it.redelivered as f64),
    gauge("jetstream_consumer_idle_seconds", Unit::Seconds,
        "Time since the broker last delivered an event or took an acknowledgement."):
        |it| Some(Timestamp::now().duration_since(it.durable?.active_at).as_secs_f64().max(0.0)),
];

pub(super) static RETENTION: &[Metric<Upkept>] = table![
    retention_last_success(): |it| it.last_success_at.map(|at| at.as_microsecond() as f64 / 1e6),
    retention_overdue(): |it| Some(one_if(it.failure.is_some())),
    retention_deleted():
        |it| {
            by([
                ("record", it.records_deleted),
                ("partition", it.partitions_dropped),
                ("decision", it.decisions_deleted),
            ])
        },
];

/// Of the process: how old its samples are.
pub(super) static PROCESS: &[Metric<Duration>] = table![
    sample_age(): |it| Some(it.as_secs_f64()),
    build_info(): |_| this_build(),
    spans_exported(): |_| otlp::exported(),
    spans_dropped(): |_| otlp::dropped(),
];
