//! The stream comes back without its end: the consumer is ahead of it, and other messages get the
//! sequences of what was delivered.

use lab::NatsOptions;
use serde_json::{Value, json};
use support::{DEADLINE, TestEnvOptions, until};

use super::{Inbox, Worker};
use crate::gone_back::StoreCopy;

async fn begun(version: &str) -> (Inbox, Worker) {
    let nats = NatsOptions { version: Some(version.into()), ..NatsOptions::default() };
    let mut inbox = Inbox::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
    let worker = inbox.worker();
    // A copy of the store that is taken before has no consumer: then none goes back.
    until(DEADLINE, "the consumer is made", async || {
        inbox.env.stream().await.consumer_info("worker").await.is_ok()
    })
    .await;
    (inbox, worker)
}

/// Of the events that were handled the stream has the first `kept` when it comes back, and new ones.
async fn comes_back(is_running: bool, (kept, new): (i64, i64)) {
    let (mut inbox, mut worker) = begun("2.11").await;
    inbox.publish_many(0, kept, &json!({})).await;
    inbox.wait_acked().await;
    let copy = StoreCopy::take(&mut inbox.env).await;
    inbox.publish_many(kept, 200, &json!({})).await;
    inbox.wait_acked().await;
    let before = kept + 200;
    if !is_running {
        // Otherwise the records behind it tell.
        inbox.wait_count(&format!("inbox_roles WHERE handled_to = {before}"), 1).await;
    }
    worker.pause();
    copy.put_stream_back(&mut inbox.env).await;
    inbox.publish_many(1_000, new, &json!({})).await;
    if !is_running {
        worker.kill9().await;
        worker = inbox.worker();
    }
    worker.announce("the consumer goes back");
    worker.resume();
    inbox.wait_count("effects", before + new).await;
    inbox.wait_acked().await;
    inbox.assert_exact(before + new).await;
    let from = kept + 1;
    let rewinds = format!("inbox_rewinds WHERE outcome = 'rewound' AND from_seq = {from}");
    assert_eq!(inbox.count(&rewinds).await, 1);
    let (status, _) = inbox.env.ends_with(0, &["status"]).await;
    assert!(status.contains("stream OUTBOX came back without its last messages"), "{status}");
    worker.stop().await;
}

// proves: G-REWIND-5
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_starts_ahead_of_its_stream_goes_back_to_what_is_handled() {
    comes_back(false, (50, 100)).await;
}

// proves: G-REWIND-5
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_ahead_of_its_stream_while_it_runs_goes_back() {
    comes_back(true, (50, 100)).await;
}

// proves: G-REWIND-5
/// When the worker looks the stream ends behind what was delivered, and it is another end.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_has_grown_again_is_noticed_by_another_message() {
    comes_back(true, (50, 300)).await;
}

// proves: G-REWIND-5
/// Nothing is behind what was delivered that is not the stream's.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_has_grown_again_while_no_worker_ran_is_noticed_by_another_message() {
    comes_back(false, (50, 300)).await;
}

/// As when a server lost what it had not flushed.
// proves: G-REWIND-5
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_of_a_stream_that_comes_back_empty_handles_what_is_new() {
    let (mut inbox, worker) = begun("2.15").await;
    let copy = StoreCopy::take(&mut inbox.env).await;
    inbox.publish_many(0, 20, &json!({})).await;
    inbox.wait_acked().await;
    worker.announce("the consumer goes back");
    copy.put_back(&mut inbox.env).await;
    until(DEADLINE, "it goes back", async || {
        inbox.count("inbox_rewinds WHERE outcome = 'rewound' AND from_seq = 1").await > 0
    })
    .await;
    inbox.publish_many(1_000, 20, &json!({})).await;
    inbox.wait_count("effects", 40).await;
    inbox.wait_acked().await;
    inbox.assert_exact(40).await;
    worker.stop().await;
}

/// 20 events are held when others get their sequences.
async fn takes_the_place_of_held(orders: Value) {
    let (mut inbox, worker) = begun("2.15").await;
    worker.announce("the consumer goes back");
    inbox.env.execute("CREATE TABLE closed ()").await;
    let copy = StoreCopy::take(&mut inbox.env).await;
    inbox.publish_many(0, 20, &orders).await;
    until(DEADLINE, "all are delivered", async || {
        let info = inbox.env.stream().await.consumer_info("worker").await;
        info.is_ok_and(|it| it.delivered.stream_sequence == 20)
    })
    .await;
    copy.put_back(&mut inbox.env).await;
    inbox.publish_many(1_000, 20, &orders).await;
    inbox.env.execute("DROP TABLE closed").await;
    inbox.wait_count("effects WHERE n >= 1000", 20).await;
    inbox.wait_acked().await;
    inbox.assert_ordered().await;
    worker.stop().await;
}

// proves: G-REWIND-6
#[tokio::test(flavor = "multi_thread")]
async fn what_takes_the_place_of_a_held_event_is_another_event() {
    takes_the_place_of_held(json!({ "while_closed": true })).await;
}

// proves: G-REWIND-6
#[tokio::test(flavor = "multi_thread")]
async fn what_takes_the_place_of_an_event_at_work_is_not_acknowledged_with_it() {
    takes_the_place_of_held(json!({ "sleep_ms": 200 })).await;
}
