//! What a relay exports: all of it is declared here.

use jiff::Timestamp;
use operate::{RetentionStatus, RewindStatus};
use relay::{BreakerState, Role, Sample, SlotSample, SlotStatus, Status};

use super::declare::{Declared, Kind, Metric, Values, by, of, one_if, table};

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
    Gauge("relay_role", ["role"], "1 for the present role."):
        |it| by(Role::ALL.map(|role| (role.name(), one_if(role == it.role)))),
    Gauge("relay_last_progress_age_seconds",
        "Time since the relay last made progress or had nothing to do."):
        |it| it.last_progress_age().map(|age| age.as_secs_f64()),
    Gauge("replication_connected", "1 while the replication connection is up."):
        |it| Some(one_if(it.postgres_connected)),
    Gauge("jetstream_connected", "1 while the connection to NATS is up."):
        |it| Some(one_if(it.nats_connected)),
    Counter("replication_reconnects", "Connections to either server that were opened again."):
        |it| Some(it.reconnects_total),
    Gauge("replication_received_lsn_bytes", "Position up to which the log was read."):
        |it| Some(it.received_lsn.0 as f64),
    Gauge("replication_resolved_lsn_bytes", "Position up to which everything is stored or parked."):
        |it| Some(it.resolved_lsn.0 as f64),
    Gauge("replication_confirmed_flush_lsn_bytes",
        "Position before which PostgreSQL may delete the log."):
        |it| Some(it.confirmed_flush_lsn.0 as f64),
    Gauge("replication_lag_bytes", "Log that was read and whose events are not resolved."):
        |it| Some(it.lag_bytes() as f64),
    Gauge("replication_lag_seconds",
        "Time since the commit of the oldest event that was read and is not resolved, or 0."):
        |it| Some(it.lag().as_secs_f64()),
    Gauge("replication_slot_retained_bytes", "Log that the slot makes the server keep."):
        |it| slot(it, |it| Some(it.retained_bytes as f64)),
    Gauge("replication_slot_wal_headroom_bytes",
        "Log until the slot's limit: relay.wal_limit or max_slot_wal_keep_size. Missing without \
         a limit."):
        |it| slot(it, |it| it.wal_headroom_bytes.map(|bytes| bytes as f64)),
    Gauge("replication_slot_wal_headroom_seconds",
        "Time until the slot's limit at the present growth of the log. Missing without growth."):
        |it| slot(it, |it| it.wal_headroom_seconds.map(|seconds| seconds as f64)),
];

/// Of each shard.
pub(super) static PUBLISHING: &[Metric<Status>] = table![
    Counter("outbox_published", ["result"], "Events that the broker acknowledged."):
        |it| by([("stored", it.published_total), ("duplicate", it.duplicates_total)]),
    Counter("outbox_publish_failures", ["class"],
        "Failed attempts to publish, by whether the broker or the event was at fault."):
        |it| {
            by([
                ("outage", it.outages_total),
                ("message", it.deferred_total + it.dead_letters_total),
            ])
        },
    Counter("outbox_retries", "Failed attempts that are repeated."):
        |it| Some(it.deferred_total),
    Histogram("outbox_commit_to_ack_seconds",
        "From the commit in PostgreSQL to the acknowledgement by the broker."):
        |it| Some(it.commit_to_ack),
    Histogram("outbox_publish_duration_seconds",
        "From sending a message to the acknowledgement by the broker."):
        |it| Some(it.publish_to_ack),
    Gauge("outbox_inflight", "Events read but not resolved."):
        |it| Some(it.in_flight_events as f64),
    Gauge("outbox_inflight_bytes", "Bytes of the events read but not resolved."):
        |it| Some(it.in_flight_bytes as f64),
    Gauge("breaker_state", ["target"], "State of the breaker: 0 closed, 1 half-open, 2 open."):
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
    Counter("breaker_opened", "Times the breaker opened."): |it| Some(it.breaker_opened_total),
    Counter("outbox_missing",
        "Compared rows whose message the stream lacks, with no limit that explains it."):
        |it| Some(it.history.missing_total),
    Gauge("stream_compared_timestamp_seconds", "When rows were last compared with the stream."):
        |it| it.history.compared_at.map(seconds),
    Counter("outbox_already_stored", "Events found in the stream and not published again."):
        |it| Some(it.already_stored_total),
    Counter("outbox_dropped", "Events that a route dropped."): |it| Some(it.dropped_total),
    Counter("outbox_rows_marked", "Rows marked as published."): |it| Some(it.rows_marked_total),
    Counter("outbox_swept", "Rows whose lost mark was restored."): |it| Some(it.swept_total),
    Counter("outbox_unlogged", "Rows that should have passed the log and did not."):
        |it| Some(it.unlogged_total),
    Counter("outbox_scan_recovered", "Events that the scanner published."):
        |it| Some(it.scanned_total),
    Counter("outbox_replayed", "Events published once more, by a replay."):
        |it| Some(it.replayed_total),
    Counter("outbox_batches", "Batches of messages sent to the broker."):
        |it| Some(it.batches_total),
    Counter("outbox_resyncs", "Times the relay read what the stream has."):
        |it| Some(it.resyncs_total),
    Counter("outbox_strangers", "Ignored answers that were not the stream's."):
        |it| Some(it.strangers_total),
    Counter("outbox_foreign", "Messages of other writers in the stream."):
        |it| Some(it.foreign_total),
    Counter("outbox_ignored_messages",
        "Messages in the log with the outbox's prefix that were ignored."):
        |it| Some(it.ignored_total),
    Gauge("outbox_owed_rows",
        "Rows of published or parked events that are locked, or whose marks the database refuses."):
        |it| Some((it.owed_rows + it.refused_marks) as f64),
    Gauge("outbox_unidentified_rows", "Rows without an id, which cannot be published."):
        |it| Some(it.unidentified_rows as f64),
    Counter("dead_letters", ["source", "reason"], "Events that this process made dead letters."):
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
    Gauge("replication_slot_wal_status", ["status"],
        "1 for the slot's wal_status. Missing without a slot."):
        |it| {
            let Some(status) = &it.wal_status else { return Values(Vec::new()) };
            let names = ["reserved", "extended", "unreserved", "lost"];
            by(names.map(|name| (name, one_if(status == name))))
        },
    Gauge("replication_slot_created_timestamp_seconds", "When the slot was last created."):
        |it| it.created_at.map(seconds),
    Gauge("stream_lost_timestamp_seconds",
        "When the stream was last found without messages that it had acknowledged."):
        |it| it.stream_lost_at.map(seconds),
    Gauge("stream_lost_unanswered",
        "Messages that the stream has lost, no row names, and no operator has accounted for."):
        |it| Some(it.stream_lost_unanswered as f64),
];

