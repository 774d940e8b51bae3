//! Fast-ingest batches carry fenced messages, for as long as the broker takes them.

use lab::Direction;
use support::{DEADLINE, Relay, TestEnv};

async fn env() -> TestEnv {
    let env = TestEnv::new().await;
    env.setup().await;
    env
}

/// What the relay said about itself when it stopped.
async fn batches_of(relay: Relay) -> u64 {
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    let log = relay.log();
    let said = log.split("batches=").nth(1).and_then(|rest| rest.split(' ').next());
    said.and_then(|batches| batches.parse().ok()).unwrap_or_else(|| panic!("no count in {log}"))
}

/// R-REL-05, R-REL-06: one answer for hundreds of messages, in commit order.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_events_travel_in_batches() {
    let env = env().await;
    let ids = env.insert(5_000).await;
    let relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored().await.iter().map(|it| it.id).collect::<Vec<_>>(), ids);
    let batches = batches_of(relay).await;
    assert!((1..500).contains(&batches), "{batches} batches for 5,000 events");
}

/// R-REL-05, R-REL-06: someone publishes by hand into the middle of what is in flight. Behind the
/// first message that is refused the broker takes nothing more of a batch: the order holds.
// proves: G-ORDER-1
#[tokio::test(flavor = "multi_thread")]
async fn foreign_messages_under_load_change_nothing() {
    let env = env().await;
    let _relay = env.relay();
    let jetstream = env.nats.jetstream().await.unwrap();
    let load = env.load(15, 2000.0).await;
    for _ in 0..12 {
        load.wait_committed(200).await;
        jetstream.publish("outbox.by.hand", "x".into()).await.unwrap().await.unwrap();
    }
    load.wait_committed(200).await;
    let tally = env.finish(load).await;
    assert_eq!(env.stored_count().await, tally.stored as u64 + 12);
}

/// R-REL-05, R-REL-06: an operator switches batches off while the relay uses them, and on again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_takes_no_batches_any_more_gets_single_messages() {
    let env = env().await;
    let relay = env.relay();
    let jetstream = env.nats.jetstream().await.unwrap();
    let load = env.load(16, 2000.0).await;
    load.wait_committed(500).await;
    let mut config = env.stream().await.cached_info().config.clone();
    assert!(config.allow_batch_publish, "setup allows batches");
    config.allow_batch_publish = false;
    jetstream.update_stream(&config).await.unwrap();
    relay.wait_log("10205").await;
    load.wait_committed(500).await;
    config.allow_batch_publish = true;
    jetstream.update_stream(&config).await.unwrap();
    load.wait_committed(200).await;
    env.finish(load).await;
}

/// R-REL-06: the expected last sequence alone keeps events single, also when answers are lost;
/// consumers find the id in a header that the broker does not look at.
#[tokio::test(flavor = "multi_thread")]
async fn positions_alone_keep_events_single() {
    let mut env = TestEnv::proxied().await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
    env.setup().await;
    let relay = env.relay();
    let load = env.load(17, 1000.0).await;
    for _ in 0..3 {
        load.wait_committed(200).await;
        env.to_nats().blackhole(Direction::ToClient);
        load.wait_committed(200).await;
        env.to_nats().cut().await;
        env.to_nats().restore().await.unwrap();
    }
    relay.kill9().await;
    let _relay = env.relay();
    load.wait_committed(200).await;
    let written = load.stop().await;
    env.wait_stored(written.committed.len() as u64).await;
    let stored = env.stored().await;
    assert!(stored.iter().all(|it| it.header("Nats-Msg-Id").is_none()));
    let mut ids: Vec<_> = stored.iter().map(|it| it.event().id).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "an event is stored twice");
    assert_eq!(count, written.committed.len(), "and none is missing");
}
