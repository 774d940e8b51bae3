//! Advisories of the broker, and what other clients publish in their place.

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::{self, pull};
use futures_util::StreamExt;
use serde_json::json;
use support::{DEADLINE, until};

use super::Inbox;

const TERMINATED: &str = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.OUTBOX.worker";

impl Inbox {
    async fn info(&self) -> consumer::Info {
        self.env.stream().await.consumer_info("worker").await.expect("the consumer")
    }

    /// Publishes what the broker would, were this message terminated.
    async fn forge(&self, stream_seq: u64) {
        let client = self.env.nats.client().await.expect("connect to NATS");
        let advisory = json!({ "stream_seq": stream_seq }).to_string();
        client.publish(TERMINATED, advisory.into()).await.expect("publish");
        client.flush().await.expect("NATS takes them");
    }
}

/// Another client of the same consumer takes a message, and has the broker give up on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_client_terminates_is_handled() {
    let inbox = Inbox::new().await;
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish("o-1", json!({})).await;
    inbox.wait_count("effects", 1).await;
    inbox.wait_acked().await;
    worker.pause();
    let nobody_asks = async || inbox.info().await.num_waiting == 0;
    until(DEADLINE, "the worker's request has expired", nobody_asks).await;
    inbox.publish("o-1", json!({ "n": 1 })).await;
    let consumer: consumer::PullConsumer =
        inbox.env.stream().await.get_consumer("worker").await.expect("the consumer");
    let mut messages = consumer.fetch().max_messages(1).messages().await.expect("take one");
    let message = messages.next().await.expect("one").expect("a message");
    message.ack_with(AckKind::Term).await.expect("terminate it");
    worker.resume();
    inbox.wait_count("effects", 2).await;
    inbox.assert_exact(2).await;
    worker.stop().await;
}

/// Handled, it would be before earlier events of its aggregate.
// proves: G-EFFECT-2
#[tokio::test(flavor = "multi_thread")]
async fn an_advisory_about_what_was_not_delivered_is_passed_over() {
    let mut inbox = Inbox::new().await;
    let five = pull::Config {
        durable_name: Some("worker".into()),
        max_ack_pending: 5,
        ..pull::Config::default()
    };
    inbox.env.stream().await.create_consumer(five).await.expect("make the consumer");
    inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
    inbox.env.execute("CREATE TABLE closed ()").await;
    inbox.publish_as(|_| "o-1".to_owned(), 0..1, &json!({ "while_closed": true })).await;
    inbox.publish_as(|_| "o-1".to_owned(), 1..10, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_messages WHERE attempts > 1", 1).await;
    let five = async || inbox.info().await.delivered.stream_sequence == 5;
    until(DEADLINE, "five are delivered", five).await;
    inbox.forge(9).await;
    worker.wait_log("passed over an advisory about what was not delivered").await;
    inbox.env.execute("DROP TABLE closed").await;
    inbox.wait_count("effects", 10).await;
    inbox.wait_acked().await;
    inbox.assert_exact(10).await;
    worker.stop().await;
}
