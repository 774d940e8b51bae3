//! Dead letters and records for as long as they are needed, whatever becomes of the stream.

use std::time::Duration;

use async_nats::jetstream::stream;
use outbox::Event;
use serde_json::json;
use support::{DEADLINE, until};
use uuid::Uuid;

use super::Inbox;

const REQUEUE: &str = "UPDATE inbox_messages SET status = 'FAILED', attempts = 0,
    finished_attempts = 0, next_attempt_at = now() WHERE status = 'DEAD'";

impl Inbox {
    /// As `tailpost inbox dlq requeue` does, for all; from now on their payload is this.
    async fn requeue_all(&self, orders: &serde_json::Value) {
        let payload = format!("UPDATE inbox_dead_letter SET payload = '{orders}'::text::bytea");
        self.env.execute(&payload).await;
        self.env.execute(REQUEUE).await;
    }

    async fn make_stream_anew(&self) {
        self.jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
        let (name, subjects) = ("OUTBOX".into(), vec!["outbox.>".into()]);
        let config = stream::Config { name, subjects, ..stream::Config::default() };
        self.jetstream.create_stream(config).await.expect("make it anew");
    }

    async fn effects_of(&self, id: Uuid) -> i64 {
        self.count(&format!("effects WHERE event_id = '{id}'")).await
    }
}

/// A stream that is made anew has another message of the same sequence.
// proves: G-LETTER-4
#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_letter_is_not_taken_for_the_message_of_its_sequence() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_RUNS", "1");
    let old = inbox.publish("o-1", json!({"dead": true})).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_dead_letter", 1).await;
    inbox.wait_acked().await;
    worker.stop().await;

    inbox.make_stream_anew().await;
    inbox.env.execute("DELETE FROM runs").await;
    inbox.requeue_all(&json!({"sleep_ms": 4000})).await;
    let worker = inbox.worker();
    inbox.wait_count("runs", 1).await;
    let new = inbox.publish("o-2", json!({})).await;
    inbox.wait_acked().await;
    inbox.wait_count("effects", 2).await;
    assert_eq!((inbox.effects_of(old).await, inbox.effects_of(new).await), (1, 1));
    worker.stop().await;
}

/// What is held of the old stream has the sequences of the new one's messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_made_anew_during_the_work_has_other_messages() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MAX_ATTEMPTS", "1000000");
    inbox.env.execute("CREATE TABLE closed ()").await;
    inbox.publish("o-1", json!({"while_closed": true})).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_messages WHERE attempts > 1", 1).await;

    inbox.make_stream_anew().await;
    let new = inbox.publish("o-2", json!({})).await;
    inbox.wait_count(&format!("effects WHERE event_id = '{new}'"), 1).await;
    inbox.wait_acked().await;
    worker.stop().await;
}

// proves: G-LETTER-4
#[tokio::test(flavor = "multi_thread")]
async fn a_later_letter_of_an_event_replaces_the_first_one_whole() {
    let inbox = Inbox::new().await;
    inbox.forget_ids().await;
    let mut event = Event::new("order", "o-1", "OrderPlaced", &json!({"dead": true})).unwrap();
    inbox.publish_event(&event).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_dead_letter", 1).await;
    event.payload = r#"{"dead": true, "later": 1}"#.into();
    event.occurred_at = outbox::Event::new("x", "x", "x", &json!({})).unwrap().occurred_at;
    let again = async || inbox.publish_to("outbox.order.Later", &event).await;
    until(DEADLINE, "the stream has forgotten its id", again).await;
    let whole = "inbox_dead_letter WHERE stream_seq = 2 AND subject = 'outbox.order.Later'
        AND encode(payload, 'escape') LIKE '%later%'";
    inbox.wait_count(whole, 1).await;
    assert_eq!(inbox.count("inbox_dead_letter").await, 1);
    worker.stop().await;
}

