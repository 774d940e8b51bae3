//! While no relay runs, somebody changes what the log brings: no event is taken for published.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::jetstream::stream::DiscardPolicy;
use lab::Direction;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use crate::any_stream::edit;

/// Has published ten events, and stopped cleanly.
async fn env() -> (TestEnv, Vec<uuid::Uuid>) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let ids = env.insert(10).await;
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    (env, ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_lacked_the_table_for_a_while_costs_no_event() {
    let (env, mut expected) = env().await;
    env.execute("ALTER PUBLICATION tailpost DROP TABLE outbox_events").await;
    expected.extend(env.insert_each(10).await);
    env.execute("ALTER PUBLICATION tailpost ADD TABLE outbox_events").await;
    expected.extend(env.insert_each(10).await);

    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

/// Faster than the relay looks at it.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_changed_and_changed_back_beside_a_relay_costs_no_event() {
    let (env, mut expected) = env().await;
    let relay = env.relay();
    relay.wait_active().await;
    // It looks at the publication when it begins.
    expected.extend(env.insert_each(10).await);
    env.wait_marked().await;
    relay.pause();
    env.execute("ALTER PUBLICATION tailpost SET (publish = '')").await;
    expected.extend(env.insert_each(10).await);
    env.execute("ALTER PUBLICATION tailpost SET (publish = 'insert')").await;
    relay.resume();
    expected.extend(env.insert_each(10).await);
    env.wait_marked().await;
    // Those that the log lacks may come behind those that it brings.
    let mut stored = env.stored_ids().await;
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored, expected);
}

/// After a clean stop, and after a crash.
// proves: G-LOSS-3
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_replaced_by_hand_costs_no_event() {
    let (env, mut expected) = env().await;
    for crash in [false, true] {
        let relay = env.relay();
        relay.wait_active().await;
        expected.extend(env.insert_each(10).await);
        env.wait_marked().await;
        env.wait_confirmed().await;
        if crash {
            relay.kill9().await;
        } else {
            relay.sigterm();
            assert!(relay.wait_exit(DEADLINE).await.success());
        }
        expected.extend(env.insert_each(10).await);
        env.drop_slot("tailpost").await;
        env.execute("SELECT pg_create_logical_replication_slot('tailpost', 'pgoutput')").await;
        expected.extend(env.insert_each(10).await);

        let relay = env.relay();
        relay.wait_log("somebody replaced").await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
    }
}

/// A position that no relay confirmed.
// proves: G-LOSS-3
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_advanced_by_hand_costs_no_event() {
    let (env, mut expected) = env().await;
    expected.extend(env.insert_each(10).await);
    env.advance_slot("tailpost", "pg_current_wal_lsn()").await;
    expected.extend(env.insert_each(10).await);

    let relay = env.relay();
    relay.wait_log("somebody replaced or advanced the slot: creating it anew").await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    let told: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let reason = "somebody replaced or advanced the slot";
    assert_eq!(told["slot"]["created_because"], reason, "{told}");
}

/// Slots are the cluster's, outboxes are the databases'.
#[tokio::test(flavor = "multi_thread")]
async fn the_slot_of_another_database_is_not_stood_by_for() {
    let (mut env, _) = env().await;
    let relay = env.relay();
    relay.wait_active().await;
    env.postgres.create_database("second").await.expect("create a database");
    env.set("DATABASE_URL", &env.postgres.url("second"));
    let setup = env.spawn(&["setup"]);
    setup.announce("error: ");
    assert_eq!(setup.wait_exit(DEADLINE).await.code(), Some(4), "{}", setup.log());
    assert!(setup.log().contains("postgres.slot"), "{}", setup.log());
}

