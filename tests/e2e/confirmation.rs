//! What PostgreSQL is told to forget, and when.

use std::time::{Duration, Instant};

use lab::Direction;
use support::{DEADLINE, TestEnv, assert_promise, until};

/// Log of others: rows that no event comes with.
const OTHER_WORK: &str = "
    CREATE TABLE IF NOT EXISTS other_work (filler TEXT);
    INSERT INTO other_work SELECT repeat('x', 1000) FROM generate_series(1, 1000)";

/// Far less log than the busy database of a test writes, in bytes.
const RETAINED_MAX: u64 = 1 << 20;

/// A keepalive tells an end of the log beyond the event whose ack is missing.
// proves: G-LOSS-4
#[tokio::test(flavor = "multi_thread")]
async fn keepalives_do_not_confirm_while_an_event_is_in_flight() {
    let mut env = TestEnv::proxied().await;
    env.setup().await;
    let _relay = env.relay();
    env.insert(1).await;
    env.wait_stored(1).await;
    env.wait_confirmed().await;

    env.to_nats().blackhole(Direction::ToClient);
    let ids = env.insert(1).await;
    // Behind its commit. Before that the relay itself may have written something.
    let behind = env.wal_end().await;
    env.wait_stored(2).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        env.execute(OTHER_WORK).await;
        let confirmed = env.confirmed().await;
        assert!(confirmed < behind, "{confirmed} is beyond the event in flight before {behind}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(env.unmarked().await, 1, "no ack, no mark");

    env.to_nats().restore().await.unwrap();
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await.split_off(1), ids);
}

/// An idle outbox in a busy database holds no log back.
// proves: G-SLOT-1
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_outbox_in_a_busy_database_retains_no_log() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    for _ in 0..5 {
        env.execute(OTHER_WORK).await;
        let (end, started) = (env.wal_end().await, Instant::now());
        until(DEADLINE, "others' log is confirmed", async || env.confirmed().await >= end).await;
        assert_promise(Duration::from_secs(5), started.elapsed());
    }
    assert_eq!(env.stored_count().await, 0);
}

/// All databases share one log. The slot of an idle one lets it go while others write.
// proves: G-SLOT-1
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_outbox_beside_a_busy_database_retains_no_log() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    env.postgres.create_database("busy").await.expect("create a database");
    let busy = env.postgres.client("busy").await.expect("connect to it");
    let before = env.wal_end().await;
    for _ in 0..10 {
        busy.batch_execute(OTHER_WORK).await.expect("work");
    }
    assert!(env.wal_end().await - before > 5 * RETAINED_MAX, "too little work to tell");
    let retained = "SELECT (pg_current_wal_lsn() - restart_lsn)::BIGINT FROM pg_replication_slots
                    WHERE slot_name = 'tailpost'";
    until(DEADLINE, "the others' log is let go", async || {
        // The log can be let go from where PostgreSQL wrote down what runs, as it does now and then.
        env.execute("CHECKPOINT").await;
        env.query::<i64>(retained).await.cast_unsigned() < RETAINED_MAX
    })
    .await;
    assert_eq!(env.stored_count().await, 0);
}

/// An event now and then is confirmed within half a second of being stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_on_an_idle_stream_is_confirmed_within_half_a_second() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let mut took = Vec::new();
    for stored in 1..=6 {
        env.insert(1).await;
        let end = env.wal_end().await;
        env.wait_stored(stored).await;
        let started = Instant::now();
        until(DEADLINE, "it is confirmed", async || env.confirmed().await >= end).await;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    eprintln!("confirmed after {took:?}");
    assert!(took[took.len() / 2] < Duration::from_millis(500), "it took {took:?}");
}

/// A quiet relay on a quiet server does not keep either of them busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_relay_leaves_a_quiet_server_alone() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    env.insert(1).await;
    env.wait_marked().await;
    // Written rarer and rarer: when nothing was written for three seconds, it is rare enough.
    let idle = "SELECT clock_timestamp() - updated_at > '3s' FROM tailpost_state";
    until(DEADLINE, "it is quiet", async || env.query::<bool>(idle).await).await;
}
