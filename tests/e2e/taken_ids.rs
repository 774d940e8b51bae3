//! Others publish messages under the ids of events.

use async_nats::HeaderMap;
use async_nats::jetstream::stream::SubjectTransform;
use lab::Port;
use serde_json::Value;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use crate::any_stream::edit;

const SUBJECT: &str = "outbox.order.OrderPlaced";

/// The stream forgets ids soon enough for a test to see what comes then.
async fn env(mode: &str) -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "3s");
    env.setup().await;
    env
}

/// Somebody else stores a message under an event's id; with `headers` besides.
async fn take(env: &TestEnv, id: Uuid, headers: HeaderMap) -> u64 {
    let mut headers = headers;
    headers.insert("Nats-Msg-Id", id.to_string().as_str());
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let sent = jetstream.publish_with_headers(SUBJECT, headers, "\"not it\"".into()).await;
    sent.expect("publish").await.expect("it is stored").sequence
}

/// The event, and 400 others.
async fn insert(env: &TestEnv, id: Uuid) {
    let emit = "PERFORM outbox_emit('order', 'o', 'OrderPlaced', '{}'";
    let others = format!("{emit});").repeat(400);
    env.execute(&format!("DO $$ BEGIN {emit}, id => '{id}'); {others} END $$")).await;
}

/// Each row has a message of its own, and is marked with it.
async fn assert_published(env: &TestEnv, events: usize, others: &[u64]) {
    let all = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
    until(DEADLINE, "all are marked", async || env.query::<i64>(all).await == 0).await;
    let mut stored = env.stored().await;
    stored.retain(|it| !others.contains(&it.sequence));
    assert_eq!(stored.len(), events, "each event once");
    for message in stored {
        let (id, seq) = (message.id, message.sequence);
        let marked = format!("SELECT stream_seq FROM outbox_events WHERE id = '{id}'");
        assert_eq!(env.query::<i64>(&marked).await.unsigned_abs(), seq, "{id}");
    }
}

async fn taken_before_a_relay_begins(mode: &str) {
    let env = env(mode).await;
    let ids = env.insert_each(5).await;
    let other = take(&env, ids[2], HeaderMap::new()).await;
    let relay = env.relay();
    relay.announce("under the id of event");
    assert_published(&env, 5, &[other]).await;
    assert_eq!(relay.exited(), None);
}

async fn taken_beside_a_relay(mode: &str) {
    let env = env(mode).await;
    let relay = env.relay();
    relay.announce("under the id of event");
    env.insert_each(5).await;
    env.wait_marked().await;
    let id = Uuid::new_v4();
    let other = take(&env, id, HeaderMap::new()).await;
    // With others behind it in one transaction: in a batch the message would be taken for the event.
    insert(&env, id).await;
    assert_published(&env, 406, &[other]).await;
    assert_eq!(relay.exited(), None);
}

// proves: G-STRANGER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_was_taken_before_a_relay_began_costs_no_event_in_fenced_mode() {
    taken_before_a_relay_begins("fenced").await;
}

// proves: G-STRANGER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_was_taken_before_a_relay_began_costs_no_event_in_keyed_mode() {
    taken_before_a_relay_begins("keyed").await;
}

// proves: G-STRANGER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_taken_beside_a_relay_costs_no_event_in_fenced_mode() {
    taken_beside_a_relay("fenced").await;
}

// proves: G-STRANGER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_taken_beside_a_relay_costs_no_event_in_keyed_mode() {
    taken_beside_a_relay("keyed").await;
}

/// A stream may store an event under another subject, and what its row says may be changed: a message
/// with a relay's headers is the event's.
// proves: G-ONCE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_relays_own_message_under_another_subject_is_no_strangers() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    edit(&env, |it| {
        let (source, destination) = ("outbox.>".into(), "kept.>".into());
        it.subject_transform = Some(SubjectTransform { source, destination });
    })
    .await;
    let relay = env.relay();
    env.insert_each(5).await;
    env.wait_marked().await;
    env.execute("UPDATE outbox_events SET published_at = NULL, stream_seq = NULL").await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 5);
    assert_eq!(relay.exited(), None);
}

/// For as long as the stream remembers the other message's id, it takes no event under it.
async fn is_told_while_the_stream_remembers(mode: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    let port = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &port.addr().to_string());
    env.setup().await;
    let ids = env.insert_each(5).await;
    let seq = take(&env, ids[2], HeaderMap::new()).await;
    let relay = env.relay();
    let taken = format!("has another message under the id of event {}, at sequence {seq}", ids[2]);
    relay.announce(&taken);
    until(DEADLINE, "the status says why an event waits", async || {
        let (told, _) = env.ends_with(0, &["status", "--json"]).await;
        let told: Value = serde_json::from_str(&told).expect("JSON");
        let why = &told["relay"]["last_error"];
        why.as_str().is_some_and(|it| it.contains(&taken))
    })
    .await;
    let waits = format!("SELECT published_at IS NULL FROM outbox_events WHERE id = '{}'", ids[2]);
    assert!(env.query::<bool>(&waits).await);
    assert_eq!(relay.exited(), None);
}

// proves: G-STRANGER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_id_was_taken_waits_and_is_told_in_fenced_mode() {
    is_told_while_the_stream_remembers("fenced").await;
}

// proves: G-STRANGER-3
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_id_was_taken_waits_and_is_told_in_poll_mode() {
    is_told_while_the_stream_remembers("poll").await;
}