/// A commit that the log has, and nobody sees before a synchronous standby has it, is
/// older than the slot. Newer events of its aggregate wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_older_than_the_slot_that_waits_for_a_standby_comes_before_newer_ones() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["slot", "drop"]).await;
    env.execute("ALTER DATABASE postgres SET synchronous_commit = local").await;
    let client = env.client().await;
    env.postgres.wait_for_standbys(&client, "nobody").await.expect("let commits wait");
    // The slot waits for transactions in two rounds. What commits in the second is in its snapshot.
    let (first, second, third) = (env.client().await, env.client().await, env.client().await);
    let begin = "BEGIN; SELECT pg_current_xact_id()";
    first.batch_execute(begin).await.expect("begin");
    let create = env.spawn(&["slot", "create"]);
    let waited_for = |pid: i32| {
        format!("SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY (pg_blocking_pids(pid))")
    };
    for (client, next) in [(&first, Some(&second)), (&second, None)] {
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0);
        let sql = waited_for(pid);
        until(DEADLINE, "the slot waits", async || env.query::<i64>(&sql).await == 1).await;
        if let Some(next) = next {
            next.batch_execute(begin).await.expect("begin");
            client.batch_execute("COMMIT").await.expect("commit");
        }
    }
    let hidden = tokio::spawn(async move {
        let sql = "SET synchronous_commit = on;
                   SELECT outbox_emit('order', 'o-1', 'First', '{}')";
        third.batch_execute(sql).await.expect("commit in the end");
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until(DEADLINE, "the commit waits", async || env.query::<i64>(waits).await == 1).await;
    second.batch_execute("COMMIT").await.expect("commit");
    assert!(create.wait_exit(DEADLINE).await.success(), "{}", create.log());

    let relay = env.relay();
    env.execute("SELECT outbox_emit('order', 'o-1', 'Second', '{}')").await;
    relay.wait_log("wait for a synchronous standby").await;
    assert_eq!(env.stored_count().await, 0);
    env.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    env.execute("SELECT pg_reload_conf()").await;
    hidden.await.expect("the commit ends");
    env.wait_stored(2).await;
    env.wait_marked().await;
    let stored = env.stored().await;
    let types: Vec<_> = stored.iter().map(|it| it.header("Event-Type").unwrap_or("")).collect();
    assert_eq!(types, ["First", "Second"]);
}

/// PostgreSQL keeps the low half of the numbers of transactions. 2^32 transactions later that of who
/// made the publication means one that the slot's snapshot did not see: here the snapshot is older.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_was_found_older_than_the_slot_stays_so() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    let mut ids = env.insert(10).await;
    env.wait_marked().await;
    let epochs = env.epochs().await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    env.execute("UPDATE tailpost_state SET start_snapshot = '3:3:'").await;
    let relay = env.relay();
    ids.extend(env.insert(10).await);
    env.wait_marked().await;
    assert_eq!(env.epochs().await, epochs, "{}", relay.log());
    assert_eq!(env.stored_ids().await, ids);
    env.ends_with(0, &["doctor", "--only", "publication-age"]).await;
}

mod long {
    use super::*;

