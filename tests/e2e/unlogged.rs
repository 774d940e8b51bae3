//! Rows that the log should have brought, and did not: none is taken for published.

use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

const SHOUT: &str = "without passing the log";

async fn env() -> TestEnv {
    let mut env = TestEnv::new().await;
    // A second publication of an event would be stored.
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env
}

async fn assert_stored(env: &TestEnv, mut expected: Vec<Uuid>) {
    let mut stored = env.stored_ids().await;
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored, expected);
}

/// Nothing is logged as an insert into the outbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_rows_attached_as_a_partition_is_published() {
    let env = env().await;
    env.execute(
        "CREATE TABLE outbox_events (
             id UUID, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
             event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload JSONB NOT NULL,
             occurred_at TIMESTAMPTZ DEFAULT NOW(), correlation_id UUID, causation_id UUID,
             published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0, publish_error TEXT,
             txid XID8 DEFAULT pg_current_xact_id(), seq BIGSERIAL,
             PRIMARY KEY (id, aggregate_type)
         ) PARTITION BY LIST (aggregate_type);
         CREATE TABLE orders PARTITION OF outbox_events FOR VALUES IN ('order')",
    )
    .await;
    env.setup().await;
    let relay = env.relay();
    relay.announce(SHOUT);
    let mut expected = env.insert_each(10).await;
    env.wait_marked().await;

    env.execute(
        "CREATE TABLE imports (LIKE outbox_events INCLUDING ALL);
         INSERT INTO imports (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'import', 'i', 'Imported', '{}' FROM generate_series(1, 20)",
    )
    .await;
    expected.extend(env.insert_each(10).await);
    env.wait_marked().await;
    env.execute("ALTER TABLE outbox_events ATTACH PARTITION imports FOR VALUES IN ('import')")
        .await;
    expected.extend(env.insert_each(1).await);
    let imported = env.client().await.query("SELECT id FROM imports", &[]).await.expect("ids");
    expected.extend(imported.iter().map(|row| row.get::<_, Uuid>(0)));
    env.wait_marked().await;
    assert!(relay.log().contains(SHOUT));
    assert_stored(&env, expected).await;
    let placed = "SELECT count(*) FROM imports WHERE stream_seq > 0";
    assert_eq!(env.query::<i64>(placed).await, 20);
}

/// As after an upgrade, when nobody wrote down yet what was confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_replaced_before_anything_was_written_down_costs_no_event() {
    let env = env().await;
    env.setup().await;
    let relay = env.relay();
    let mut expected = env.insert_each(10).await;
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());

    expected.extend(env.insert_each(10).await);
    // The server takes a moment to notice that its reader has gone.
    until(DEADLINE, "the slot is free", async || {
        let drop = "SELECT pg_drop_replication_slot('tailpost');
                    UPDATE tailpost_state SET checkpoint_lsn = NULL";
        env.client().await.batch_execute(drop).await.is_ok()
    })
    .await;
    env.execute("SELECT pg_create_logical_replication_slot('tailpost', 'pgoutput')").await;
    expected.extend(env.insert_each(10).await);
    let relay = env.relay();
    relay.announce(SHOUT);
    env.wait_marked().await;
    assert_stored(&env, expected).await;
}

/// With old messages gone, silence of the stream proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_messages_were_purged_are_not_published_again() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    env.setup().await;
    let relay = env.relay();
    env.insert_each(10).await;
    env.wait_stored(10).await;
    env.wait_confirmed().await;
    relay.kill9().await;
    assert_eq!(env.unmarked().await, 10);
    env.purge().await;

    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let relay = env.relay();
    relay.wait_active().await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 0);
}

mod long {
    use super::*;

    /// An older transaction's number makes a row look as if it had been missed. The
    /// log brings it nevertheless, a moment later.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_number_written_by_the_application_does_not_publish_twice() {
        let env = env().await;
        env.setup().await;
        let relay = env.relay();
        let mut expected = env.insert_each(10).await;
        env.wait_marked().await;
        let client = env.client().await;
        for _ in 0..300 {
            let sql = "INSERT INTO outbox_events
                 (id, aggregate_type, aggregate_id, event_type, payload, txid)
             SELECT gen_random_uuid(), 'order', 'o-1', 'Odd', '{}',
                 pg_snapshot_xmax(start_snapshot)
             FROM tailpost_state RETURNING id";
            expected.push(client.query_one(sql, &[]).await.expect("insert").get(0));
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
        assert!(!relay.log().contains(SHOUT), "none was missed:\n{}", relay.log());
    }

    /// Rows that are unmarked although a sweep has covered them were published, as far
    /// back in the stream as that may be.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_unmarked_by_hand_are_looked_for_in_the_whole_stream() {
        let mut env = env().await;
        // What the scanner reads back of the stream by itself is little.
        env.set("TAILPOST_RELAY__SCAN_BATCH", "100");
        env.set("TAILPOST_RELAY__WINDOW_EVENTS", "64");
        env.setup().await;
        let relay = env.relay();
        relay.announce(SHOUT);
        env.insert(12_000).await;
        env.wait_marked().await;
        let swept = "SELECT bool_and(pg_visible_in_snapshot(txid, swept_snapshot))
                 FROM outbox_events, tailpost_state WHERE seq <= 3000";
        until(DEADLINE, "a sweep has covered them", async || {
            env.insert(1).await; // a sweep is written down with the next watermark
            env.query::<bool>(swept).await
        })
        .await;
        env.execute(
            "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL
         WHERE seq <= 3000",
        )
        .await;
        env.insert(1).await; // a watermark follows at once
        env.wait_marked().await;
        let rows: i64 = env.query("SELECT count(*) FROM outbox_events").await;
        assert_eq!(env.stored_count().await, rows.cast_unsigned(), "{}", relay.log());
        let has_told = async || relay.log().contains("the stream has them all the same");
        until(DEADLINE, "it is told", has_told).await;
        assert!(!relay.log().contains(SHOUT), "{}", relay.log());
        let placed = "SELECT count(*) FROM outbox_events WHERE stream_seq IS NOT NULL";
        assert_eq!(env.query::<i64>(placed).await, rows);
    }
}
