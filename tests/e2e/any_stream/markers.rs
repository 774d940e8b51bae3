//! The broker writes to the stream itself: markers of messages that are gone.

use std::time::Duration;

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, TestEnv, get, until};

use super::edit;
use crate::inbox::http::wait_processed;
use crate::inbox::service::Service;

const ROUNDS: usize = 6;

/// A marker for each message that is a second old, which takes a sequence, and goes itself.
async fn with_markers(env: &TestEnv) {
    edit(env, |it| {
        it.duplicate_window = Duration::from_millis(200);
        it.max_age = Duration::from_millis(400);
        it.allow_message_ttl = true;
        it.subject_delete_marker_ttl = Some(Duration::from_secs(1));
    })
    .await;
}

async fn last_sequence(env: &TestEnv) -> u64 {
    env.stream().await.cached_info().state.last_sequence
}

/// Each event is followed by a marker.
async fn publishes_among_markers(env: &TestEnv, rounds: usize) {
    for _ in 0..rounds {
        let before = last_sequence(env).await;
        env.insert_each(1).await;
        env.wait_marked().await;
        until(DEADLINE, "there is a marker", async || last_sequence(env).await >= before + 2).await;
    }
}

// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn markers_leave_the_relay_in_fenced_mode_and_make_no_dead_letters() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "200ms");
    env.set("TAILPOST_INBOX__RETENTION", "off");
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let of_inbox = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &of_inbox.addr().to_string());
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    with_markers(&env).await;
    let relay = env.relay();
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    publishes_among_markers(&env, ROUNDS).await;
    wait_processed(&env, i64::try_from(ROUNDS).expect("few")).await;
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["relay"]["mode"], "fenced", "{told:#}");
    until(DEADLINE, "all is acknowledged", async || {
        let info = env.stream().await.consumer_info("billing").await.expect("the consumer");
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;
    assert_eq!(env.query::<i64>("SELECT count(*) FROM inbox_dead_letter").await, 0);
    let (told, _) = env.ends_with(0, &["verify", "--json"]).await;
    assert!(!told.contains("foreign"), "{told}");
    // A marker goes by itself after a second, delivered or not, so a busy machine delivers fewer.
    let metrics = get(of_inbox.addr(), "/metrics").await.expect("metrics");
    let counted = metrics.lines().find(|it| it.contains("outcome=\"marker\"")).expect("a counter");
    let count: f64 = counted.rsplit(' ').next().and_then(|it| it.parse().ok()).expect("a number");
    assert!(count >= 1.0, "{counted}");
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());

    // Markers that came and went while no relay ran are no events that were published.
    relay.kill9().await;
    markers_are_no_events(&env).await;
}

/// Events that commit right behind the last position.
async fn markers_are_no_events(env: &TestEnv) {
    let handed_out = last_sequence(env).await;
    env.insert_each(5).await;
    until(DEADLINE, "the stream is empty", async || env.stored_count().await == 0).await;
    let _relay = env.relay();
    env.wait_marked().await;
    let (last, behind) = (last_sequence(env).await, handed_out + 5);
    assert!(last >= behind, "{last} is before {behind}: events were taken for published");
}
