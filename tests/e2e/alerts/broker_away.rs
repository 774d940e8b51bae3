//! The broker is away while events come and the log grows.

use lab::Direction;
use support::{DEADLINE, TestEnv, until};

use super::watch;

pub(super) const FIRES: &[&str] = &[
    "TailpostBrokerDisconnected",
    "TailpostBreakerOpen",
    "TailpostPublishFailing",
    "TailpostOutboxOld",
    "TailpostOutboxVeryOld",
    "TailpostWalRetained",
    "TailpostWalHeadroomLow",
    "TailpostWalHeadroomGone",
];

pub(super) const WRITES: &[&str] = &[
    "tailpost_breaker_state",
    "tailpost_breaker_opened_total",
    "tailpost_outbox_publish_failures_total",
    "tailpost_outbox_resyncs_total",
    "tailpost_outbox_already_stored_total",
    "tailpost_outbox_backlog",
    "tailpost_outbox_oldest_unpublished_age_seconds",
    "tailpost_outbox_inflight",
    "tailpost_outbox_inflight_bytes",
    "tailpost_replication_lag_bytes",
    "tailpost_replication_lag_seconds",
    "tailpost_replication_slot_retained_bytes",
    "tailpost_replication_slot_wal_headroom_bytes",
    "tailpost_relay_last_progress_age_seconds",
];

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_about_a_broker_that_is_away_fire_and_end() {
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_RELAY__WAL_LIMIT", "64MiB");
        env.setup().await;
        let watch = watch(&mut env, false, &[]).await;
        let relay = env.relay();
        relay.announce(""); // that the log grows is said
        env.insert(10).await;
        env.wait_marked().await;
        watch.wait_quiet().await;

        // The answer to the first message, behind which the others wait, is lost on its way.
        env.to_nats().blackhole(Direction::ToClient);
        env.insert(10).await;
        env.wait_stored(11).await;
        env.to_nats().cut().await;
        env.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
         SELECT gen_random_uuid(), 'order', 'o-1', 'Late', '{}', now() - interval '1 hour'
         FROM generate_series(1, 10)",
        )
        .await;
        let grow = "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000))
                FROM generate_series(1, 4)";
        // Until it has used up nine tenths.
        until(DEADLINE, "the log is as long as it may be", async || {
            let kept = "SELECT pg_current_wal_lsn() - restart_lsn > 59 * 1048576
                    FROM pg_replication_slots WHERE slot_name = 'tailpost'";
            env.query::<bool>(kept).await || {
                env.execute(grow).await;
                false
            }
        })
        .await;
        watch.prometheus.wait_firing(FIRES).await;

        env.to_nats().restore().await.expect("the broker is back");
        env.wait_stored(30).await;
        until(DEADLINE, "the slot moves on", async || {
            env.execute("SELECT pg_logical_emit_message(false, 'other', 'work')").await;
            env.execute("CHECKPOINT").await;
            let kept = "SELECT pg_current_wal_lsn() - restart_lsn < 4 * 1048576
                    FROM pg_replication_slots WHERE slot_name = 'tailpost'";
            env.query::<bool>(kept).await
        })
        .await;
        watch.prometheus.wait_ended(FIRES).await;
        watch.wait_written(WRITES).await;
    }
}
