//! What PostgreSQL is told to forget, and when.

use std::time::{Duration, Instant};

use support::{DEADLINE, Rig, until};
use testbed::Direction;

/// Log of others: rows that no event comes with.
const OTHER_WORK: &str = "
    CREATE TABLE IF NOT EXISTS other_work (filler TEXT);
    INSERT INTO other_work SELECT repeat('x', 1000) FROM generate_series(1, 1000)";

/// Far less log than the busy database of a test writes, in bytes.
const RETAINED_MAX: u64 = 1 << 20;

/// R-REL-03: a keepalive tells an end of the log beyond the event whose ack is missing.
// proves: G-LOSS-4
#[tokio::test(flavor = "multi_thread")]
async fn keepalives_do_not_confirm_while_an_event_is_in_flight() {
    let mut rig = Rig::proxied().await;
    rig.setup().await;
    let _relay = rig.relay();
    rig.insert(1).await;
    rig.wait_stored(1).await;
    rig.wait_confirmed().await;

    rig.to_nats().blackhole(Direction::ToClient);
    let before = rig.wal_end().await;
    let ids = rig.insert(1).await;
    rig.wait_stored(2).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        rig.execute(OTHER_WORK).await;
        let confirmed = rig.confirmed().await;
        assert!(confirmed <= before, "{confirmed} is beyond the event in flight at {before}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(rig.unmarked().await, 1, "no ack, no mark");

    rig.to_nats().restore().await.unwrap();
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await.split_off(1), ids);
}

/// R-REL-12: an idle outbox in a busy database holds no log back.
// proves: G-SLOT-1
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_outbox_in_a_busy_database_retains_no_log() {
    let rig = Rig::new().await;
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    for _ in 0..5 {
        rig.execute(OTHER_WORK).await;
        let (end, started) = (rig.wal_end().await, Instant::now());
        until(DEADLINE, "others' log is confirmed", async || rig.confirmed().await >= end).await;
        eprintln!("others' log confirmed after {:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    }
    assert_eq!(rig.stored_count().await, 0);
}

/// R-REL-12: all databases share one log. The slot of an idle one lets it go while others write.
// proves: G-SLOT-1
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_outbox_beside_a_busy_database_retains_no_log() {
    let rig = Rig::new().await;
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    rig.postgres.create_database("busy").await.expect("create a database");
    let busy = rig.postgres.client("busy").await.expect("connect to it");
    let before = rig.wal_end().await;
    for _ in 0..10 {
        busy.batch_execute(OTHER_WORK).await.expect("work");
    }
    assert!(rig.wal_end().await - before > 5 * RETAINED_MAX, "too little work to tell");
    let retained = "SELECT (pg_current_wal_lsn() - restart_lsn)::BIGINT FROM pg_replication_slots
                    WHERE slot_name = 'tailpost'";
    until(DEADLINE, "the others' log is let go", async || {
        // The log can be let go from where PostgreSQL wrote down what runs, as it does now and then.
        rig.execute("CHECKPOINT").await;
        rig.query::<i64>(retained).await.cast_unsigned() < RETAINED_MAX
    })
    .await;
    assert_eq!(rig.stored_count().await, 0);
}

/// R-REL-03: an event now and then is confirmed within half a second of being stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_on_an_idle_stream_is_confirmed_within_half_a_second() {
    let rig = Rig::new().await;
    rig.setup().await;
    let _relay = rig.relay();
    let mut took = Vec::new();
    for stored in 1..=6 {
        rig.insert(1).await;
        let end = rig.wal_end().await;
        rig.wait_stored(stored).await;
        let started = Instant::now();
        until(DEADLINE, "it is confirmed", async || rig.confirmed().await >= end).await;
        took.push(started.elapsed());
    }
    took.sort_unstable();
    eprintln!("confirmed after {took:?}");
    assert!(took[took.len() / 2] < Duration::from_millis(500), "it took {took:?}");
}

/// R-REL-12: a quiet relay on a quiet server does not keep either of them busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_relay_leaves_a_quiet_server_alone() {
    let rig = Rig::new().await;
    rig.setup().await;
    let _relay = rig.relay();
    rig.insert(1).await;
    rig.wait_marked().await;
    // Written rarer and rarer: when nothing was written for three seconds, it is rare enough.
    let idle = "SELECT clock_timestamp() - updated_at > '3s' FROM tailpost_state";
    until(DEADLINE, "it is quiet", async || rig.query::<bool>(idle).await).await;
}
