//! Two relays, one slot.

use std::time::{Duration, Instant};

use support::{DEADLINE, Rig, RigOptions, until};
use testbed::PostgresOptions;

/// R-REL-13.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_a_killed_relay_within_seconds() {
    let rig = Rig::new().await;
    rig.setup().await;
    let first = rig.relay();
    first.wait_active().await;
    let second = rig.relay();
    second.wait_log("standing by").await;
    let load = rig.load(31, 500.0).await;
    load.wait_committed(500).await;

    first.kill9().await;
    let (died, stored) = (Instant::now(), rig.stored_count().await);
    let goes_on = async || rig.stored_count().await > stored;
    until(DEADLINE, "the second relay publishes", goes_on).await;
    eprintln!("taken over after {:?}", died.elapsed());
    assert!(died.elapsed() < Duration::from_secs(5), "it took {:?}", died.elapsed());
    load.wait_committed(200).await;
    rig.finish(load).await;
}

/// R-REL-13, R-REL-15.
#[tokio::test(flavor = "multi_thread")]
async fn relays_replaced_one_by_one_under_load_cost_nothing() {
    let rig = Rig::new().await;
    rig.setup().await;
    let mut active = rig.relay();
    active.wait_active().await;
    let load = rig.load(32, 1000.0).await;
    for _ in 0..4 {
        let next = rig.relay();
        next.wait_log("standing by").await;
        load.wait_committed(200).await;
        active.sigterm();
        next.wait_active().await;
        assert!(active.wait_exit(DEADLINE).await.success());
        active = next;
    }
    rig.finish(load).await;
}

/// R-REL-06, R-REL-13: Invariant E. The first relay stops in the middle of its work, with events
/// read, sent, and not yet sent; when it goes on, it believes that the slot is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_relay_woken_after_its_successor_took_over_writes_nothing() {
    let rig = rig_that_misses_a_paused_relay().await;
    let first = rig.relay();
    first.wait_active().await;
    let second = rig.relay();
    second.wait_log("standing by").await;
    let load = rig.load(33, 2000.0).await;
    load.wait_committed(1_000).await;

    first.pause();
    second.wait_active().await;
    load.wait_committed(500).await;
    first.resume();
    first.wait_log("standing by").await;
    load.wait_committed(500).await;
    rig.finish(load).await;
    assert!(second.exited().is_none() && first.exited().is_none(), "both are alive");
}

/// R-REL-06, R-REL-13: Invariant E. What the first relay sent before it was paused reaches the broker
/// after its successor has published the same events, and the broker has forgotten their ids.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_paused_relay_that_arrive_after_its_successors_are_refused() {
    const ON_THE_WAY: Duration = Duration::from_secs(6);
    let mut rig = rig_that_misses_a_paused_relay().await;
    let first = rig.relay();
    first.wait_active().await;
    rig.set("NATS_URL", &rig.nats.url());
    let second = rig.relay();
    second.wait_log("standing by").await;
    let mut ids = rig.insert(50).await;
    rig.wait_marked().await;

    rig.to_nats().set_delay(ON_THE_WAY);
    ids.extend(rig.insert(200).await);
    rig.wait_sent().await;
    assert_eq!(rig.stored_count().await, 50, "still on the way");
    first.pause();
    second.wait_active().await;
    ids.extend(rig.insert(50).await);
    rig.wait_stored(300).await;
    first.resume();
    rig.to_nats().restore().await.unwrap();
    // It asked the broker first, on the connection that brings its old messages: they have arrived.
    first.wait_log("standing by").await;
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// Its PostgreSQL gives a silent relay up after two seconds, its broker forgets ids at once.
async fn rig_that_misses_a_paused_relay() -> Rig {
    let settings = vec![("wal_sender_timeout".to_owned(), "2s".to_owned())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    let mut rig = Rig::with(RigOptions { postgres, proxied: true, ..RigOptions::default() }).await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    rig
}