/// Its retries were in the memory of a worker that died, and the stream has it no more.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_left_the_stream_before_its_retry_becomes_a_dead_letter() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    inbox.publish("o-1", json!({"fail_before": 100})).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_messages WHERE status = 'FAILED'", 1).await;
    worker.kill9().await;
    inbox.env.purge().await;
    let long_ago = "UPDATE inbox_messages SET status = 'FAILED', lease_token = NULL,
        expires_at = NULL, next_attempt_at = now() - interval '1 hour', finished_attempts = attempts";
    inbox.env.execute(long_ago).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_dead_letter WHERE cause = 'gone' AND reason <> ''", 1).await;
    assert_eq!(inbox.count("inbox_messages WHERE status = 'DEAD'").await, 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requeued_letters_of_one_aggregate_leave_room_for_others() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    for _ in 0..80 {
        inbox.publish("o-1", json!({"dead": true})).await;
    }
    let other = inbox.publish("o-2", json!({"dead": true})).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_dead_letter", 81).await;
    worker.stop().await;
    inbox.requeue_all(&json!({"sleep_ms": 20_000})).await;
    let quick = "UPDATE inbox_dead_letter SET payload = '{}' WHERE stream_seq = 81";
    inbox.env.execute(quick).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 1).await;
    assert_eq!(inbox.effects_of(other).await, 1, "it did not wait for the others");
    worker.kill9().await;
}

/// A letter that nobody has decided about can be requeued, however old its event is.
// proves: G-LETTER-4
#[tokio::test(flavor = "multi_thread")]
async fn a_letter_keeps_its_record_when_others_are_forgotten() {
    for inbox in [Inbox::new().await, Inbox::unpartitioned().await] {
        inbox.forget_ids().await;
        let mut dead = Event::new("order", "o-1", "OrderPlaced", &json!({"dead": true})).unwrap();
        dead.occurred_at = "2020-02-03T04:05:06Z".parse().unwrap();
        let mut done = Event::new("order", "o-2", "OrderPlaced", &json!({})).unwrap();
        done.occurred_at = dead.occurred_at;
        inbox.publish_event(&dead).await;
        inbox.publish_event(&done).await;
        let worker = inbox.worker();
        inbox.wait_count("inbox_dead_letter", 1).await;
        inbox.wait_acked().await;

        let connection = inbox::Connection::new(inbox.env.client().await);
        let records = Some(Duration::from_secs(30 * 86_400));
        let keep = inbox::Keep { records, decisions: None };
        let forgotten = inbox::look_after(&connection, "public", keep, false).await.unwrap();
        let forgotten = forgotten.expect("nobody else is at it");
        assert_eq!((forgotten.dropped, forgotten.deleted), (0, 1));
        // The worker looked at the tables before; what is forgotten does not happen again.
        let again = async || inbox.publish_event(&done).await;
        until(DEADLINE, "the stream has forgotten its id", again).await;
        inbox.wait_count("inbox_dead_letter WHERE cause = 'forgotten'", 1).await;
        assert_eq!(inbox.effects_of(done.id).await, 1);

        inbox.env.execute("DELETE FROM inbox_dead_letter WHERE cause = 'forgotten'").await;
        inbox.requeue_all(&json!({})).await;
        inbox.wait_count(&format!("effects WHERE event_id = '{}'", dead.id), 1).await;
        worker.stop().await;
    }
}

/// As above, of an event whose time is finer than its record keeps, and that the stream still has.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_to_the_nanosecond_is_found_again_for_its_retry() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    // The pause is random, and has to be seen.
    inbox.set("WORKER_BACKOFF_MS", "3600000");
    let orders = json!({"fail_before": 2});
    let mut event = Event::new("order", "o-1", "OrderPlaced", &orders).expect("an event");
    event.occurred_at = "2026-01-02T03:04:05.123456789Z".parse().expect("a time");
    inbox.publish_event(&event).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_messages WHERE status = 'FAILED'", 1).await;
    worker.kill9().await;
    // So that no session brings it before somebody looks for what nobody has.
    let client = inbox.env.nats.client().await.expect("connect to NATS");
    client.publish("$JS.ACK.OUTBOX.worker.1.1.1.0.0", "+ACK".into()).await.expect("publish");
    client.flush().await.expect("NATS takes it");
    inbox.wait_acked().await;
    let long_ago = "UPDATE inbox_messages SET next_attempt_at = now() - interval '1 hour'
        WHERE status = 'FAILED'";
    inbox.env.execute(long_ago).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 1).await;
    assert_eq!(inbox.count("inbox_dead_letter").await, 0);
    worker.stop().await;
}
