//! The relay is asked to stop, or to do one round.

use std::time::{Duration, Instant};

use support::{DEADLINE, Rig};

/// Events that the slot would bring again.
const STILL_TO_COME: &str = "
    SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
        'tailpost', NULL, NULL, 'proto_version', '1', 'publication_names', 'tailpost'
    ) WHERE get_byte(data, 0) = ascii('I')";

/// R-REL-15.
// proves: G-STOP-1
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_and_restart_redeliver_nothing() {
    let rig = Rig::new().await;
    rig.setup().await;
    let relay = rig.relay();
    let mut ids = rig.insert_each(300).await;
    // No waiting for anything but the broker: marks and confirmation are the stop's duty.
    rig.wait_stored(300).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    assert_eq!(rig.unmarked().await, 0, "marked before the end");
    assert_eq!(rig.query::<i64>(STILL_TO_COME).await, 0, "confirmed before the end");

    let relay = rig.relay();
    ids.extend(rig.insert(1).await);
    rig.wait_stored(301).await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-REL-15.
// proves: G-STOP-1
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_ends_within_seconds_with_what_was_published_marked_and_confirmed() {
    let rig = Rig::new().await;
    rig.setup().await;
    let load = rig.load(41, 1000.0).await;
    for _ in 0..3 {
        let relay = rig.relay();
        relay.wait_active().await;
        load.wait_committed(300).await;
        let asked = Instant::now();
        relay.sigterm();
        let status = relay.wait_exit(DEADLINE).await;
        assert!(status.success(), "{status}");
        assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
        let marked = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL";
        let marked = rig.query::<i64>(marked).await.cast_unsigned();
        assert_eq!(marked, rig.stored_count().await, "all that is stored is marked");
    }
    let _relay = rig.relay();
    rig.finish(load).await;
}

/// R-REL-15: what the broker does not take stays in PostgreSQL.
// proves: G-STOP-1
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_while_the_broker_is_down_ends_and_loses_nothing() {
    let mut rig = Rig::new().await;
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let mut ids = rig.insert(100).await;
    rig.wait_confirmed().await;
    rig.nats.kill().await.unwrap();
    ids.extend(rig.insert(100).await);
    rig.wait_sent().await;
    relay.sigterm();
    assert!(relay.wait_exit(Duration::from_secs(30)).await.success());
    assert_eq!(rig.query::<i64>(STILL_TO_COME).await, 100);

    rig.nats.start_again().await.unwrap();
    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// DESIGN 11: `relay --once`.
#[tokio::test(flavor = "multi_thread")]
async fn once_publishes_what_is_there_and_ends() {
    let rig = Rig::new().await;
    rig.setup().await;
    let mut ids = rig.insert(1_000).await;
    for more in [200, 0] {
        let once = rig.spawn(&["relay", "--once"]);
        assert!(once.wait_exit(DEADLINE).await.success());
        assert_eq!(rig.stored_ids().await, ids);
        assert_eq!(rig.unmarked().await, 0);
        assert_eq!(rig.query::<i64>(STILL_TO_COME).await, 0);
        ids.extend(rig.insert(more).await);
    }
}

/// DESIGN 5, 11: marks may lag and fail, but `relay --once` has no later session to make up for it.
#[tokio::test(flavor = "multi_thread")]
async fn once_ends_when_marks_that_failed_are_made_up_for() {
    let rig = Rig::new().await;
    rig.setup().await;
    let ids = rig.insert(3_000).await;
    let mut client = rig.client().await;
    let building = client.transaction().await.unwrap();
    // As CREATE INDEX does: whoever reads may, whoever marks may not.
    building.batch_execute("LOCK TABLE outbox_events IN SHARE MODE").await.unwrap();
    let once = rig.spawn(&["relay", "--once"]);
    rig.wait_stored(3_000).await;
    once.wait_log("lock timeout").await;
    building.rollback().await.unwrap();
    assert!(once.wait_exit(DEADLINE).await.success());
    assert_eq!(rig.unmarked().await, 0);
    assert_eq!(rig.stored_ids().await, ids);
}

/// DESIGN 11: exit code 5.
#[tokio::test(flavor = "multi_thread")]
async fn once_says_which_server_cannot_be_reached() {
    let mut rig = Rig::new().await;
    rig.setup().await;
    rig.insert(10).await;
    rig.nats.kill().await.unwrap();
    let once = rig.spawn(&["relay", "--once"]);
    assert_eq!(once.wait_exit(DEADLINE).await.code(), Some(5));
    assert!(once.log().contains(&rig.nats.port().to_string()), "names NATS: {}", once.log());

    rig.nats.start_again().await.unwrap();
    rig.postgres.kill().await.unwrap();
    let once = rig.spawn(&["relay", "--once"]);
    assert_eq!(once.wait_exit(DEADLINE).await.code(), Some(5));
    assert!(once.log().contains(&rig.postgres.port().to_string()), "names it: {}", once.log());
}