/// What only the database knows, as of some seconds ago.
pub(super) static SAMPLED: &[Metric<Sample>] = table![
    Gauge("outbox_backlog", "Rows that are not published, counted up to 100,000 of each shard."):
        |it| Some(it.unpublished as f64),
    Gauge("outbox_oldest_unpublished_age_seconds",
        "Time since the oldest row that is not published occurred, or 0."):
        |it| Some(it.oldest_unpublished.as_secs_f64()),
    Gauge("replays", ["status"], "Replays by their state."):
        |it| {
            let count = |status: &str| it.replays.get(status).copied().unwrap_or_default() as f64;
            by(["asked", "running", "paused", "cancelled", "done"].map(|it| (it, count(it))))
        },
];

pub(super) static LETTERS: &[Metric<Letters>] = table![
    Gauge("dead_letter_count", ["source"], "Dead letters without a decision."):
        |it| by([("outbox", it.0 as f64)]),
    Gauge("dead_letter_oldest_age_seconds", ["source"],
        "Age of the oldest dead letter without a decision, or 0."):
        |it| by([("outbox", it.1)]),
];

/// Of each shard that has a rewind slot, or is to have one.
pub(super) static REWIND: &[Metric<RewindStatus>] = table![
    Gauge("rewind_slot_exists", "1 while there is a rewind slot."): |it| Some(one_if(it.exists)),
    Gauge("rewind_retained_bytes", "Log that the rewind slot makes the server keep."):
        |it| Some(it.retained_bytes as f64),
    Gauge("rewind_extra_bytes", "Log that only the rewind slot makes the server keep."):
        |it| Some(it.extra_bytes as f64),
    Gauge("rewind_oldest_timestamp_seconds", "Commits since then can be replayed from the log."):
        |it| it.from.map(seconds),
    Counter("rewind_made", "Times the rewind slot was created, by any process."):
        |it| Some(it.made_total),
    Counter("rewind_failures", "Failed checks of the rewind slot."): |it| Some(it.failures_total),
];

pub(super) static RETENTION: &[Metric<RetentionStatus>] = table![
    Gauge("retention_last_success_timestamp_seconds",
        "When old rows were last deleted, by any process."):
        |it| it.last_success_at.map(seconds),
    Gauge("retention_overdue",
        "1 while deleting old rows fails, or has not succeeded for three intervals."):
        |it| Some(one_if(it.is_overdue)),
    Counter("retention_deleted", ["what"],
        "Old rows that were deleted, by this relay or by any inbox."):
        |it| {
            by([
                ("published", it.published_deleted_total),
                ("dead_letter", it.dead_letters_deleted_total),
                ("audit", it.audit_deleted_total),
            ])
        },
    Counter("retention_failures", "Failed attempts of this process to delete old rows."):
        |it| Some(it.failures_total),
    Counter("partitions_dropped", "Partitions of the outbox that this process dropped."):
        |it| Some(it.partitions_dropped_total),
    Gauge("partition_horizon_seconds",
        "How long inserts into the outbox have a partition. Missing without partitions."):
        |it| it.partitions_until.map(|it| it.duration_since(Timestamp::now()).as_secs_f64()),
];

/// Of all shards together.
pub(super) static LIMITS: &[Metric<usize>] = table![
    Gauge("outbox_inflight_limit", "Events that may be read but not resolved."):
        |it| Some(*it as f64),
];
