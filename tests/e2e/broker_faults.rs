//! The broker, or the network to it, fails under load.

use std::time::{Duration, Instant};

use support::Rig;
use testbed::Direction;

/// Outlasts the duplicate window of the tests here.
const LONGER_THAN_THE_WINDOW: Duration = Duration::from_millis(1_500);

/// Keeps several messages on their way.
const SLOW: Duration = Duration::from_millis(10);

async fn rig() -> Rig {
    let mut rig = Rig::proxied().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "200ms");
    rig.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    rig.setup().await;
    rig
}

/// R-REL-05, R-REL-06, R-REL-09.
// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_and_restarted_under_load_costs_nothing() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    rig.to_nats().set_delay(SLOW);
    let load = rig.load(11, 1000.0).await;
    for _ in 0..3 {
        load.wait_committed(400).await;
        rig.nats.kill().await.unwrap();
        load.wait_committed(400).await;
        rig.nats.start_again().await.unwrap();
    }
    load.wait_committed(200).await;
    rig.finish(load).await;
}

/// R-REL-06: messages were stored whose acks never came, and the broker has forgotten their ids.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_away_for_longer_than_its_duplicate_window_gets_nothing_twice() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    rig.to_nats().set_delay(SLOW);
    let load = rig.load(12, 500.0).await;
    load.wait_committed(200).await;
    rig.to_nats().blackhole(Direction::ToClient);
    load.wait_committed(100).await;
    rig.nats.kill().await.unwrap();
    tokio::time::sleep(LONGER_THAN_THE_WINDOW).await;
    rig.nats.start_again().await.unwrap();
    rig.to_nats().restore().await.unwrap();
    load.wait_committed(200).await;
    rig.finish(load).await;
}

/// R-REL-02, R-REL-06: the connection breaks, and the broker has forgotten the ids, before the relay
/// hears that its messages are stored.
// proves: G-ONCE-3
#[tokio::test(flavor = "multi_thread")]
async fn lost_acks_lead_to_no_second_message() {
    let mut rig = rig().await;
    // Only the broken connection tells.
    rig.set("TAILPOST_RELAY__ACK_TIMEOUT", "1m");
    let _relay = rig.relay();
    let load = rig.load(16, 1000.0).await;
    for _ in 0..3 {
        rig.to_nats().set_delay(SLOW);
        load.wait_committed(300).await;
        rig.to_nats().blackhole(Direction::ToClient);
        load.wait_committed(100).await;
        tokio::time::sleep(LONGER_THAN_THE_WINDOW).await;
        rig.to_nats().cut().await;
        assert!(rig.unmarked().await > 0, "no ack, no mark");
        rig.to_nats().restore().await.unwrap();
        rig.wait_stored(load.committed()).await;
    }
    rig.finish(load).await;
}

/// R-REL-02, R-REL-06, R-REL-09: the connection looks alive, and answers come no more.
// proves: G-ONCE-3
#[tokio::test(flavor = "multi_thread")]
async fn acks_that_never_come_lead_to_no_second_message() {
    let mut rig = rig().await;
    let relay = rig.relay();
    let load = rig.load(17, 500.0).await;
    rig.to_nats().set_delay(SLOW);
    load.wait_committed(200).await;
    rig.to_nats().blackhole(Direction::ToClient);
    relay.wait_log("the stream does not answer").await;
    rig.to_nats().restore().await.unwrap();
    load.wait_committed(100).await;
    rig.finish(load).await;
}

/// R-REL-01: many messages on the way at a time, once the broker has taken one.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_to_the_broker_does_not_slow_each_event() {
    let mut rig = rig().await;
    let relay = rig.relay();
    relay.wait_active().await;
    rig.to_nats().set_delay(SLOW);
    let (started, ids) = (Instant::now(), rig.insert(2_000).await);
    rig.wait_stored(2_000).await;
    let one_by_one = 2 * SLOW * 2_000;
    assert!(started.elapsed() < one_by_one / 8, "it took {:?}", started.elapsed());
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-REL-05, R-REL-06, R-REL-09: nobody says that the network is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_network_to_the_broker_is_recovered_from_by_itself() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    let load = rig.load(13, 500.0).await;
    for direction in [Direction::ToClient, Direction::Both] {
        rig.to_nats().set_delay(SLOW);
        load.wait_committed(200).await;
        rig.to_nats().blackhole(direction);
        load.wait_committed(700).await;
        rig.to_nats().restore().await.unwrap();
        rig.wait_stored(load.committed()).await;
    }
    rig.finish(load).await;
}

/// R-REL-05, R-REL-06: connections that break again and again in the middle of what they carry.
// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn a_flapping_network_to_the_broker_costs_nothing() {
    let mut rig = rig().await;
    let _relay = rig.relay();
    let load = rig.load(14, 1000.0).await;
    for _ in 0..6 {
        rig.to_nats().set_delay(SLOW);
        load.wait_committed(150).await;
        rig.to_nats().cut().await;
        load.wait_committed(400).await;
        rig.to_nats().restore().await.unwrap();
    }
    load.wait_committed(200).await;
    rig.finish(load).await;
}

/// R-REL-05, R-REL-06: someone publishes by hand while the relay has nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_message_while_the_relay_is_idle_costs_nothing() {
    let rig = rig().await;
    let _relay = rig.relay();
    let jetstream = rig.nats.jetstream().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..5 {
        jetstream.publish("outbox.by.hand", "x".into()).await.unwrap().await.unwrap();
        ids.extend(rig.insert(100).await);
        rig.wait_marked().await;
    }
    let (by_hand, events): (Vec<_>, Vec<_>) =
        rig.stored().await.into_iter().partition(|it| it.subject == "outbox.by.hand");
    assert_eq!(by_hand.len(), 5);
    assert_eq!(events.into_iter().map(|it| it.id).collect::<Vec<_>>(), ids);
}
