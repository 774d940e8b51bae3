//! The broker, or the network to it, fails under load.

use std::time::Duration;

use lab::Direction;
use support::TestEnv;

/// Outlasts the duplicate window of the tests here.
const LONGER_THAN_THE_WINDOW: Duration = Duration::from_millis(1_500);

/// Keeps several messages on their way.
const SLOW: Duration = Duration::from_millis(10);

const VERY_SLOW: Duration = Duration::from_millis(400);

async fn env() -> TestEnv {
    let mut env = TestEnv::proxied().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "200ms");
    env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    env.setup().await;
    env
}

// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_and_restarted_under_load_costs_nothing() {
    let mut env = env().await;
    let _relay = env.relay();
    env.to_nats().set_delay(SLOW);
    let load = env.load(11, 1000.0).await;
    for _ in 0..3 {
        load.wait_committed(400).await;
        env.nats.kill().await.unwrap();
        load.wait_committed(400).await;
        env.nats.start_again().await.unwrap();
    }
    load.wait_committed(200).await;
    env.finish(load).await;
}

/// Messages were stored whose acks never came, and the broker has forgotten their ids.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_away_for_longer_than_its_duplicate_window_gets_nothing_twice() {
    let mut env = env().await;
    let _relay = env.relay();
    env.to_nats().set_delay(SLOW);
    let load = env.load(12, 500.0).await;
    load.wait_committed(200).await;
    env.to_nats().blackhole(Direction::ToClient);
    load.wait_committed(100).await;
    env.nats.kill().await.unwrap();
    tokio::time::sleep(LONGER_THAN_THE_WINDOW).await;
    env.nats.start_again().await.unwrap();
    env.to_nats().restore().await.unwrap();
    load.wait_committed(200).await;
    env.finish(load).await;
}

/// The connection looks alive, and answers come no more.
// proves: G-ONCE-3
#[tokio::test(flavor = "multi_thread")]
async fn acks_that_never_come_lead_to_no_second_message() {
    let mut env = env().await;
    let relay = env.relay();
    let load = env.load(17, 500.0).await;
    env.to_nats().set_delay(SLOW);
    load.wait_committed(200).await;
    // It publishes: what stays unanswered is a message, and no question of a session that opens.
    env.wait_stored(200).await;
    env.to_nats().blackhole(Direction::ToClient);
    relay.wait_log("the stream does not answer").await;
    env.to_nats().restore().await.unwrap();
    load.wait_committed(100).await;
    env.finish(load).await;
}

/// Many messages on the way at a time, once the broker has taken one.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_to_the_broker_does_not_slow_each_event() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__ACK_TIMEOUT", "30s");
    let relay = env.relay();
    relay.wait_active().await;
    // With few on the way at a time they would take longer than the test waits.
    env.to_nats().set_delay(VERY_SLOW);
    let ids = env.insert(2_000).await;
    env.wait_stored(2_000).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

/// Someone publishes by hand while the relay has nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_message_while_the_relay_is_idle_costs_nothing() {
    let env = env().await;
    let _relay = env.relay();
    let jetstream = env.nats.jetstream().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..5 {
        jetstream.publish("outbox.by.hand", "x".into()).await.unwrap().await.unwrap();
        ids.extend(env.insert(100).await);
        env.wait_marked().await;
    }
    let (by_hand, events): (Vec<_>, Vec<_>) =
        env.stored().await.into_iter().partition(|it| it.subject == "outbox.by.hand");
    assert_eq!(by_hand.len(), 5);
    assert_eq!(events.into_iter().map(|it| it.id).collect::<Vec<_>>(), ids);
}

mod long {
    use super::*;

    /// The connection breaks, and the broker has forgotten the ids, before the relay
    /// hears that its messages are stored.
    // proves: G-ONCE-3
    #[tokio::test(flavor = "multi_thread")]
    async fn lost_acks_lead_to_no_second_message() {
        let mut env = env().await;
        // Only the broken connection tells.
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1m");
        let _relay = env.relay();
        let load = env.load(16, 1000.0).await;
        for _ in 0..3 {
            env.to_nats().set_delay(SLOW);
            load.wait_committed(300).await;
            env.to_nats().blackhole(Direction::ToClient);
            load.wait_committed(100).await;
            tokio::time::sleep(LONGER_THAN_THE_WINDOW).await;
            env.to_nats().cut().await;
            assert!(env.unmarked().await > 0, "no ack, no mark");
            env.to_nats().restore().await.unwrap();
            env.wait_stored(load.committed()).await;
        }
        env.finish(load).await;
    }

    /// Nobody says that the network is gone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_half_open_network_to_the_broker_is_recovered_from_by_itself() {
        let mut env = env().await;
        let _relay = env.relay();
        let load = env.load(13, 500.0).await;
        for direction in [Direction::ToClient, Direction::Both] {
            env.to_nats().set_delay(SLOW);
            load.wait_committed(200).await;
            env.to_nats().blackhole(direction);
            load.wait_committed(700).await;
            env.to_nats().restore().await.unwrap();
            env.wait_stored(load.committed()).await;
        }
        env.finish(load).await;
    }

    /// Connections that break again and again in the middle of what they carry.
    // proves: G-LOSS-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_flapping_network_to_the_broker_costs_nothing() {
        let mut env = env().await;
        let _relay = env.relay();
        let load = env.load(14, 1000.0).await;
        for _ in 0..6 {
            env.to_nats().set_delay(SLOW);
            load.wait_committed(150).await;
            env.to_nats().cut().await;
            load.wait_committed(400).await;
            env.to_nats().restore().await.unwrap();
        }
        load.wait_committed(200).await;
        env.finish(load).await;
    }
}
