//! What nobody looks after: old rows, partitions, a replay, the slot that keeps the log.

use lab::PostgresOptions;
use serde_json::Value;
use support::{TestEnv, TestEnvOptions};

use super::watch;

pub(super) const FIRES: &[&str] = &[
    "TailpostRetentionOverdue",
    "TailpostPartitionsEnd",
    "TailpostReplayPaused",
    "TailpostRewindSlotMissing",
];

pub(super) const WRITES: &[&str] = &[
    "tailpost_retention_last_success_timestamp_seconds",
    "tailpost_retention_overdue",
    "tailpost_retention_failures_total",
    "tailpost_partitions_dropped_total",
    "tailpost_partition_horizon_seconds",
    "tailpost_replays",
    "tailpost_outbox_replayed_total",
    "tailpost_rewind_slot_exists",
    "tailpost_rewind_retained_bytes",
    "tailpost_rewind_extra_bytes",
    "tailpost_rewind_oldest_timestamp_seconds",
    "tailpost_rewind_made_total",
    "tailpost_rewind_failures_total",
];

/// Servers with an outbox by day, and with no slot but the relay's to be had.
async fn env() -> TestEnv {
    let settings = vec![("max_replication_slots".to_owned(), "2".to_owned())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RETENTION__INTERVAL", "200ms");
    env.set("TAILPOST_RETENTION__PUBLISHED", "1s");
    env.set("TAILPOST_REWIND__RETAIN", "1GiB");
    env.ends_with(0, &["setup", "--partitioned"]).await;
    env.execute("SELECT pg_create_physical_replication_slot('other')").await;
    env
}

/// Asks for a replay of everything, one event a second. Returns its id.
async fn replay(env: &TestEnv) -> String {
    let ask = ["replay", "--json", "--rate", "1", "--source", "stream", "--all"];
    let why = ["--execute", "--why", "a test", "--by", "ada", "--detach"];
    let (told, _) = env.ends_with(0, &[&ask[..], &why].concat()).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    told["replays"][0].as_str().expect("an id").to_owned()
}

/// A partition of the past, with rows that are kept for long enough.
const OLD: &str = "
    DO $$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - 3; BEGIN
        EXECUTE format('CREATE TABLE outbox_events_p%s PARTITION OF outbox_events
                        FOR VALUES FROM (''%s 00:00Z'') TO (''%s 00:00Z'')',
                       to_char(day, 'YYYYMMDD'), day, day + 1);
    END $$;
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, inserted_at)
    SELECT gen_random_uuid(), 'order', 'o-1', 'Old', '{}', now() - interval '3 days'
    FROM generate_series(1, 5)";

/// Nobody may create tables, and the days to come have no partitions any more.
const REFUSE_AHEAD: &str = "
    CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE EXCEPTION 'no tables today'; END $$;
    CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE')
        EXECUTE FUNCTION refuse();
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT inhrelid::regclass FROM pg_inherits
            WHERE inhparent = 'outbox_events'::regclass
              AND inhrelid::regclass::text > 'outbox_events_p'
                  || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')
        LOOP EXECUTE 'DROP TABLE ' || name; END LOOP;
    END $$";

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_about_what_is_neglected_fire_and_end() {
        let mut env = env().await;
        let watch = watch(&mut env, false, &[]).await;
        let relay = env.relay();
        relay.announce("");
        env.insert(40).await;
        env.execute(OLD).await;
        env.wait_stored(45).await;
        watch.prometheus.wait_firing(&["TailpostRewindSlotMissing"]).await;
        env.drop_slot("other").await;

        let id = replay(&env).await;
        watch.wait_written(&["tailpost_outbox_replayed_total"]).await;
        env.ends_with(0, &["replays", "pause", &id]).await;
        watch.prometheus.wait_firing(&["TailpostReplayPaused"]).await;
        env.ends_with(0, &["replays", "cancel", &id]).await;

        watch.wait_written(&["tailpost_partitions_dropped_total"]).await;
        env.execute(REFUSE_AHEAD).await;
        watch.prometheus.wait_firing(&["TailpostPartitionsEnd", "TailpostRetentionOverdue"]).await;
        env.execute("DROP EVENT TRIGGER refuse").await;
        watch.prometheus.wait_ended(FIRES).await;
        watch.wait_written(WRITES).await;
    }
}
