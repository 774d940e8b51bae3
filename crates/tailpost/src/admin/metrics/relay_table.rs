//! What a relay exports: all of it is declared here.

use std::time::Duration;

use jiff::Timestamp;
use operate::{RetentionStatus, RewindStatus};
use relay::{BreakerState, Role, Sample, SlotSample, SlotStatus, Status};

use super::declare::{
    Metric, Unit, build_info, by, counter, counters, dead_letter_count, dead_letter_oldest,
    dead_letters, gauge, gauges, histogram, of, one_if, retention_deleted, retention_last_success,
    retention_overdue, sample_age, spans_dropped, spans_exported, table, this_build,
};
use crate::otlp;

/// What is the same for all shards of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfProcess {
    pub(super) in_flight_limit: usize,
    pub(super) sample_age: Duration,
}

/// How many dead letters there are, and the age of the oldest in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Letters(pub(super) u64, pub(super) f64);

fn slot(status: &Status, read: fn(&SlotStatus) -> Option<f64>) -> Option<f64> {
    status.slot.as_ref().and_then(read)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

/// Of each shard.
pub(super) static REPLICATION: &[Metric<Status>] = table![
    gauges("relay_role", Unit::State, &["role"], "1 for the present role."):
        |it| by(Role::ALL.map(|role| (role.name(), one_if(role == it.role)))),
    gauge("relay_last_progress_age_seconds", Unit::Seconds,
        "Time since the relay last made progress or had nothing to do."):
        |it| it.last_progress_age().map(|age| age.as_secs_f64()),
    gauge("replication_connected", Unit::State, "1 while the replication connection is up."):
        |it| Some(one_if(it.postgres_connected)),
    gauge("jetstream_connected", Unit::State, "1 while the connection to NATS is up."):
        |it| Some(one_if(it.nats_connected)),
    counter("replication_reconnects", "Connections to either server that were opened again."):
        |it| it.reconnects_total,
    gauge("replication_received_lsn_bytes", Unit::Bytes, "Position up to which the log was read."):
        |it| Some(it.received_lsn.0 as f64),
    gauge("replication_resolved_lsn_bytes", Unit::Bytes,
        "Position up to which everything is stored or parked."):
        |it| Some(it.resolved_lsn.0 as f64),
    gauge("replication_confirmed_flush_lsn_bytes", Unit::Bytes,
        "Position before which PostgreSQL may delete the log."):
        |it| Some(it.confirmed_flush_lsn.0 as f64),
    gauge("replication_lag_bytes", Unit::Bytes,
        "Log that was read and whose events are not resolved."):
        |it| Some(it.lag_bytes() as f64),
    gauge("replication_lag_seconds", Unit::Seconds,
        "Time since the commit of the oldest event that was read and is not resolved, or 0."):
        |it| Some(it.lag().as_secs_f64()),
    gauge("replication_slot_retained_bytes", Unit::Bytes,
        "Log that the slot makes the server keep."):
        |it| slot(it, |it| Some(it.retained_bytes as f64)),
    gauge("replication_slot_wal_headroom_bytes", Unit::Bytes,
        "Log until the slot's limit: relay.wal_limit or max_slot_wal_keep_size. Missing without \
         a limit."):
        |it| slot(it, |it| it.wal_headroom_bytes.map(|bytes| bytes as f64)),
    gauge("replication_slot_wal_headroom_seconds", Unit::Seconds,
        "Time until the slot's limit at the present growth of the log. Missing without growth."):
        |it| slot(it, |it| it.wal_headroom_seconds.map(|seconds| seconds as f64)),
];

/// Of each shard.
pub(super) static PUBLISHING: &[Metric<Status>] = table![
    counters("outbox_published", &["result"], "Events that the broker acknowledged."):
        |it| by([("stored", it.published_total), ("duplicate", it.duplicates_total)]),
    counters("outbox_publish_failures", &["class"],
        "Failed attempts to publish, by whether the broker or the event was at fault."):
        |it| {
            by([
                ("outage", it.outages_total),
                ("message", it.deferred_total + it.dead_letters_total),
            ])
        },
    counter("outbox_retries", "Attempts at an event that failed and are repeated later."):
        |it| it.deferred_total,
    histogram("outbox_commit_to_ack_seconds",
        "From the commit in PostgreSQL to the acknowledgement by the broker."):
        |it| &it.commit_to_ack,
    histogram("outbox_publish_duration_seconds",
        "From sending a message to the acknowledgement by the broker."):
        |it| &it.publish_to_ack,
    gauge("outbox_inflight", Unit::Number, "Events read but not resolved."):
        |it| Some(it.in_flight_events as f64),
    gauge("outbox_inflight_bytes", Unit::Bytes, "Bytes of the events read but not resolved."):
        |it| Some(it.in_flight_bytes as f64),
    gauges("breaker_state", Unit::State, &["target"],
        "State of the breaker: 0 closed, 1 half-open, 2 open."):
        |it| {
            by([(
                "nats",
                match it.breaker {
                    BreakerState::Closed => 0.0,
                    BreakerState::HalfOpen => 1.0,
                    BreakerState::Open => 2.0,
                },
            )])
        },
    counter("breaker_opened", "Times the breaker opened."): |it| it.breaker_opened_total,
    counter("outbox_missing",
        "Compared rows whose message the stream lacks, with no limit that explains it."):
        |it| it.history.missing_total,
    gauge("stream_compared_timestamp_seconds", Unit::Timestamp,
        "When rows were last compared with the stream."):
        |it| it.history.compared_at.map(seconds),
    counter("outbox_already_stored", "Events found in the stream and not published again."):
        |it| it.already_stored_total,
    counter("outbox_dropped", "Events that a route dropped."): |it| it.dropped_total,
    counter("outbox_rows_marked", "Rows marked as published."): |it| it.rows_marked_total,
    counter("outbox_swept", "Rows whose lost mark was restored."): |it| it.swept_total,
    counter("outbox_unlogged", "Rows that should have passed the log and did not."):
        |it| it.unlogged_total,
    counter("outbox_scan_recovered",
        "Events that the scanner published."):
        |it| it.scanned_total,
    counter("outbox_replayed", "Events published once more, by a replay."): |it| it.replayed_total,
    counter("outbox_batches", "Batches of messages sent to the broker."): |it| it.batches_total,
    counter("outbox_resyncs", "Times the relay read what the stream has."):
        |it| it.resyncs_total,
    counter("outbox_strangers", "Ignored answers that were not the stream's."):
        |it| it.strangers_total,
    counter("outbox_foreign", "Messages of other writers in the stream."):
        |it| it.foreign_total,
    counter("outbox_ignored_messages",
        "Messages in the log with the outbox's prefix that were ignored."):
        |it| it.ignored_total,
    gauge("outbox_owed_rows", Unit::Number,
        "Rows of published or parked events that are locked, or whose marks the database refuses."):
        |it| Some((it.owed_rows + it.refused_marks) as f64),
    gauge("outbox_unidentified_rows", Unit::Number,
        "Rows without an id, which cannot be published."):
        |it| Some(it.unidentified_rows as f64),
    dead_letters():
        |it| {
            let by = &it.dead_letters_by_reason;
            of(
                "outbox",
                [
                    ("unfit", by.unfit),
                    ("refused", by.refused),
                    ("max_attempts", by.max_attempts),
                    ("blocked", by.blocked),
                ],
            )
        },
];

/// The slot of each shard, as of some seconds ago, also while no relay reads it.
pub(super) static SLOTS: &[Metric<SlotSample>] = table![
    gauges("replication_slot_wal_status", Unit::State, &["status"],
        "1 for the slot's wal_status. Missing without a slot."):
        |it| {
            let Some(status) = &it.wal_status else { return Vec::new() };
            let names = ["reserved", "extended", "unreserved", "lost"];
            by(names.map(|name| (name, one_if(status == name))))
        },
    gauge("replication_slot_created_timestamp_seconds", Unit::Timestamp,
        "When the slot was last created."):
        |it| it.created_at.map(seconds),
    gauge("stream_lost_timestamp_seconds", Unit::Timestamp,
        "When the stream was last found without messages that it had acknowledged."):
        |it| it.stream_lost_at.map(seconds),
    gauge("stream_lost_unanswered", Unit::Number,
        "Messages that the stream has lost, no row names, and no operator has accounted for."):
        |it| Some(it.stream_lost_unanswered as f64),
];

/// What only the database knows, as of some seconds ago.
pub(super) static SAMPLED: &[Metric<Sample>] = table![
    gauge("outbox_backlog", Unit::Number,
        "Rows that are not published, counted up to 100,000 of each shard."):
        |it| Some(it.unpublished as f64),
    gauge("outbox_oldest_unpublished_age_seconds", Unit::Seconds,
        "Time since the oldest row that is not published occurred, or 0."):
        |it| Some(it.oldest_unpublished.as_secs_f64()),
    gauges("replays", Unit::Number, &["status"], "Replays by their state."):
        |it| {
            let count = |status: &str| it.replays.get(status).copied().unwrap_or_default() as f64;
            by(["asked", "running", "paused", "cancelled", "done"].map(|it| (it, count(it))))
        },
];

pub(super) static LETTERS: &[Metric<Letters>] = table![
    dead_letter_count(): |it| by([("outbox", it.0 as f64)]),
    dead_letter_oldest(): |it| by([("outbox", it.1)]),
];

/// Of each shard that has a rewind slot, or is to have one.
pub(super) static REWIND: &[Metric<RewindStatus>] = table![
    gauge("rewind_slot_exists", Unit::State, "1 while there is a rewind slot."):
        |it| Some(one_if(it.exists)),
    gauge("rewind_retained_bytes", Unit::Bytes, "Log that the rewind slot makes the server keep."):
        |it| Some(it.retained_bytes as f64),
    gauge("rewind_extra_bytes", Unit::Bytes,
        "Log that only the rewind slot makes the server keep."):
        |it| Some(it.extra_bytes as f64),
    gauge("rewind_oldest_timestamp_seconds", Unit::Timestamp,
        "Commits since then can be replayed from the log."):
        |it| it.from.map(seconds),
    counter("rewind_made", "Times the rewind slot was created, by any process."): |it| it.made_total,
    counter("rewind_failures", "Failed checks of the rewind slot."): |it| it.failures_total,
];

pub(super) static RETENTION: &[Metric<RetentionStatus>] = table![
    retention_last_success(): |it| it.last_success_at.map(seconds),
    retention_overdue(): |it| Some(one_if(it.is_overdue)),
    retention_deleted():
        |it| {
            by([
                ("published", it.published_deleted_total),
                ("dead_letter", it.dead_letters_deleted_total),
                ("audit", it.audit_deleted_total),
            ])
        },
    counter("retention_failures", "Failed attempts of this process to delete old rows."):
        |it| it.failures_total,
    counter("partitions_dropped", "Partitions of the outbox that this process dropped."):
        |it| it.partitions_dropped_total,
    gauge("partition_horizon_seconds", Unit::Seconds,
        "How long inserts into the outbox have a partition. Missing without partitions."):
        |it| Some(it.partitions_until?.duration_since(Timestamp::now()).as_secs_f64()),
];

pub(super) static PROCESS: &[Metric<OfProcess>] = table![
    gauge("outbox_inflight_limit", Unit::Number, "Events that may be read but not resolved."):
        |it| Some(it.in_flight_limit as f64),
    sample_age(): |it| Some(it.sample_age.as_secs_f64()),
    build_info(): |_| this_build(),
    spans_exported(): |_| otlp::exported(),
    spans_dropped(): |_| otlp::dropped(),
];
