//! The relay is asked to stop, or to do one round.

use std::time::{Duration, Instant};

use support::{DEADLINE, TestEnv, assert_promise, until};

/// Events that the slot would bring again.
const STILL_TO_COME: &str = "
    SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
        'tailpost', NULL, NULL, 'proto_version', '1', 'publication_names', 'tailpost'
    ) WHERE get_byte(data, 0) = ascii('I')";

// proves: G-STOP-1
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_and_restart_redeliver_nothing() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    let mut ids = env.insert_each(300).await;
    // No waiting for anything but the broker: marks and confirmation are the stop's duty.
    env.wait_stored(300).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    assert_eq!(env.unmarked().await, 0, "marked before the end");
    assert_eq!(env.query::<i64>(STILL_TO_COME).await, 0, "confirmed before the end");

    let relay = env.relay();
    ids.extend(env.insert(1).await);
    env.wait_stored(301).await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    assert_eq!(env.stored_ids().await, ids);
}

/// What the broker does not take stays in PostgreSQL.
// proves: G-STOP-1
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_while_the_broker_is_down_ends_and_loses_nothing() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let mut ids = env.insert(100).await;
    env.wait_confirmed().await;
    env.nats.kill().await.unwrap();
    ids.extend(env.insert(100).await);
    env.wait_sent().await;
    relay.sigterm();
    assert!(relay.wait_exit(Duration::from_secs(30)).await.success());
    let reads = "SELECT count(*) FROM pg_replication_slots WHERE active";
    until(DEADLINE, "nobody reads the slot", async || env.query::<i64>(reads).await == 0).await;
    assert_eq!(env.query::<i64>(STILL_TO_COME).await, 100);

    env.nats.start_again().await.unwrap();
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

/// DESIGN 11: `relay --once`.
#[tokio::test(flavor = "multi_thread")]
async fn once_publishes_what_is_there_and_ends() {
    let env = TestEnv::new().await;
    env.setup().await;
    let mut ids = env.insert(1_000).await;
    for more in [200, 0] {
        let once = env.spawn(&["relay", "--once"]);
        assert!(once.wait_exit(DEADLINE).await.success());
        assert_eq!(env.stored_ids().await, ids);
        assert_eq!(env.unmarked().await, 0);
        assert_eq!(env.query::<i64>(STILL_TO_COME).await, 0);
        ids.extend(env.insert(more).await);
    }
}

/// DESIGN 5, 11: marks may lag and fail, but `relay --once` has no later session to make up for it.
#[tokio::test(flavor = "multi_thread")]
async fn once_ends_when_marks_that_failed_are_made_up_for() {
    let env = TestEnv::new().await;
    env.setup().await;
    let ids = env.insert(3_000).await;
    let mut client = env.client().await;
    let building = client.transaction().await.unwrap();
    // As CREATE INDEX does: whoever reads may, whoever marks may not.
    building.batch_execute("LOCK TABLE outbox_events IN SHARE MODE").await.unwrap();
    let once = env.spawn(&["relay", "--once"]);
    env.wait_stored(3_000).await;
    once.wait_log("lock timeout").await;
    building.rollback().await.unwrap();
    assert!(once.wait_exit(DEADLINE).await.success());
    assert_eq!(env.unmarked().await, 0);
    assert_eq!(env.stored_ids().await, ids);
}

/// DESIGN 11: exit code 5.
#[tokio::test(flavor = "multi_thread")]
async fn once_says_which_server_cannot_be_reached() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    env.insert(10).await;
    env.nats.kill().await.unwrap();
    let once = env.spawn(&["relay", "--once"]);
    assert_eq!(once.wait_exit(DEADLINE).await.code(), Some(5));
    assert!(once.log().contains(&env.nats.port().to_string()), "names NATS: {}", once.log());

    env.nats.start_again().await.unwrap();
    env.postgres.kill().await.unwrap();
    let once = env.spawn(&["relay", "--once"]);
    assert_eq!(once.wait_exit(DEADLINE).await.code(), Some(5));
    assert!(once.log().contains(&env.postgres.port().to_string()), "names it: {}", once.log());
}

mod long {
    use super::*;

    // proves: G-STOP-1
    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_under_load_ends_within_seconds_with_what_was_published_marked_and_confirmed() {
        let env = TestEnv::new().await;
        env.setup().await;
        let load = env.load(41, 1000.0).await;
        for _ in 0..3 {
            let relay = env.relay();
            relay.wait_active().await;
            load.wait_committed(300).await;
            let asked = Instant::now();
            relay.sigterm();
            let status = relay.wait_exit(DEADLINE).await;
            assert!(status.success(), "{status}");
            assert_promise(Duration::from_secs(5), asked.elapsed());
            let marked = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL";
            let marked = env.query::<i64>(marked).await.cast_unsigned();
            assert_eq!(marked, env.stored_count().await, "all that is stored is marked");
        }
        let _relay = env.relay();
        env.finish(load).await;
    }
}
