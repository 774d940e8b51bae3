//! PostgreSQL, the relay and the slot go away.

use lab::PostgresOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

use super::watch;

pub(super) const FIRES: &[&str] =
    &["TailpostNoActiveRelay", "TailpostDown", "TailpostSlotLost", "TailpostFiguresOld"];

pub(super) const WRITES: &[&str] = &[
    "tailpost_relay_role",
    "tailpost_replication_reconnects_total",
    "tailpost_replication_slot_wal_status",
    "tailpost_replication_slot_created_timestamp_seconds",
    "tailpost_outbox_scan_recovered_total",
    "tailpost_sample_age_seconds",
];

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_about_servers_and_slots_that_are_gone_fire_and_end() {
        let settings = vec![("max_slot_wal_keep_size".to_owned(), "1MB".to_owned())];
        let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
        let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
        env.setup().await;
        let watch = watch(&mut env, false, &[]).await;
        let relay = env.relay();
        relay.announce("");
        env.insert(10).await;
        env.wait_marked().await;
        watch.wait_quiet().await;

        // Whoever holds the table keeps it from being counted.
        let client = env.client().await;
        client.batch_execute("BEGIN; LOCK TABLE outbox_events").await.expect("lock the table");
        watch.prometheus.wait_firing(&["TailpostFiguresOld"]).await;
        client.batch_execute("COMMIT").await.expect("unlock the table");
        watch.prometheus.wait_ended(&["TailpostFiguresOld"]).await;

        env.postgres.kill().await.expect("kill PostgreSQL");
        watch.prometheus.wait_firing(&["TailpostNoActiveRelay"]).await;
        env.postgres.start_again().await.expect("start PostgreSQL");
        watch.prometheus.wait_ended(&["TailpostNoActiveRelay"]).await;

        env.nats.pause().expect("pause NATS");
        env.insert(10).await;
        until(DEADLINE, "the slot's log is lost", async || {
            env.execute("SELECT pg_logical_emit_message(false, 'other', 'work')").await;
            env.execute("SELECT pg_switch_wal()").await;
            env.execute("CHECKPOINT").await;
            let lost = "SELECT coalesce(wal_status = 'lost', false) FROM pg_replication_slots";
            env.query::<bool>(lost).await
        })
        .await;
        watch.prometheus.wait_firing(&["TailpostSlotLost"]).await;
        env.nats.resume().expect("resume NATS");
        env.wait_stored(20).await;
        watch.prometheus.wait_ended(&["TailpostSlotLost"]).await;
        watch.wait_written(WRITES).await;

        relay.kill9().await;
        watch.prometheus.wait_firing(&["TailpostDown"]).await;
        let relay = env.relay();
        relay.announce("");
        watch.prometheus.wait_ended(&["TailpostDown"]).await;
    }
}
