//! What is found, and what is not, where there are no positions, no marks, no rows, or several
//! streams.

use async_nats::HeaderMap;
use support::{DEADLINE, TestEnv};
use uuid::Uuid;

use super::{
    Found, findings, free, insert_aggregates, kinds, message_of, nothing_is_found, remove, store,
    unjudged, wait_swept,
};

/// Publishes events of aggregates in a mode, and ends the relay.
pub(super) async fn published(env: &mut TestEnv, settings: &[(&str, &str)]) -> Vec<Vec<Uuid>> {
    for (name, value) in settings {
        env.set(name, value);
    }
    env.setup().await;
    let relay = env.relay();
    let aggregates = insert_aggregates(env, 5, 3).await;
    env.wait_stored(15).await;
    match settings {
        [(_, "lean")] => env.wait_covered().await,
        [(_, "poll")] => env.wait_marked().await,
        _ => wait_swept(env).await,
    }
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    aggregates
}

/// Lets the messages of two events change places.
async fn swap(env: &TestEnv, one: Uuid, other: Uuid) {
    let messages = [remove(env, other).await, remove(env, one).await];
    for message in messages {
        let mut headers = free(&message);
        headers.insert("Nats-Msg-Id", Uuid::new_v4().to_string());
        headers.insert("Tailpost-Event-Id", message.id.to_string());
        store(env, &message.subject, &headers, &message.payload).await;
    }
}

// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn in_keyed_mode_the_order_of_each_aggregate_counts() {
    let mut env = TestEnv::new().await;
    let aggregates = published(&mut env, &[("TAILPOST_RELAY__MODE", "keyed")]).await;
    nothing_is_found(&env).await;
    swap(&env, aggregates[1][1], aggregates[1][2]).await;
    // The last events of two aggregates may change places.
    swap(&env, aggregates[2][2], aggregates[3][2]).await;
    let expected = [
        (aggregates[1][1], &["disorder", "mark"][..]),
        (aggregates[1][2], &["mark"]),
        (aggregates[2][2], &["mark"]),
        (aggregates[3][2], &["mark"]),
    ];
    let expected = expected.map(|(id, found)| (Some(id), kinds(found)));
    assert_eq!(findings(&env).await, Found::from(expected));
}

/// Without positions the order of insertion counts, and marks say where events are.
// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_the_order_of_insertion_counts() {
    let mut env = TestEnv::new().await;
    let aggregates = published(&mut env, &[("TAILPOST_RELAY__MODE", "poll")]).await;
    nothing_is_found(&env).await;
    swap(&env, aggregates[1][1], aggregates[1][2]).await;
    remove(&env, aggregates[2][1]).await;
    let unmark = "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL
                  WHERE id = ";
    env.execute(&format!("{unmark} '{}'", aggregates[3][1])).await;
    let expected = [
        (aggregates[1][1], &["disorder", "mark"][..]),
        (aggregates[1][2], &["mark"]),
        (aggregates[2][1], &["gap"]),
        (aggregates[3][1], &["unmarked"]),
    ];
    let expected = expected.map(|(id, found)| (Some(id), kinds(found)));
    assert_eq!(findings(&env).await, Found::from(expected));
    let (_, said) = env.ends_with(4, &["verify", "--from-lsn", "0/1"]).await;
    assert!(said.contains("use --since"), "{said}");
}

/// Rows say nothing of where their events are, and all of them are to be there.
// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn by_watermark_gaps_and_duplicates_are_found() {
    let mut env = TestEnv::new().await;
    let aggregates = published(&mut env, &[("TAILPOST_RELAY__MARK", "lean")]).await;
    nothing_is_found(&env).await;
    remove(&env, aggregates[2][1]).await;
    let message = message_of(&env, aggregates[3][1]).await;
    let mut headers = free(&message);
    headers.insert("Nats-Msg-Id", Uuid::new_v4().to_string());
    headers.insert("Tailpost-Event-Id", message.id.to_string());
    store(&env, &message.subject, &headers, &message.payload).await;
    let expected = [(aggregates[2][1], &["gap"][..]), (aggregates[3][1], &["duplicate"])];
    let expected = expected.map(|(id, found)| (Some(id), kinds(found)));
    assert_eq!(findings(&env).await, Found::from(expected));
}

