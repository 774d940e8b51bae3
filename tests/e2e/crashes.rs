//! The relay dies like a crash, wherever it is in its work.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, TestEnv, until};

/// Kills the relay at seeded moments under load: starting, reading the tail, publishing, marking,
/// confirming. The network is slow at times, so that much is under way; some of the crashes take what
/// is under way along, as that of a machine would.
async fn survives_kills(seed: u64, duplicate_window: &str, kills: u32) {
    let mut env = TestEnv::proxied().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", duplicate_window);
    env.setup().await;
    let load = env.load(seed, 1000.0).await;
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..kills {
        let relay = env.relay();
        if random.random_bool(0.8) {
            relay.wait_active().await;
            let delay = [0, 0, 10, 200][random.random_range(0..4)];
            env.to_nats().set_delay(Duration::from_millis(delay));
        }
        let moment = Duration::from_micros(random.random_range(0..400_000));
        tokio::time::sleep(moment).await;
        if random.random_bool(0.5) {
            env.to_nats().cut().await;
        }
        relay.kill9().await;
        env.to_nats().restore().await.expect("restore the network");
    }
    let _relay = env.relay();
    load.wait_committed(200).await;
    env.finish(load).await;
    assert_eq!(env.epochs().await, 1, "no relay took its own slot for another one");
}

// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_under_load_each_event_is_stored_once_in_order() {
    survives_kills(1, "2m", 6).await;
}

/// One writer, so that the order of commits is known without the relay's word.
// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_the_stream_is_in_commit_order() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let relay = env.relay();
        relay.wait_active().await;
        ids.extend(env.insert_each(100).await);
        relay.kill9().await;
        ids.extend(env.insert(20).await);
    }
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(env.epochs().await, 1, "no relay took its own slot for another one");
}

/// Between decoding and ack. What was read is not confirmed, so it is
/// read again.
// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_after_reading_the_log_and_before_any_ack_everything_is_stored_in_order() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    let mut ids = env.insert(10).await;
    env.wait_marked().await;
    env.nats.pause().expect("pause NATS");
    ids.extend(env.insert_each(300).await);
    env.wait_sent().await;
    let read: String = env.query("SELECT clock_timestamp()::TEXT").await;
    let heard =
        format!("SELECT reply_time > '{read}'::TIMESTAMPTZ + '1s' FROM pg_stat_replication");
    until(DEADLINE, "the relay confirms what it may", async || env.query::<bool>(&heard).await)
        .await;
    relay.kill9().await;
    let confirmed = env.confirmed().await;
    assert_eq!(env.unmarked().await, 300);

    env.nats.resume().expect("resume NATS");
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    // Where the first commit of what the broker had not acknowledged is in the log.
    let unacknowledged =
        "SELECT (min(commit_lsn) - '0/0'::PG_LSN)::BIGINT FROM outbox_events WHERE seq > 10";
    let unacknowledged = env.query::<i64>(unacknowledged).await.cast_unsigned();
    assert!(confirmed <= unacknowledged, "{confirmed} is beyond {unacknowledged}");
    env.wait_confirmed().await;
    assert_eq!(env.epochs().await, 1, "the log brought them, not the scanner");
}

/// Between ack and mark. The broker has everything, the table knows of nothing.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_ack_and_mark_everything_is_marked_and_nothing_published_again() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let ids = env.insert(500).await;
    env.wait_stored(500).await;
    env.wait_confirmed().await;
    relay.kill9().await;
    assert_eq!(env.unmarked().await, 500, "killed before the marks");

    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    let wrong = "SELECT count(*) FROM outbox_events WHERE stream <> 'OUTBOX' OR stream IS NULL";
    assert_eq!(env.query::<i64>(wrong).await, 0, "marks name the stream");
    let placed = "SELECT count(*) FROM outbox_events WHERE stream_seq > 0 AND commit_lsn > '0/0'";
    assert_eq!(env.query::<i64>(placed).await, 500, "and the place in it");
}

/// Between mark and confirm. PostgreSQL keeps the confirmed position in
/// memory until a checkpoint, so its crash takes the confirmation back and leaves the marks.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_mark_and_confirm_nothing_is_published_again() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let mut ids = env.insert(500).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    let confirmed = env.confirmed().await;
    relay.kill9().await;
    // Marks are committed lazily: a transaction of ours takes them to the disk.
    env.execute("CREATE TABLE after_the_marks ()").await;
    env.postgres.kill().await.unwrap();
    env.postgres.start_again().await.unwrap();
    assert!(env.confirmed().await < confirmed, "the confirmation is lost");
    assert_eq!(env.unmarked().await, 0, "the marks are not");

    let _relay = env.relay();
    ids.extend(env.insert(1).await);
    env.wait_stored(501).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    assert_eq!(env.stored_ids().await, ids);
}

mod long {
    use super::*;

    /// The broker forgets ids long before the next relay comes.
    // proves: G-ONCE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_at_any_moment_with_a_tiny_duplicate_window_each_event_is_stored_once_in_order()
    {
        survives_kills(2, "100ms", 12).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn killed_inside_a_transaction_of_ten_thousand_rows_it_goes_on_in_the_middle() {
        const ROWS: i32 = 10_000;
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        // Slow enough to be caught in the middle.
        env.set("TAILPOST_RELAY__WINDOW_EVENTS", "200");
        env.setup().await;
        env.to_nats().set_delay(Duration::from_millis(5));
        let ids = env.insert(ROWS).await;
        let mut goal = 0;
        for _ in 0..4 {
            let relay = env.relay();
            env.wait_stored(goal + 1).await;
            relay.kill9().await;
            let stored = env.stored_count().await;
            assert!(stored > goal && stored < 10_000, "killed inside: {stored}");
            goal = stored + 500;
        }
        env.to_nats().restore().await.unwrap();
        let _relay = env.relay();
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        env.wait_confirmed().await;
    }

    /// Rows that the log does not bring, and rows that it does.
    // proves: G-LOSS-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_while_the_scanner_publishes_old_rows_each_event_is_stored_once_in_order() {
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.set("TAILPOST_RELAY__SCAN_BATCH", "100");
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
        env.setup().await;
        env.insert(8_000).await;
        env.drop_slot("tailpost").await;
        env.setup().await;
        let load = env.load(3, 200.0).await;
        let old_and_unmarked = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL AND aggregate_id ~ '^o-'";
        let mut left = 8_000;
        for _ in 0..6 {
            let relay = env.relay();
            relay.wait_active().await;
            env.to_nats().set_delay(Duration::from_millis(20));
            let stored = env.stored_count().await;
            env.wait_stored(stored + 150).await;
            relay.kill9().await;
            env.to_nats().restore().await.unwrap();
            let before = std::mem::replace(&mut left, env.query::<i64>(old_and_unmarked).await);
            assert!(left <= before && left > 0, "killed in the middle: {left} old rows are left");
        }
        let _relay = env.relay();
        env.finish(load).await;
    }
}
