//! Workers that die, at any moment.

use outbox::Event;
use serde_json::json;
use support::{DEADLINE, until};

use super::{Inbox, some_time};

async fn survives_kills(mut inbox: Inbox, kills: u32) {
    inbox.set("WORKER_ACK_WAIT_MS", "2000");
    inbox.set("WORKER_BATCH", "16");
    let mut published = 0;
    for _ in 0..kills {
        inbox.publish_many(published, 300, &json!({ "sleep_ms": 1 })).await;
        published += 300;
        let before = inbox.count("effects").await;
        let worker = inbox.worker();
        // Enough for those that the last one had at work: an event that three kills meet is parked.
        inbox.wait_count("effects", before + 50).await;
        some_time(0..150).await;
        worker.kill9().await;
    }
    let _worker = inbox.worker();
    inbox.wait_count("effects", published).await;
    inbox.wait_acked().await;
    inbox.assert_exact(published).await;
}

/// The broker delivers again and again what is at work.
// proves: G-EFFECT-3
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_worker_that_wakes_up_repeats_nothing() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_ACK_WAIT_MS", "1000");
    inbox.publish_many(0, 500, &json!({ "sleep_ms": 1 })).await;
    let first = inbox.worker();
    inbox.wait_count("effects", 20).await;
    first.pause();
    // What a network that is cut does: the server gives up on the silent one.
    let silent = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    inbox.env.query::<i64>(silent).await;
    let second = inbox.worker();
    second.wait_active().await;
    let before = inbox.count("effects").await;
    inbox.wait_count("effects", (before + 50).min(500)).await;
    first.resume();
    inbox.wait_count("effects", 500).await;
    inbox.wait_acked().await;
    inbox.assert_exact(500).await;
}

/// A worker dies and leaves its lease behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_workers_lease_holds_until_it_expires() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    inbox.set("WORKER_RUNS", "1");
    inbox.set("WORKER_LEASE_MS", "4000");
    inbox.set("WORKER_ACK_WAIT_MS", "1000");
    inbox.publish("o-1", json!({ "sleep_ms": 1500 })).await;
    let first = inbox.worker();
    inbox.wait_count("runs", 1).await;
    first.kill9().await;
    let second = inbox.worker();
    second.wait_log("leased by another worker").await;
    assert_eq!(inbox.count("runs").await, 1, "not while it is leased");
    inbox.wait_count("effects", 1).await;
    inbox.wait_acked().await;
    assert_eq!(inbox.count("runs").await, 2);
    inbox.assert_exact(1).await;
    let counted = "inbox_messages WHERE attempts = 2 AND finished_attempts = 1";
    assert_eq!(inbox.count(counted).await, 1, "the attempt was counted when it started");
}

/// Handlers that kill the process, and innocent bystanders.
// proves: G-LETTER-1
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_aborts_the_process_is_parked_after_three_starts() {
    for (mode, runs) in [("leased", 3), ("transactional", 4)] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        inbox.set("WORKER_RUNS", "1");
        inbox.set("WORKER_LEASE_MS", "1000");
        inbox.set("WORKER_ACK_WAIT_MS", "1000");
        inbox.publish_many(0, 20, &json!({ "sleep_ms": 5 })).await;
        let killer = inbox.publish("killer", json!({ "abort": true })).await;
        inbox.publish_many(20, 20, &json!({ "sleep_ms": 5 })).await;
        let mut deaths = 0;
        loop {
            let worker = inbox.worker();
            let parked = async || inbox.count("inbox_dead_letter").await == 1;
            tokio::select! {
                _ = worker.wait_exit(DEADLINE) => deaths += 1,
                () = until(DEADLINE, "the killer is parked", parked) => {
                    inbox.wait_count("effects", 40).await;
                    inbox.wait_acked().await;
                    break;
                }
            }
        }
        assert_eq!(deaths, runs, "{mode}");
        let dead = format!("inbox_dead_letter WHERE message_id = '{killer}' AND cause = 'crashes'");
        assert_eq!(inbox.count(&dead).await, 1, "nobody else is parked");
        let status = "inbox_messages WHERE status = 'DEAD' AND attempts - finished_attempts = 3";
        assert_eq!(inbox.count(status).await, 1);
        inbox.assert_ordered().await;
        assert_eq!(inbox.count("(SELECT DISTINCT event_id FROM effects) AS t").await, 40);
    }
}

/// The worker before writes down that its attempt has failed, while the next one looks at the event:
/// it is neither a dead letter nor acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_written_down_late_makes_no_event_vanish() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", "leased");
    let event = Event::new("order", "o-1", "OrderPlaced", &json!({})).expect("an event");
    inbox.publish_event(&event).await;
    let begun = format!(
        "INSERT INTO inbox_messages (consumer, message_id, event_time, subject, stream, stream_seq,
             status, attempts, lease_owner, lease_token, claimed_at, expires_at)
         VALUES ('worker', '{}', '{}', 'outbox.order.OrderPlaced', 'OUTBOX', 1, 'PROCESSING', 3,
             'the worker before', gen_random_uuid(), now(), now())",
        event.id, event.occurred_at
    );
    inbox.env.execute(&begun).await;
    let mut client = inbox.env.client().await;
    let before = client.transaction().await.expect("begin");
    let fails = "UPDATE inbox_messages SET status = 'FAILED', finished_attempts = 1,
        lease_token = NULL, expires_at = NULL, next_attempt_at = now() + '9 s'";
    before.execute(fails, &[]).await.expect("write the end down");
    let worker = inbox.worker();
    let waits = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%claimed AS%'";
    inbox.wait_count(waits, 1).await;
    before.commit().await.expect("commit");
    inbox.wait_acked().await;
    inbox.assert_exact(1).await;
    assert_eq!(inbox.count("inbox_dead_letter").await, 0);
    worker.stop().await;
}

mod long {
    use super::*;

    /// What was delivered to the dead comes again, behind later events,
    /// and must not be handled behind them.
    // proves: G-EFFECT-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_under_load_each_event_has_one_effect_and_order_holds() {
        survives_kills(Inbox::new().await, 6).await;
    }

    /// A paused worker's claims are taken over; when it wakes up it changes nothing.
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_while_two_stand_by_one_takes_over() {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_ACK_WAIT_MS", "2000");
        inbox.publish_many(0, 1_000, &json!({ "sleep_ms": 1 })).await;
        let first = inbox.worker();
        first.wait_active().await;
        let standbys = [inbox.worker(), inbox.worker()];
        for standby in &standbys {
            standby.wait_log("standing by").await;
        }
        inbox.wait_count("effects", 1).await;
        first.kill9().await;
        inbox.wait_count("effects", 1_000).await;
        inbox.wait_acked().await;
        inbox.assert_exact(1_000).await;
        let active = standbys.iter().filter(|it| it.log().contains("the consumer is ours")).count();
        assert_eq!(active, 1, "one of them took over");
    }
}
