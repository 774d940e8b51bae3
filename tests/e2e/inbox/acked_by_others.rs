//! Others acknowledge what the consumer has delivered.

use async_nats::jetstream::consumer::PullConsumer;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use support::{DEADLINE, until};

use super::Inbox;

/// A worker that is at work on them knows them all the same, and so does the next one.
// proves: G-REWIND-8
#[tokio::test(flavor = "multi_thread")]
async fn what_others_acknowledge_has_its_effect_also_after_a_kill() {
    let inbox = Inbox::new().await;
    inbox.env.setup().await;
    let once = "CREATE UNIQUE INDEX ON effects (aggregate_id) WHERE aggregate_id LIKE 'slow-%'";
    inbox.env.execute(once).await;
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish("quick", json!({ "n": 1 })).await;
    inbox.wait_acked().await;
    // A handler waits for a row with its key.
    let holder = inbox.env.client().await;
    let hold = "BEGIN; INSERT INTO effects (event_id, aggregate_id, n)
        SELECT gen_random_uuid(), 'slow-' || n, n FROM generate_series(1, 5) AS n";
    holder.batch_execute(hold).await.expect(hold);
    inbox.publish_as(|n| format!("slow-{n}"), 1..6, &json!({})).await;
    let client = inbox.env.nats.client().await.expect("connect to NATS");
    until(DEADLINE, "they are acknowledged", async || {
        for seq in 2..=6 {
            let reply = format!("$JS.ACK.OUTBOX.worker.1.{seq}.1.0.0");
            client.publish(reply, "+ACK".into()).await.expect("acknowledge");
        }
        let info = inbox.env.stream().await.consumer_info("worker").await.expect("the consumer");
        info.ack_floor.stream_sequence == 6
    })
    .await;
    inbox.publish("quick", json!({ "n": 2 })).await;
    inbox.wait_count("effects", 2).await;
    inbox.wait_acked().await;
    let renewed =
        async || inbox.env.query::<String>("SELECT expires_at::text FROM inbox_roles").await;
    for _ in 0..4 {
        let before = renewed().await;
        until(DEADLINE, "the role is renewed", async || renewed().await != before).await;
    }
    let all = ["wait", "--all", "--processed-by", "worker", "--timeout"];
    inbox.env.ends_with(6, &[&all[..], &["1s"]].concat()).await;
    worker.kill9().await;
    inbox.env.ends_with(6, &[&all[..], &["1s"]].concat()).await;
    drop(holder);
    let worker = inbox.worker();
    worker.announce("the consumer goes back");
    inbox.wait_count("effects", 7).await;
    inbox.wait_acked().await;
    inbox.assert_exact(7).await;
    inbox.env.ends_with(0, &[&all[..], &["5m"]].concat()).await;
    worker.stop().await;
}

/// As `nats consumer next` does.
// proves: G-REWIND-8
#[tokio::test(flavor = "multi_thread")]
async fn what_others_take_from_the_consumer_and_acknowledge_has_its_effect() {
    let inbox = Inbox::new().await;
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish_many(0, 1, &json!({})).await;
    inbox.wait_acked().await;
    let consumer = inbox.env.stream().await.get_consumer("worker").await;
    let consumer: PullConsumer = consumer.expect("the consumer");
    let others = consumer.batch().max_messages(3).expires(DEADLINE);
    let mut others = others.messages().await.expect("ask for messages");
    // The broker gives them to both in turns, if both have asked.
    let (mut published, mut taken) = (1, 0);
    while taken < 3 {
        inbox.publish_many(published, 1, &json!({})).await;
        published += 1;
        until(DEADLINE, "it is acknowledged", async || {
            if let Some(Some(message)) = others.next().now_or_never() {
                message.expect("a message").double_ack().await.expect("acknowledge");
                taken += 1;
            }
            inbox.is_acked().await
        })
        .await;
    }
    inbox.wait_count("effects", published).await;
    inbox.assert_exact(published).await;
    worker.stop().await;
}
