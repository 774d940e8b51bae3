//! PostgreSQL, or the network to it, fails under load.

use std::time::Duration;

use support::Rig;
use testbed::Direction;

async fn rig() -> Rig {
    let mut rig = Rig::proxied().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "200ms");
    rig.setup().await;
    rig
}

/// R-REL-02, R-REL-03, R-REL-06: what was confirmed or marked may be forgotten by the crash.
// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn postgres_killed_and_restarted_under_load_costs_nothing() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    let load = rig.load(21, 1000.0).await;
    for _ in 0..3 {
        load.wait_committed(400).await;
        rig.postgres.kill().await.unwrap();
        rig.postgres.start_again().await.unwrap();
    }
    load.wait_committed(200).await;
    rig.finish(load).await;
    assert_eq!(rig.epochs().await, 1, "no relay took its own slot for another one");
}

/// R-REL-02, R-REL-06.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_restarted_in_good_order_under_load_costs_nothing() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    let load = rig.load(22, 1000.0).await;
    for _ in 0..2 {
        load.wait_committed(400).await;
        let took = rig.postgres.stop_fast().await.unwrap();
        eprintln!("stopped after {took:?}");
        rig.postgres.start_again().await.unwrap();
    }
    load.wait_committed(200).await;
    rig.finish(load).await;
    assert_eq!(rig.epochs().await, 1, "no relay took its own slot for another one");
}

/// DESIGN 7: a server that shuts down waits for a client that withholds acks.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_stops_within_seconds_while_the_broker_is_down() {
    let mut rig = rig().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let mut ids = rig.insert(100).await;
    rig.wait_confirmed().await;
    rig.nats.kill().await.unwrap();
    ids.extend(rig.insert(100).await);
    rig.wait_sent().await;
    let took = rig.postgres.stop_fast().await.unwrap();
    eprintln!("stopped after {took:?}");
    assert!(took < Duration::from_secs(10), "it took {took:?}");

    rig.postgres.start_again().await.unwrap();
    assert_eq!(rig.unmarked().await, 100);
    rig.nats.start_again().await.unwrap();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-REL-02, R-REL-05, R-REL-06: nobody says that the network is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_network_to_postgres_is_recovered_from_by_itself() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    let load = rig.load(23, 500.0).await;
    for direction in [Direction::ToClient, Direction::Both] {
        load.wait_committed(200).await;
        rig.to_postgres().blackhole(direction);
        load.wait_committed(700).await;
        rig.to_postgres().restore().await.unwrap();
        rig.wait_stored(load.committed()).await;
    }
    rig.finish(load).await;
}

/// R-REL-02, R-REL-06: nothing but silence, for as long as the relay takes to find that suspicious.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_falls_silent_is_left_and_come_back_to() {
    let mut rig = rig().await;
    // The scanner would stumble over it first.
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "1h");
    let relay = rig.relay();
    let load = rig.load(25, 100.0).await;
    load.wait_committed(50).await;
    rig.to_postgres().blackhole(Direction::Both);
    relay.wait_log("the server fell silent").await;
    rig.to_postgres().restore().await.unwrap();
    load.wait_committed(50).await;
    rig.finish(load).await;
}

/// R-REL-02, R-REL-05, R-REL-06.
// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn a_flapping_network_to_postgres_costs_nothing() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    let load = rig.load(24, 1000.0).await;
    for _ in 0..5 {
        load.wait_committed(300).await;
        rig.to_postgres().cut().await;
        rig.to_postgres().restore().await.unwrap();
    }
    load.wait_committed(200).await;
    rig.finish(load).await;
}
