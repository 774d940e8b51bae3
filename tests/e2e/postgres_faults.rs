//! PostgreSQL, or the network to it, fails under load.

use std::time::Duration;

use lab::Direction;
use support::{TestEnv, assert_promise};

async fn env() -> TestEnv {
    let mut env = TestEnv::proxied().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "200ms");
    env.setup().await;
    env
}

/// What was confirmed or marked may be forgotten by the crash.
// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn postgres_killed_and_restarted_under_load_costs_nothing() {
    let mut env = env().await;
    let _relay = env.relay();
    let load = env.load(21, 1000.0).await;
    for _ in 0..3 {
        load.wait_committed(400).await;
        env.postgres.kill().await.unwrap();
        env.postgres.start_again().await.unwrap();
    }
    load.wait_committed(200).await;
    env.finish(load).await;
    assert_eq!(env.epochs().await, 1, "no relay took its own slot for another one");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_restarted_in_good_order_under_load_costs_nothing() {
    let mut env = env().await;
    let _relay = env.relay();
    let load = env.load(22, 1000.0).await;
    for _ in 0..2 {
        load.wait_committed(400).await;
        let took = env.postgres.stop_fast().await.unwrap();
        eprintln!("stopped after {took:?}");
        env.postgres.start_again().await.unwrap();
    }
    load.wait_committed(200).await;
    env.finish(load).await;
    assert_eq!(env.epochs().await, 1, "no relay took its own slot for another one");
}

/// DESIGN 7: a server that shuts down waits for a client that withholds acks.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_stops_within_seconds_while_the_broker_is_down() {
    let mut env = env().await;
    let relay = env.relay();
    relay.wait_active().await;
    let mut ids = env.insert(100).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    env.nats.kill().await.unwrap();
    ids.extend(env.insert(100).await);
    env.wait_sent().await;
    let took = env.postgres.stop_fast().await.unwrap();
    assert_promise(Duration::from_secs(5), took);

    env.postgres.start_again().await.unwrap();
    assert_eq!(env.unmarked().await, 100);
    env.nats.start_again().await.unwrap();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

// proves: G-LOSS-2
#[tokio::test(flavor = "multi_thread")]
async fn a_flapping_network_to_postgres_costs_nothing() {
    let mut env = env().await;
    let _relay = env.relay();
    let load = env.load(24, 1000.0).await;
    for _ in 0..5 {
        load.wait_committed(300).await;
        env.to_postgres().cut().await;
        env.to_postgres().restore().await.unwrap();
    }
    load.wait_committed(200).await;
    env.finish(load).await;
}

mod long {
    use super::*;

    /// Nobody says that the network is gone.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_half_open_network_to_postgres_is_recovered_from_by_itself() {
        let mut env = env().await;
        let _relay = env.relay();
        let load = env.load(23, 500.0).await;
        for direction in [Direction::ToClient, Direction::Both] {
            load.wait_committed(200).await;
            env.to_postgres().blackhole(direction);
            load.wait_committed(700).await;
            env.to_postgres().restore().await.unwrap();
            env.wait_stored(load.committed()).await;
        }
        env.finish(load).await;
    }

    /// Nothing but silence, for as long as the relay takes to find that suspicious.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_postgres_that_falls_silent_is_left_and_come_back_to() {
        let mut env = env().await;
        // The scanner would stumble over it first.
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "1h");
        let relay = env.relay();
        let load = env.load(25, 100.0).await;
        load.wait_committed(50).await;
        // It reads the log: what falls silent is no session that opens.
        env.wait_stored(50).await;
        env.to_postgres().blackhole(Direction::Both);
        relay.wait_log("the server fell silent").await;
        env.to_postgres().restore().await.unwrap();
        load.wait_committed(50).await;
        env.finish(load).await;
    }
}
