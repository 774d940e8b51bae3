//! Other clients of the account answer what a relay asks of its stream.

use std::time::Duration;

use async_nats::jetstream::stream;
use lab::{Forged, Forger, Port, Stranger};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, until};

/// What nobody but another stream, or no stream at all, answers.
const ANSWERS: [&str; 10] = [
    "{}",
    "hello",
    r#"{"stream":"OTHER","seq":7}"#,
    r#"{"stream":"OUTBOX","domain":"leaf","seq":7}"#,
    r#"{"stream":"OUTBOX","seq":18446744073709551615}"#,
    r#"{"stream":"OTHER","seq":0,"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}"#,
    r#"{"error":{"code":400,"err_code":10109,"description":"invalid operation on sealed stream"}}"#,
    r#"{"stream":"OUTBOX","seq":0,"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}"#,
    r#"{"error":{"code":400,"err_code":10205,"description":"batch publish is disabled"}}"#,
    r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}"#,
];

/// What `tailpost status` tells of a relay.
async fn status(env: &TestEnv) -> Value {
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    serde_json::from_str::<Value>(&told).expect("JSON")["relay"].take()
}

/// A relay of which each message is answered with all of that.
async fn answered(mode: &str) -> (TestEnv, Relay, Stranger, Port) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    env.setup().await;
    let client = env.nats.client().await.expect("connect to NATS");
    let forge = |reply: &str| ANSWERS.iter().map(|it| Forged::new(reply, *it)).collect();
    let stranger = Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
    let relay = env.relay();
    (env, relay, stranger, port)
}

async fn changes_nothing(mode: &str) {
    let (env, relay, stranger, _port) = answered(mode).await;
    let mut ids = env.insert_each(60).await;
    ids.extend(env.insert(300).await);
    env.wait_marked().await;
    until(DEADLINE, "all is answered", async || stranger.answered() >= 600).await;
    let mut stored = env.stored_ids().await;
    if mode != "fenced" {
        ids.sort();
        stored.sort();
    }
    assert_eq!(stored, ids);
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_dead_letter").await, 0);
    assert_eq!(relay.exited(), None);
    let status = status(&env).await;
    assert_eq!(status["breaker_opened_total"], 0, "{status}");
    assert_eq!(status["reconnects_total"], 0, "{status}");
    assert!(status["strangers_total"].as_u64() > Some(300), "{status}");
    assert!(status["stranger"].as_str().is_some(), "{status}");
    assert_eq!(status["mode"], mode);
}

// proves: G-STRANGER-1
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_strangers_change_nothing_in_fenced_mode() {
    changes_nothing("fenced").await;
}

// proves: G-STRANGER-1
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_strangers_change_nothing_in_keyed_mode() {
    changes_nothing("keyed").await;
}

// proves: G-STRANGER-1
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_strangers_change_nothing_in_poll_mode() {
    changes_nothing("poll").await;
}

/// No stream takes the events, and somebody says that it does: the relay finds out, and publishes them
/// when the stream takes them.
// proves: G-STRANGER-2
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_acknowledgement_in_fenced_mode_loses_no_event() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    let mut ids = env.insert_each(5).await;
    env.wait_marked().await;
    let whole = env.stream().await.cached_info().config.clone();
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let other = stream::Config { subjects: vec!["outbox.none".into()], ..whole.clone() };
    jetstream.update_stream(other).await.expect("change the stream");
    let client = env.nats.client().await.expect("connect to NATS");
    let mut seq = 5;
    let forge = move |reply: &str| {
        seq += 1;
        vec![Forged::new(reply, format!(r#"{{"stream":"OUTBOX","seq":{seq}}}"#))]
    };
    let stranger = Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
    for _ in 0..3 {
        ids.extend(env.insert(1).await);
        env.wait_marked().await;
    }
    assert_eq!(env.stored_count().await, 5, "they are said to be stored");
    drop(stranger);
    jetstream.update_stream(whole).await.expect("change the stream");
    ids.extend(env.insert(1).await);
    until(DEADLINE, "all are stored", async || env.stored_count().await == 9).await;
    env.wait_marked().await;
    let mut stored = env.stored_ids().await;
    ids.sort();
    stored.sort();
    assert_eq!(stored, ids);
    assert_eq!(relay.exited(), None);
}

/// Seeds that each generator plays, unless `EXAMPLES` says more.
const EXAMPLES: u64 = 2;

/// Answers at random beside a load, and relays that are killed.
async fn answered_at_random(mode: &str) {
    let examples = std::env::var("EXAMPLES").ok().and_then(|it| it.parse().ok());
    for seed in 0..examples.unwrap_or(EXAMPLES) {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        env.setup().await;
        let client = env.nats.client().await.expect("connect to NATS");
        let mut forger = Forger::new(seed, "OUTBOX", false);
        let forge = move |reply: &str| forger.forge(reply);
        let stranger = Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
        let mut random = StdRng::seed_from_u64(seed);
        let mut relay = env.relay();
        let load = env.load(seed, 300.0).await;
        for _ in 0..3 {
            load.wait_committed(random.random_range(50..300)).await;
            tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await;
            relay.kill9().await;
            relay = env.relay();
        }
        load.wait_committed(100).await;
        until(DEADLINE, "it answers", async || stranger.answered() > 100).await;
        drop(stranger);
        let written = load.stop().await;
        env.wait_marked().await;
        env.tally(&written).await.assert_exact();
        assert_eq!(relay.exited(), None, "seed {seed}");
    }
}

// proves: G-STRANGER-1
#[tokio::test(flavor = "multi_thread")]
async fn answers_at_random_cost_nothing_in_fenced_mode() {
    answered_at_random("fenced").await;
}

/// Whoever may hear and publish everything makes foreign messages, which are nobody's events. What is
/// committed meanwhile is stored once and in order, whatever mode that leads to.
async fn anything_at_random(mode: &str) {
    let examples = std::env::var("EXAMPLES").ok().and_then(|it| it.parse().ok());
    for seed in 0..examples.unwrap_or(EXAMPLES) {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.set("TAILPOST_RELAY__ACK_TIMEOUT", "1s");
        let port = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
        env.setup().await;
        let client = env.nats.client().await.expect("connect to NATS");
        let mut forger = Forger::new(seed, "OUTBOX", false).everywhere("worker");
        let forge = move |reply: &str| forger.forge(reply);
        let stranger = Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
        let relay = env.relay();
        let load = env.load(seed, 300.0).await;
        load.wait_committed(600).await;
        until(DEADLINE, "it answers", async || stranger.answered() > 300).await;
        drop(stranger);
        let written = load.stop().await;
        env.assert_exact(&written).await;
        assert_eq!(relay.exited(), None, "seed {seed}");
        let status = status(&env).await;
        assert!(status["strangers_total"].as_u64() > Some(0), "{status}");
    }
}

// proves: G-STRANGER-1
#[tokio::test(flavor = "multi_thread")]
async fn whatever_others_publish_anywhere_costs_no_event_in_keyed_mode() {
    anything_at_random("keyed").await;
}

mod long {
    use super::*;

    // proves: G-STRANGER-1
    #[tokio::test(flavor = "multi_thread")]
    async fn answers_at_random_cost_nothing_in_keyed_mode() {
        answered_at_random("keyed").await;
    }

    // proves: G-STRANGER-1
    #[tokio::test(flavor = "multi_thread")]
    async fn answers_at_random_cost_nothing_in_poll_mode() {
        answered_at_random("poll").await;
    }

    // proves: G-STRANGER-1
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_others_publish_anywhere_costs_no_event_in_fenced_mode() {
        anything_at_random("fenced").await;
    }
}
