//! Two relays, one slot.

use std::time::{Duration, Instant};

use lab::{Direction, PostgresOptions};
use support::{DEADLINE, TestEnv, TestEnvOptions, assert_promise, until};

// proves: G-TAKE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_a_killed_relay_within_a_second_or_two() {
    let env = TestEnv::new().await;
    env.setup().await;
    let first = env.relay();
    first.wait_active().await;
    let second = env.relay();
    second.wait_log("standing by").await;
    let load = env.load(31, 500.0).await;
    load.wait_committed(500).await;

    first.kill9().await;
    let (died, stored) = (Instant::now(), env.stored_count().await);
    let goes_on = async || env.stored_count().await > stored;
    until(DEADLINE, "the second relay publishes", goes_on).await;
    assert_promise(Duration::from_secs(4), died.elapsed());
    load.wait_committed(200).await;
    env.finish(load).await;
}

/// Invariant E. What the first relay sent before it was paused reaches the broker
/// after its successor has published the same events, and the broker has forgotten their ids.
// proves: G-ONCE-2
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_paused_relay_that_arrive_after_its_successors_are_refused() {
    const ON_THE_WAY: Duration = Duration::from_secs(6);
    let mut env = env_that_misses_a_paused_relay().await;
    let first = env.relay();
    first.wait_active().await;
    env.set("NATS_URL", &env.nats.url());
    let second = env.relay();
    second.wait_log("standing by").await;
    let mut ids = env.insert(50).await;
    env.wait_marked().await;

    env.to_nats().set_delay(ON_THE_WAY);
    ids.extend(env.insert(200).await);
    env.wait_sent().await;
    assert_eq!(env.stored_count().await, 50, "still on the way");
    first.pause();
    second.wait_active().await;
    ids.extend(env.insert(50).await);
    env.wait_stored(300).await;
    first.resume();
    env.to_nats().restore().await.unwrap();
    // It asked the broker first, on the connection that brings its old messages: they have arrived.
    first.wait_log("standing by").await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}

/// Invariant E in keyed mode, where only the broker's memory of ids would help. The
/// first relay has an answer waiting when it is woken, and with it leave to send the next event.
// proves: G-ONCE-2
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_keyed_relay_asks_whose_slot_it_is_before_it_sends_again() {
    let mut env = env_that_misses_a_paused_relay().await;
    env.set("TAILPOST_RELAY__MODE", "keyed");
    let first = env.relay();
    first.wait_active().await;
    env.set("DATABASE_URL", &env.postgres.url("postgres"));
    env.set("NATS_URL", &env.nats.url());
    let second = env.relay();
    second.wait_log("standing by").await;
    env.to_nats().set_delay(Duration::from_millis(200));
    // One aggregate: each event waits for the answer to the one before.
    env.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         SELECT gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', '{}' FROM generate_series(1, 50)",
    )
    .await;
    env.wait_stored(2).await;
    first.pause();
    // Nor does it hear that PostgreSQL has given it up.
    env.to_postgres().blackhole(Direction::ToClient);
    second.wait_active().await;
    env.wait_stored(50).await;
    env.wait_marked().await;
    let stored = env.stored_count().await;
    env.to_nats().set_delay(Duration::ZERO);
    // Until the broker has forgotten the ids.
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.resume();
    until(DEADLINE, "it asks, or sends", async || {
        first.log().contains("reading the stream's tail") || env.stored_count().await > stored
    })
    .await;
    env.to_postgres().restore().await.unwrap();
    first.wait_log("standing by").await;
    assert_eq!(env.stored_count().await, stored, "the woken relay sent something");
}

/// Its PostgreSQL gives a silent relay up after two seconds, its broker forgets ids at once.
async fn env_that_misses_a_paused_relay() -> TestEnv {
    let settings = vec![("wal_sender_timeout".to_owned(), "2s".to_owned())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    let mut env =
        TestEnv::with(TestEnvOptions { postgres, proxied: true, ..TestEnvOptions::default() })
            .await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    env
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn relays_replaced_one_by_one_under_load_cost_nothing() {
        let env = TestEnv::new().await;
        env.setup().await;
        let mut active = env.relay();
        active.wait_active().await;
        let load = env.load(32, 1000.0).await;
        for _ in 0..4 {
            let next = env.relay();
            next.wait_log("standing by").await;
            load.wait_committed(200).await;
            active.sigterm();
            next.wait_active().await;
            assert!(active.wait_exit(DEADLINE).await.success());
            active = next;
        }
        env.finish(load).await;
    }

    /// Invariant E. The first relay stops in the middle of its work, with events
    /// read, sent, and not yet sent; when it goes on, it believes that the slot is its own.
    // proves: G-ONCE-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_paused_relay_woken_after_its_successor_took_over_writes_nothing() {
        let env = env_that_misses_a_paused_relay().await;
        let first = env.relay();
        first.wait_active().await;
        let second = env.relay();
        second.wait_log("standing by").await;
        let load = env.load(33, 2000.0).await;
        load.wait_committed(1_000).await;

        first.pause();
        second.wait_active().await;
        load.wait_committed(500).await;
        first.resume();
        first.wait_log("standing by").await;
        load.wait_committed(500).await;
        env.finish(load).await;
        assert!(second.exited().is_none() && first.exited().is_none(), "both are alive");
    }

    /// Of two relays the active one is killed, many times; each time another one comes to stand
    /// by. `TAKEOVERS` says how often.
    // proves: G-TAKE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn takeovers_one_after_the_other_under_load_cost_nothing() {
        let takeovers =
            std::env::var("TAKEOVERS").ok().map_or(20, |it| it.parse().expect("a number"));
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        let load = env.load(35, 300.0).await;
        let mut active = env.relay();
        active.wait_active().await;
        let mut took = Vec::new();
        for _ in 0..takeovers {
            let next = env.relay();
            next.wait_log("standing by").await;
            active.kill9().await;
            let died = Instant::now();
            next.wait_active().await;
            took.push(died.elapsed());
            active = next;
        }
        took.sort_unstable();
        let (median, most) = (took.get(took.len() / 2), took.last());
        eprintln!("taken over after {median:?} in the median, {most:?} at most");
        env.finish(load).await;
        assert_eq!(env.epochs().await, 1, "no relay took its own slot for another one");
    }

    /// The active relay's host is gone, and nobody says so.
    // proves: G-TAKE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_standby_takes_over_from_a_silently_dead_host_within_seconds() {
        let mut env = TestEnv::proxied().await;
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        let first = env.relay();
        first.wait_active().await;
        env.set("DATABASE_URL", &env.postgres.url("postgres"));
        env.set("NATS_URL", &env.nats.url());
        let second = env.relay();
        second.wait_log("standing by").await;
        let load = env.load(34, 500.0).await;
        load.wait_committed(300).await;

        env.to_postgres().blackhole(Direction::Both);
        env.to_nats().blackhole(Direction::Both);
        let died = Instant::now();
        second.wait_active().await;
        assert_promise(Duration::from_secs(8), died.elapsed());
        load.wait_committed(300).await;
        env.to_postgres().restore().await.unwrap();
        env.to_nats().restore().await.unwrap();
        first.wait_log("standing by").await;
        env.finish(load).await;
    }
}
