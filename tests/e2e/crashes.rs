//! The relay dies like a crash, wherever it is in its work.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{DEADLINE, Rig, until};

/// Kills the relay at seeded moments under load: starting, reading the tail, publishing, marking,
/// confirming. The network is slow at times, so that much is under way; some of the crashes take what
/// is under way along, as that of a machine would.
async fn survives_kills(seed: u64, duplicate_window: &str) {
    let mut rig = Rig::proxied().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", duplicate_window);
    rig.setup().await;
    let load = rig.load(seed, 2000.0).await;
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..12 {
        let relay = rig.relay();
        if random.random_bool(0.8) {
            relay.wait_active().await;
            let delay = [0, 0, 10, 200][random.random_range(0..4)];
            rig.to_nats().set_delay(Duration::from_millis(delay));
        }
        let moment = Duration::from_micros(random.random_range(0..400_000));
        tokio::time::sleep(moment).await;
        if random.random_bool(0.5) {
            rig.to_nats().cut().await;
        }
        relay.kill9().await;
        rig.to_nats().restore().await.expect("restore the network");
    }
    let _relay = rig.relay();
    load.wait_committed(200).await;
    rig.finish(load).await;
    assert_eq!(rig.epochs().await, 1, "no relay took its own slot for another one");
}

/// R-REL-02, R-REL-03, R-REL-05, R-REL-06.
// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_under_load_each_event_is_stored_once_in_order() {
    survives_kills(1, "2m").await;
}

/// R-REL-02, R-REL-03, R-REL-05, R-REL-06: the broker forgets ids long before the next relay comes.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_with_a_tiny_duplicate_window_each_event_is_stored_once_in_order() {
    survives_kills(2, "100ms").await;
}

/// R-REL-05, R-REL-06: one writer, so that the order of commits is known without the relay's word.
// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_the_stream_is_in_commit_order() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let relay = rig.relay();
        relay.wait_active().await;
        ids.extend(rig.insert_each(100).await);
        relay.kill9().await;
        ids.extend(rig.insert(20).await);
    }
    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    assert_eq!(rig.epochs().await, 1, "no relay took its own slot for another one");
}

/// R-REL-02, R-REL-03, R-REL-05: between decoding and ack. What was read is not confirmed, so it is
/// read again.
// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_after_reading_the_log_and_before_any_ack_everything_is_stored_in_order() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let relay = rig.relay();
    let mut ids = rig.insert(10).await;
    rig.wait_marked().await;
    rig.nats.pause().expect("pause NATS");
    let before = rig.wal_end().await;
    ids.extend(rig.insert_each(300).await);
    rig.wait_sent().await;
    let read: String = rig.query("SELECT clock_timestamp()::TEXT").await;
    let heard =
        format!("SELECT reply_time > '{read}'::TIMESTAMPTZ + '1s' FROM pg_stat_replication");
    until(DEADLINE, "the relay confirms what it may", async || rig.query::<bool>(&heard).await)
        .await;
    relay.kill9().await;
    let confirmed = rig.confirmed().await;
    assert!(confirmed <= before, "{confirmed} is beyond what the broker acknowledged: {before}");
    assert_eq!(rig.unmarked().await, 300);

    rig.nats.resume().expect("resume NATS");
    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    rig.wait_confirmed().await;
    assert_eq!(rig.epochs().await, 1, "the log brought them, not the scanner");
}

/// R-REL-02, R-REL-06: between ack and mark. The broker has everything, the table knows of nothing.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_ack_and_mark_everything_is_marked_and_nothing_published_again() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let ids = rig.insert(500).await;
    rig.wait_stored(500).await;
    rig.wait_confirmed().await;
    relay.kill9().await;
    assert_eq!(rig.unmarked().await, 500, "killed before the marks");

    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    let wrong = "SELECT count(*) FROM outbox_events WHERE stream <> 'OUTBOX' OR stream IS NULL";
    assert_eq!(rig.query::<i64>(wrong).await, 0, "marks name the stream");
    let placed = "SELECT count(*) FROM outbox_events WHERE stream_seq > 0 AND commit_lsn > '0/0'";
    assert_eq!(rig.query::<i64>(placed).await, 500, "and the place in it");
}

/// R-REL-02, R-REL-03, R-REL-06: between mark and confirm. PostgreSQL keeps the confirmed position in
/// memory until a checkpoint, so its crash takes the confirmation back and leaves the marks.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_mark_and_confirm_nothing_is_published_again() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let mut ids = rig.insert(500).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    let confirmed = rig.confirmed().await;
    relay.kill9().await;
    // Marks are committed lazily: a transaction of ours takes them to the disk.
    rig.execute("CREATE TABLE after_the_marks ()").await;
    rig.postgres.kill().await.unwrap();
    rig.postgres.start_again().await.unwrap();
    assert!(rig.confirmed().await < confirmed, "the confirmation is lost");
    assert_eq!(rig.unmarked().await, 0, "the marks are not");

    let _relay = rig.relay();
    ids.extend(rig.insert(1).await);
    rig.wait_stored(501).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-REL-05, R-REL-06, R-REL-11.
#[tokio::test(flavor = "multi_thread")]
async fn killed_inside_a_transaction_of_ten_thousand_rows_it_goes_on_in_the_middle() {
    const ROWS: i32 = 10_000;
    let mut rig = Rig::proxied().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    // Slow enough to be caught in the middle.
    rig.set("TAILPOST_RELAY__WINDOW_EVENTS", "200");
    rig.setup().await;
    rig.to_nats().set_delay(Duration::from_millis(5));
    let ids = rig.insert(ROWS).await;
    let mut goal = 0;
    for _ in 0..4 {
        let relay = rig.relay();
        rig.wait_stored(goal + 1).await;
        relay.kill9().await;
        let stored = rig.stored_count().await;
        assert!(stored > goal && stored < 10_000, "killed inside: {stored}");
        goal = stored + 500;
    }
    rig.to_nats().restore().await.unwrap();
    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    rig.wait_confirmed().await;
}

/// R-REL-06, R-REL-07: rows that the log does not bring, and rows that it does.
// proves: G-LOSS-1
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_scanner_publishes_old_rows_each_event_is_stored_once_in_order() {
    let mut rig = Rig::proxied().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.set("TAILPOST_RELAY__SCAN_BATCH", "100");
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    rig.setup().await;
    rig.insert(8_000).await;
    rig.execute("SELECT pg_drop_replication_slot('tailpost')").await;
    rig.setup().await;
    let load = rig.load(3, 200.0).await;
    let old_and_unmarked =
        "SELECT count(*) FROM outbox_events WHERE published_at IS NULL AND aggregate_id ~ '^o-'";
    let mut left = 8_000;
    for _ in 0..6 {
        let relay = rig.relay();
        relay.wait_active().await;
        rig.to_nats().set_delay(Duration::from_millis(20));
        let stored = rig.stored_count().await;
        rig.wait_stored(stored + 150).await;
        relay.kill9().await;
        rig.to_nats().restore().await.unwrap();
        let before = std::mem::replace(&mut left, rig.query::<i64>(old_and_unmarked).await);
        assert!(left <= before && left > 0, "killed in the middle: {left} old rows are left");
    }
    let _relay = rig.relay();
    rig.finish(load).await;
}
