//! Another version of Tailpost has been at the schema, one before the first release or one after this one.

use std::time::{Duration, Instant};

use support::{DEADLINE, TestEnv, until};

/// As the next version may leave it: migrations only add.
const LATER: &str = "
    INSERT INTO tailpost_migrations (version, name, checksum, outbox_table)
        SELECT 999, 'later', checksum, outbox_table FROM tailpost_migrations LIMIT 1;
    ALTER TABLE outbox_events ADD COLUMN later TEXT, ADD COLUMN latest INT NOT NULL DEFAULT 7;
    ALTER TABLE outbox_dead_letter ADD COLUMN later TEXT;
    ALTER TABLE tailpost_state ADD COLUMN later TEXT;
    ALTER TABLE tailpost_owed ADD COLUMN later TEXT;
    ALTER TABLE tailpost_replays ADD COLUMN later TEXT;
    ALTER TABLE tailpost_published ADD COLUMN later TEXT;
    CREATE TABLE tailpost_later (id INT PRIMARY KEY);";

async fn works(env: &TestEnv) {
    let relay = env.relay();
    relay.wait_active().await;
    let ids = env.insert_each(30).await;
    env.wait_marked().await;
    let stored = env.stored_ids().await;
    assert_eq!(stored[stored.len() - 30..], ids[..]);
    env.ends_with(0, &["maintain"]).await;
    env.ends_with(0, &["verify"]).await;
    env.ends_with(0, &["status"]).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

// proves: G-UPGRADE-3
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_works_beside_the_schema_of_the_next_version() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.execute(LATER).await;
    works(&env).await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(!told.contains("created"), "{told}");
    works(&env).await;
}

/// What versions before the first release recorded has other checksums and numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_before_the_first_release_is_refused_with_the_way_to_this_one() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["slot", "drop"]).await;
    let ids = env.insert_each(3).await;
    env.execute(
        "DELETE FROM tailpost_migrations WHERE version > 1;
         UPDATE tailpost_migrations SET checksum = 'dca413c504537e6b';
         INSERT INTO tailpost_migrations (version, name, checksum, outbox_table)
             SELECT 2, 'slot_life', 'ff5d1428ebb075d4', outbox_table FROM tailpost_migrations",
    )
    .await;
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains("a version before the first release"), "{log}");
    let (_, statements) = log.split_once("Then run `").expect("the statements");
    let (statements, _) = statements.split_once('`').expect("their end");
    env.execute(statements).await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("created  migration 0004_retention"), "{told}");
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

mod long {
    use super::*;

    /// Migrations wait for the table, and producers behind them, no longer than their lock timeout,
    /// and where the table is free they take an instant whatever its size.
    // proves: G-UPGRADE-3
    #[tokio::test(flavor = "multi_thread")]
    async fn migrations_of_a_large_table_hold_no_producer_up() {
        let env = TestEnv::new().await;
        env.setup().await;
        env.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at)
         SELECT gen_random_uuid(), 'order', 'o', 'Placed', '{}', now() FROM generate_series(1, 200000)",
        )
        .await;
        // The first, too, rewrites no table that has its columns.
        env.execute("DELETE FROM tailpost_migrations").await;
        let rewritten = "SELECT pg_relation_filenode('outbox_events')::bigint";
        let before: i64 = env.query(rewritten).await;
        let client = env.client().await;
        let setup = env.spawn(&["setup"]);
        let (mut longest, mut inserted) = (Duration::ZERO, 0);
        until(DEADLINE, "set-up has ended", async || {
            let started = Instant::now();
            let insert = "SELECT outbox_emit('order', 'o', 'Placed', '{}')";
            client.batch_execute(insert).await.expect("insert an event");
            longest = longest.max(started.elapsed());
            inserted += 1;
            setup.stdout().contains("slot tailpost")
        })
        .await;
        assert!(setup.wait_exit(DEADLINE).await.success());
        assert!(setup.stdout().contains("created  migration 0004"), "{}", setup.stdout());
        assert!(longest < Duration::from_secs(10), "the lock timeout of a migration: {longest:?}");
        assert_eq!(env.query::<i64>(rewritten).await, before, "the table was not written anew");
        assert!(inserted > 1);
        let _relay = env.relay();
        env.wait_marked().await;
    }
}