    /// Between looking at the slot and reading it, a relay is held up.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slot_created_anew_behind_a_slow_relays_back_costs_no_event() {
        let mut env = TestEnv::proxied().await;
        env.setup().await;
        let expected = env.insert_each(10).await;
        env.to_postgres().set_delay(Duration::from_millis(300));
        let _slow = env.relay();
        let looked = "SELECT count(*) FROM pg_stat_activity
         WHERE backend_type = 'walsender' AND query = 'SELECT pg_backend_pid()'";
        until(DEADLINE, "the slot is looked at", async || env.query::<i64>(looked).await == 1)
            .await;
        env.set("DATABASE_URL", &env.postgres.url("postgres"));
        env.drop_slot("tailpost").await;
        env.setup().await;
        env.to_postgres().set_delay(Duration::ZERO);

        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
    }

    /// As after an upgrade, or where a copy takes over. The marks of what was published
    /// before waited when the relay was killed.
    #[tokio::test(flavor = "multi_thread")]
    async fn another_cluster_with_marks_that_are_missing_publishes_nothing_twice() {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        // What the scanner reads back of the stream by itself is little.
        env.set("TAILPOST_RELAY__SCAN_BATCH", "100");
        env.set("TAILPOST_RELAY__WINDOW_EVENTS", "64");
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
        env.set("TAILPOST_RELAY__MARK_BATCH", "100000");
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let mut ids = env.insert(12_000).await;
        env.wait_stored(12_000).await;
        env.wait_confirmed().await;
        relay.kill9().await;
        assert_eq!(env.unmarked().await, 12_000);
        ids.extend(env.insert(10).await);
        env.execute("UPDATE tailpost_state SET system_identifier = '7'").await;

        env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
        env.set("TAILPOST_RELAY__MARK_BATCH", "1000");
        let relay = env.relay();
        relay.wait_log("copied from another cluster").await;
        env.wait_marked().await;
        ids.extend(env.insert(10).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
    }

    /// Beyond what the relay confirmed, and not beyond what it has written down.
    // proves: G-LOSS-3
    #[tokio::test(flavor = "multi_thread")]
    async fn a_slot_advanced_to_what_is_written_down_costs_no_event() {
        for mark in ["row", "lean"] {
            let mut env = TestEnv::proxied().await;
            env.set("TAILPOST_RELAY__MARK", mark);
            env.setup().await;
            let relay = env.relay();
            relay.wait_active().await;
            env.to_nats().set_delay(Duration::from_millis(300));
            let load = env.load(7, 500.0).await;
            load.wait_committed(500).await;
            env.to_nats().blackhole(Direction::Both);
            let written = load.stop().await;
            relay.kill9().await;
            env.to_nats().restore().await.expect("restore the network");
            let advance = "SELECT pg_replication_slot_advance('tailpost', checkpoint_lsn)
                FROM tailpost_state JOIN pg_replication_slots ON slot_name = slot
                WHERE checkpoint_lsn > confirmed_flush_lsn";
            until(DEADLINE, "the slot is free", async || {
                env.client().await.batch_execute(advance).await.is_ok()
            })
            .await;
            let relay = env.relay();
            relay.announce("rows came into the outbox without passing the log");
            let expected: HashSet<Uuid> = written.committed.iter().map(|it| it.id).collect();
            let mut missing = 0;
            until(DEADLINE, "every event is in the stream", async || {
                let stored: HashSet<Uuid> = env.stored_ids().await.into_iter().collect();
                let left = expected.difference(&stored).count();
                if left != missing {
                    eprintln!("{mark}: {left} of {} are missing", expected.len());
                }
                missing = left;
                missing == 0
            })
            .await;
        }
    }

    /// While rows that the log lacks wait, somebody drops the column that tells them from the others.
    // proves: G-SETUP-2, G-LOSS-3
    #[tokio::test(flavor = "multi_thread")]
    async fn a_gap_whose_rows_lose_their_transactions_before_it_is_filled_costs_no_event() {
        for dropped in
            ["DROP COLUMN txid CASCADE", "DROP COLUMN txid CASCADE, DROP COLUMN seq CASCADE"]
        {
            let (env, mut expected) = env().await;
            env.execute("ALTER PUBLICATION tailpost DROP TABLE outbox_events").await;
            expected.extend(env.insert_each(10).await);
            env.execute("ALTER PUBLICATION tailpost ADD TABLE outbox_events").await;
            env.setup().await;
            expected.extend(env.insert_each(10).await);
            env.execute(&format!("ALTER TABLE outbox_events {dropped}")).await;
            env.setup().await;
            expected.extend(env.insert_each(10).await);

            let _relay = env.relay();
            env.wait_marked().await;
            env.wait_confirmed().await;
            let mut stored = env.stored_ids().await;
            stored.sort_unstable();
            expected.sort_unstable();
            assert_eq!(stored, expected, "{dropped}");
        }
    }

    /// The stream is full, and a refused attempt has rewritten rows that the log brings.
    // proves: G-ONCE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn an_event_that_was_tried_before_its_transaction_was_forgotten_is_stored_once() {
        for restarts in [false, true] {
            let (env, mut expected) = env().await;
            edit(&env, |it| (it.max_messages, it.discard) = (10, DiscardPolicy::New)).await;
            let mut relay = env.relay();
            relay.wait_active().await;
            expected.extend(env.insert_each(5).await);
            env.wait_sent().await;
            env.execute("UPDATE outbox_events SET publish_attempts = 1 WHERE published_at IS NULL")
                .await;
            env.execute("ALTER TABLE outbox_events DROP COLUMN txid CASCADE").await;
            env.setup().await;
            if restarts {
                relay.kill9().await;
                relay = env.relay();
            }
            edit(&env, |it| it.max_messages = -1).await;
            env.wait_marked().await;
            env.wait_confirmed().await;
            assert_eq!(env.stored_ids().await, expected, "restarts: {restarts}");
            drop(relay);
        }
    }
}
