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

/// R-REL-06, R-REL-13: Invariant E. The first relay is stopped in the middle of its work, with
/// events read, sent, and not yet sent; when it goes on, it believes that the slot is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_relay_woken_after_its_successor_took_over_writes_nothing() {
    let settings = vec![("wal_sender_timeout".to_owned(), "2s".to_owned())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    let mut rig = Rig::with(RigOptions { postgres, ..RigOptions::default() }).await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
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
