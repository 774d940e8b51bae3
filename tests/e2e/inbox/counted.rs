//! Effects are counted: each event has one.

use serde_json::json;

use super::Inbox;

// proves: G-EFFECT-2
#[tokio::test(flavor = "multi_thread")]
async fn each_event_has_one_effect_in_the_order_of_its_aggregate() {
    let inbox = Inbox::new().await;
    inbox.publish_many(0, 2_000, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 2_000).await;
    inbox.wait_acked().await;
    inbox.assert_exact(2_000).await;
    let processed = "inbox_messages WHERE status = 'PROCESSED' AND attempts = 1";
    assert_eq!(inbox.count(processed).await, 2_000);
    worker.stop().await;
}
