//! Rows and messages that somebody should look at.

use support::{DEADLINE, TestEnv, until};

use super::watch;

pub(super) const FIRES: &[&str] = &[
    "TailpostRowsWithoutId",
    "TailpostRowsLocked",
    "TailpostForeignMessages",
    "TailpostDeadLettersGrowing",
    "TailpostDeadLetterOld",
    "TailpostRowsBypassedLog",
];

pub(super) const WRITES: &[&str] = &[
    "tailpost_outbox_unidentified_rows",
    "tailpost_outbox_owed_rows",
    "tailpost_outbox_foreign_total",
    "tailpost_outbox_strangers_total",
    "tailpost_outbox_unlogged_total",
    "tailpost_outbox_swept_total",
    "tailpost_outbox_ignored_messages_total",
    "tailpost_outbox_retries_total",
    "tailpost_retention_deleted_total",
    "tailpost_dead_letters_total",
    "tailpost_dead_letter_count",
    "tailpost_dead_letter_oldest_age_seconds",
];

/// Adopted: it does not say that ids are there.
const TABLE: &str = "
    CREATE TABLE outbox_events (
        id UUID, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
        event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload JSONB NOT NULL,
        occurred_at TIMESTAMPTZ DEFAULT NOW(), correlation_id UUID, causation_id UUID,
        published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0, publish_error TEXT,
        txid XID8 DEFAULT pg_current_xact_id(), seq BIGSERIAL, UNIQUE (id, aggregate_type)
    ) PARTITION BY LIST (aggregate_type);
    CREATE TABLE orders PARTITION OF outbox_events FOR VALUES IN ('order', 'unwelcome')";

async fn emit(env: &TestEnv, aggregate_type: &str, id: &str, headers: &str) {
    env.execute(&format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES ({id}, '{aggregate_type}', 'o-1', 'Placed', '{{}}', {headers})"
    ))
    .await;
}

const AN_ID: &str = "gen_random_uuid()";

/// The stream takes only this subject from now on.
async fn take(env: &TestEnv, subject: &str) {
    let mut config = env.stream().await.cached_info().config.clone();
    config.subjects = vec![subject.to_owned()];
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(config).await.expect("change the stream");
}

const LOCK_UNMARKED: &str = "SELECT FROM outbox_events WHERE published_at IS NULL FOR UPDATE";

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_about_odd_rows_and_messages_fire_and_end() {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
        env.set("TAILPOST_RELAY__MAX_ATTEMPTS", "2");
        env.set("TAILPOST_RETENTION__DEAD_LETTERS", "1d");
        env.set("TAILPOST_RETENTION__INTERVAL", "500ms");
        env.execute(TABLE).await;
        env.setup().await;
        let watch = watch(&mut env, false, &[]).await;
        let relay = env.relay();
        relay.announce("");
        emit(&env, "order", AN_ID, "NULL").await;
        env.wait_marked().await;
        watch.wait_quiet().await;

        emit(&env, "order", "NULL", "NULL").await;
        watch.prometheus.wait_firing(&["TailpostRowsWithoutId"]).await;
        env.execute("DELETE FROM outbox_events WHERE id IS NULL").await;

        // Locked before the relay can mark it.
        relay.pause();
        emit(&env, "order", AN_ID, "NULL").await;
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        assert_eq!(lock.execute(LOCK_UNMARKED, &[]).await.expect("lock rows"), 1);
        relay.resume();
        watch.prometheus.wait_firing(&["TailpostRowsLocked"]).await;
        lock.rollback().await.expect("let go");
        env.wait_marked().await;

        let client = env.nats.client().await.expect("connect to NATS");
        let forge = |reply: &str| vec![lab::Forged::new(reply, "{}")];
        let stranger = lab::Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
        emit(&env, "order", AN_ID, "NULL").await;
        until(DEADLINE, "it answers", async || stranger.answered() > 0).await;
        drop(stranger);
        let other = env.nats.jetstream().await.expect("connect to NATS");
        other.publish("outbox.by.hand", "x".into()).await.expect("publish").await.expect("stored");
        emit(&env, "order", AN_ID, "NULL").await;
        watch.prometheus.wait_firing(&["TailpostForeignMessages"]).await;

        // A mark that is lost, and rows that the log cannot bring.
        env.execute("UPDATE outbox_events SET published_at = NULL").await;
        env.execute(
            "CREATE TABLE imports (LIKE outbox_events INCLUDING ALL);
         INSERT INTO imports (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'import', 'i', 'Imported', '{}' FROM generate_series(1, 5);
         ALTER TABLE outbox_events ATTACH PARTITION imports FOR VALUES IN ('import')",
        )
        .await;
        // A watermark follows at once.
        emit(&env, "order", AN_ID, "NULL").await;
        watch.prometheus.wait_firing(&["TailpostRowsBypassedLog"]).await;
        env.wait_marked().await;

        // A header that is none, a subject that is not taken, a message that is no event.
        emit(&env, "order", AN_ID, "'[]'").await;
        watch.prometheus.wait_firing(&["TailpostDeadLettersGrowing"]).await;
        env.execute("UPDATE outbox_dead_letter SET dead_at = now() - interval '2 days'").await;
        watch.prometheus.wait_firing(&["TailpostDeadLetterOld"]).await;
        take(&env, "outbox.order.>").await;
        emit(&env, "unwelcome", AN_ID, "NULL").await;
        let prefix = outbox::Table::default().wal_prefix();
        env.execute(&format!("SELECT pg_logical_emit_message(true, '{prefix}', '{{}}')")).await;
        let parked = "SELECT count(*) = 2 FROM outbox_dead_letter";
        until(DEADLINE, "both are parked", async || env.query::<bool>(parked).await).await;
        take(&env, "outbox.>").await;
        for reason in ["refused", "max_attempts"] {
            let count = format!("tailpost_dead_letters_total{{reason=\"{reason}\"}} == 1");
            let is_counted = async || !watch.prometheus.query(&count).await.is_empty();
            until(DEADLINE, &format!("one is dead as {reason}"), is_counted).await;
        }
        env.ends_with(
            0,
            &["outbox", "dlq", "discard", "--all-matching", "--why", "a test", "--yes"],
        )
        .await;
        // As if that was long ago: they are deleted.
        env.execute("UPDATE outbox_dead_letter SET discarded_at = now() - interval '3 days'").await;
        watch.prometheus.wait_ended(FIRES).await;
        watch.wait_written(WRITES).await;
    }
}
