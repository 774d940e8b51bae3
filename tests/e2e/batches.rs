//! Fast-ingest batches carry fenced messages, for as long as the broker takes them.

use lab::{Direction, Port};
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv};

async fn env() -> TestEnv {
    let env = TestEnv::new().await;
    env.setup().await;
    env
}

/// What `tailpost status` tells of a relay.
async fn status(env: &TestEnv) -> Value {
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    serde_json::from_str::<Value>(&told).expect("JSON")["relay"].take()
}

/// What the relay said about itself when it stopped.
async fn batches_of(relay: Relay) -> u64 {
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    let log = relay.log();
    let said = log.split("batches=").nth(1).and_then(|rest| rest.split(' ').next());
    said.and_then(|batches| batches.parse().ok()).unwrap_or_else(|| panic!("no count in {log}"))
}

/// One answer for hundreds of messages, in commit order.
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

/// A stream that somebody else made is left as it is, and doctor says what changes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_somebody_else_that_allows_no_batches_gets_keyed_mode() {
    let env = env().await;
    let jetstream = env.nats.jetstream().await.unwrap();
    let mut config = env.stream().await.cached_info().config.clone();
    config.metadata.remove("made-by");
    config.allow_batch_publish = false;
    jetstream.update_stream(&config).await.unwrap();
    env.setup().await;
    assert!(!env.stream().await.cached_info().config.allow_batch_publish, "it is not ours");
    let relay = env.relay();
    relay.wait_log("nats stream edit OUTBOX --allow-batch").await;
    env.insert(100).await;
    env.wait_marked().await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    assert_eq!(relay.log().matches("keyed mode instead of fenced mode").count(), 1);

    allow_batches(&env, true).await;
    let relay = env.relay();
    env.insert(1_000).await;
    env.wait_marked().await;
    assert!(batches_of(relay).await > 0, "fenced mode again");
}

async fn allow_batches(env: &TestEnv, allowed: bool) {
    let mut config = env.stream().await.cached_info().config.clone();
    config.allow_batch_publish = allowed;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(&config).await.expect("change the stream");
}

/// The expected last sequence alone keeps events single, also when answers are lost;
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

mod long {
    use super::*;

    /// An operator switches batches off while the relay uses them: it goes on in
    /// keyed mode, and says so. Set-up allows them again on a stream that it made.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_whose_stream_takes_no_batches_any_more_works_in_keyed_mode() {
        let port = Port::reserve().expect("a free port");
        let mut env = env().await;
        env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
        let relay = env.relay();
        let load = env.load(16, 2000.0).await;
        load.wait_committed(500).await;
        allow_batches(&env, false).await;
        relay.wait_log("keyed mode instead of fenced mode").await;
        load.wait_committed(500).await;
        let told = status(&env).await;
        assert_eq!(told["mode"], "keyed", "{told}");
        assert_eq!(told["configured_mode"], "fenced", "{told}");
        let why = told["keyed_because"].as_str().expect("a reason");
        assert!(why.contains("tailpost setup"), "{why}");
        let (text, _) = env.ends_with(0, &["status"]).await;
        assert!(text.contains("keyed instead of fenced"), "{text}");
        env.finish(load).await;
        relay.sigterm();
        relay.wait_exit(DEADLINE).await;

        env.setup().await;
        assert!(env.stream().await.cached_info().config.allow_batch_publish, "set-up allows them");
        let _relay = env.relay();
        env.insert(10).await;
        env.wait_marked().await;
        assert_eq!(status(&env).await["mode"], "fenced");
    }

    /// Someone publishes by hand into the middle of what is in flight. Behind the
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
}