/// Without rows a missing message leaves no trace, and that is said.
// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn where_rows_are_deleted_the_stream_is_all_there_is() {
    let mut env = TestEnv::new().await;
    let aggregates = published(&mut env, &[("TAILPOST_RELAY__MARK", "delete")]).await;
    remove(&env, aggregates[2][1]).await;
    let compared = nothing_is_found(&env).await;
    assert_eq!(unjudged(&compared, "deleted"), 14);
    swap(&env, aggregates[1][1], aggregates[1][2]).await;
    let expected = Found::from([(Some(aggregates[1][1]), kinds(&["disorder"]))]);
    assert_eq!(findings(&env).await, expected);
}

// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn with_shards_an_event_in_another_stream_is_found() {
    let mut env = TestEnv::new().await;
    env.set_shards(2);
    env.setup().await;
    let relay = env.relay();
    let ids = insert_aggregates(&env, 8, 3).await.concat();
    wait_swept(&env).await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;
    nothing_is_found(&env).await;

    // The last events of both streams: that they are elsewhere breaks no order.
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let (zero, one) = (env.stored_in("OUTBOX_0").await, env.stored_in("OUTBOX_1").await);
    let (copied, moved) = (zero.last().expect("a message"), one.last().expect("a message"));
    let again = |message: &support::Stored| (free(message), message.payload.clone());
    let (headers, payload) = again(copied);
    store(&env, "outbox.1.order.OrderPlaced", &headers, &payload).await;
    let stream = jetstream.get_stream("OUTBOX_1").await.expect("a stream");
    env.removes_messages();
    stream.delete_message(moved.sequence).await.expect("delete a message");
    let (headers, payload) = again(moved);
    store(&env, "outbox.0.order.OrderPlaced", &headers, &payload).await;
    let lost = ids.iter().find(|it| **it != copied.id && **it != moved.id && zero[1].id == **it);
    let lost = *lost.expect("an event in the middle");
    let stream = jetstream.get_stream("OUTBOX_0").await.expect("a stream");
    stream.delete_message(zero[1].sequence).await.expect("delete a message");

    let expected = [(copied.id, &["duplicate"][..]), (moved.id, &["misplaced"]), (lost, &["gap"])];
    let expected = expected.map(|(id, found)| (Some(id), kinds(found)));
    assert_eq!(findings(&env).await, Found::from(expected));
}

/// Messages of others are counted, whatever their bytes are.
// proves: G-VERIFY-2
#[tokio::test(flavor = "multi_thread")]
async fn foreign_messages_are_counted_and_no_findings() {
    let mut env = TestEnv::new().await;
    let settings = [("TAILPOST_RELAY__MODE", "keyed")];
    published(&mut env, &settings).await;
    let mut headers = HeaderMap::new();
    store(&env, "outbox.order.OrderPlaced", &headers, "of somebody else").await;
    headers.insert("Nats-Msg-Id", Uuid::new_v4().to_string());
    store(&env, "outbox.order.OrderPlaced", &headers, "of somebody else").await;
    let mut raw = lab::RawNats::connect(&env.nats.url()).await.expect("connect to NATS");
    for bytes in [
        &b"NATS/1.0\r\nA: \xff\r\n\r\n"[..],
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
    ] {
        raw.publish(b"outbox.order.OrderPlaced", Some(bytes), b"x").await.expect("publish");
    }
    raw.flush().await.expect("the server has it");
    env.wait_stored(20).await;
    let relay = env.relay();
    insert_aggregates(&env, 2, 2).await;
    env.wait_stored(24).await;
    wait_swept(&env).await;
    drop(relay);
    let compared = nothing_is_found(&env).await;
    assert_eq!((unjudged(&compared, "foreign"), compared["matched"].as_u64()), (5, Some(19)));
}
