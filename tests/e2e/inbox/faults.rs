//! Handlers that fail, servers that are away, and stops.

use std::time::Duration;

use outbox::Event;
use serde_json::json;
use support::{DEADLINE, until};

use super::Inbox;

// proves: G-EFFECT-2
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_repeated_in_order_and_end_as_dead_letters() {
    for mode in ["transactional", "leased"] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        for n in 0..100 {
            let orders = match n % 20 {
                3 => json!({ "n": n, "fail_before": 3 }),
                7 => json!({ "n": n, "dead": true }),
                11 => json!({ "n": n, "fail_before": 99 }),
                15 if mode == "transactional" => json!({ "n": n, "break_transaction": true }),
                _ => json!({ "n": n }),
            };
            inbox.publish(&format!("o-{}", n % 4), orders).await;
        }
        let worker = inbox.worker();
        let (works, dead) = if mode == "leased" { (90, 10) } else { (85, 15) };
        inbox.wait_count("effects", works).await;
        inbox.wait_count("inbox_dead_letter", dead).await;
        inbox.wait_acked().await;
        inbox.assert_exact(works).await;
        let exhausted = "inbox_dead_letter WHERE cause = 'max_attempts' AND attempts = 5";
        assert_eq!(inbox.count(exhausted).await, dead - 5, "{mode}");
        let rejected =
            "inbox_dead_letter WHERE cause = 'dead' AND reason = 'never' AND attempts = 1";
        assert_eq!(inbox.count(rejected).await, 5, "{mode}");
        let records = "inbox_messages JOIN inbox_dead_letter USING (consumer, message_id)
            WHERE status = 'DEAD' AND attempts = finished_attempts";
        let records: i64 = inbox
            .env
            .query(&format!(
                "SELECT count(*) FROM {}",
                records.replace("attempts = finished", "inbox_messages.attempts = finished")
            ))
            .await;
        assert_eq!(records, dead, "{mode}");
        worker.stop().await;
        let log = inbox.env.postgres.log();
        assert!(!log.contains("no transaction in progress"), "each is ended once: {log}");
    }
}

/// Nothing hangs on how long the broker remembers ids.
// proves: G-EFFECT-1
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_stream_has_twice_has_one_effect() {
    for mode in ["transactional", "leased"] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        let events: Vec<Event> = (0..20)
            .map(|n| Event::new("order", format!("o-{}", n % 4), "OrderPlaced", &json!({ "n": n })))
            .collect::<Result<_, _>>()
            .unwrap();
        inbox.forget_ids().await;
        let worker = inbox.worker();
        for _ in 0..2 {
            for event in &events {
                until(DEADLINE, "it is stored", async || inbox.publish_event(event).await).await;
            }
        }
        inbox.wait_acked().await;
        assert_eq!(inbox.env.stored_count().await, 40, "{mode}");
        inbox.assert_exact(20).await;
        worker.stop().await;
    }
}

// proves: G-LETTER-1
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_an_event_is_parked_and_stops_nobody() {
    for mode in ["transactional", "leased"] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        let nats = inbox.env.nats.client().await.unwrap();
        for id in [None, Some("not a uuid"), Some("")] {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Tail", "x");
            if let Some(id) = id {
                headers.insert("Nats-Msg-Id", id);
            }
            nats.publish_with_headers("outbox.order.x", headers, "\0junk".into()).await.unwrap();
        }
        nats.publish("outbox.order.x", "no headers".into()).await.unwrap();
        nats.flush().await.unwrap();
        inbox.publish_many(0, 10, &json!({})).await;
        let worker = inbox.worker();
        inbox.wait_count("effects", 10).await;
        inbox.wait_count("inbox_dead_letter WHERE cause = 'unreadable'", 4).await;
        inbox.wait_acked().await;
        assert_eq!(inbox.count("inbox_messages WHERE status = 'DEAD'").await, 4);
        let keyed = "(SELECT DISTINCT stream_seq, message_id FROM inbox_dead_letter
            WHERE stream = 'OUTBOX') AS t";
        assert_eq!(inbox.count(keyed).await, 4);
        worker.stop().await;
    }
}

/// What may have been handled and forgotten is not handled; any other day has
/// room, however old.
#[tokio::test(flavor = "multi_thread")]
async fn old_events_are_handled_until_they_are_forgotten() {
    let inbox = Inbox::new().await;
    let mut old = Event::new("order", "o-1", "OrderPlaced", &json!({})).unwrap();
    old.occurred_at = "2020-02-03T04:05:06Z".parse().unwrap();
    inbox.publish_event(&old).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 1).await;
    inbox.wait_acked().await;
    let partition = "pg_class WHERE relkind = 'r' AND relname LIKE 'inbox_messages_before_%'";
    assert_eq!(inbox.count(partition).await, 1, "one for all that is older");
    worker.stop().await;

    let connection = inbox::Connection::new(inbox.env.client().await);
    let records = Some(Duration::from_secs(30 * 86_400));
    let keep = inbox::Keep { records, decisions: None };
    let done = inbox::look_after(&connection, "public", keep, false).await.unwrap();
    assert_eq!(done.map(|it| (it.dropped, it.deleted)), Some((0, 1)));
    let again = inbox::look_after(&connection, "public", keep, false).await.unwrap();
    assert_eq!(again, Some(inbox::Maintained::default()));
    let mut other = old.clone();
    other.id = uuid::Uuid::new_v4();
    inbox.publish_event(&other).await;
    let worker = inbox.worker();
    inbox.wait_count("inbox_dead_letter WHERE cause = 'forgotten'", 1).await;
    inbox.wait_acked().await;
    assert_eq!(inbox.count("effects").await, 1);
    worker.stop().await;
}

// proves: G-EFFECT-4
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_loses_nothing_and_uses_up_no_attempts() {
    for mode in ["transactional", "leased"] {
        let mut inbox = Inbox::new().await;
        inbox.set("WORKER_MODE", mode);
        inbox.set("WORKER_ACK_WAIT_MS", "1000");
        inbox.publish_many(0, 300, &json!({ "sleep_ms": 3 })).await;
        let worker = inbox.worker();
        inbox.wait_count("effects", 30).await;
        inbox.env.postgres.kill().await.unwrap();
        worker.wait_log("the database is away").await;
        inbox.publish_many(300, 100, &json!({})).await;
        // Several times ack_wait: it is not the broker's patience that this rests on.
        tokio::time::sleep(Duration::from_secs(3)).await;
        inbox.env.postgres.start_again().await.unwrap();
        until(DEADLINE, "all have had their effect", async || {
            inbox.count("(SELECT DISTINCT event_id FROM effects) AS t").await == 400
        })
        .await;
        inbox.wait_acked().await;
        assert_eq!(inbox.count("inbox_dead_letter").await, 0);
        if mode == "transactional" {
            inbox.assert_exact(400).await;
            let burned = "inbox_messages WHERE attempts <> 1 OR finished_attempts <> 1";
            assert_eq!(inbox.count(burned).await, 0);
        }
        worker.stop().await;
    }
}

/// Leases shorter and longer than `ack_wait`, and a handler slower than both.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handler_runs_once() {
    for (mode, lease, ack_wait) in
        [("leased", "1000", "2000"), ("leased", "2000", "1000"), ("transactional", "1000", "1000")]
    {
        // A machine that stands still for a second takes the lease away.
        let mut tries = 0..3;
        while !runs_once(mode, lease, ack_wait).await {
            tries.next().expect("the lease is lost each time");
        }
    }
}

/// Whether each handler ran once: it does unless its lease was lost.
async fn runs_once(mode: &str, lease: &str, ack_wait: &str) -> bool {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MODE", mode);
    inbox.set("WORKER_RUNS", "1");
    inbox.set("WORKER_LEASE_MS", lease);
    inbox.set("WORKER_ACK_WAIT_MS", ack_wait);
    inbox.publish("o-1", json!({ "n": 1, "sleep_ms": 3000 })).await;
    inbox.publish("o-1", json!({ "n": 2 })).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 2).await;
    inbox.wait_acked().await;
    let runs = inbox.count("runs").await;
    let is_lost = worker.log().contains("the lease was lost");
    assert!(runs == 2 || is_lost, "{runs} runs: {mode} {lease} {ack_wait}");
    inbox.assert_exact(2).await;
    worker.stop().await;
    runs == 2
}

/// What PostgreSQL adds to a refusal has values of the handler's tables in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_refused_tells_nobody_the_values() {
    let mut inbox = Inbox::new().await;
    inbox.set("WORKER_MAX_ATTEMPTS", "2");
    let once = "ALTER TABLE effects ADD UNIQUE (aggregate_id) DEFERRABLE INITIALLY DEFERRED";
    inbox.env.execute(once).await;
    inbox.publish("secret-7", json!({})).await;
    inbox.publish("secret-7", json!({ "n": 1 })).await;
    let worker = inbox.worker();
    let letter = "inbox_dead_letter WHERE reason LIKE 'the transaction failed: %(23505)'";
    inbox.wait_count(letter, 1).await;
    let told = "inbox_messages WHERE last_error LIKE '%secret-7%'";
    assert_eq!(inbox.count(told).await, 0);
    assert!(!worker.log().contains("secret-7"), "{}", worker.log());
    worker.stop().await;
}

mod long {
    use super::*;

    /// A deploy.
    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_under_load_runs_no_handler_twice() {
        for mode in ["transactional", "leased"] {
            let mut inbox = Inbox::new().await;
            inbox.set("WORKER_MODE", mode);
            inbox.set("WORKER_RUNS", "1");
            let mut published = 0;
            for _ in 0..4 {
                inbox.publish_many(published, 100, &json!({ "sleep_ms": 2 })).await;
                published += 100;
                let before = inbox.count("effects").await;
                let worker = inbox.worker();
                inbox.wait_count("effects", before + 20).await;
                worker.stop().await;
            }
            let worker = inbox.worker();
            inbox.wait_count("effects", published).await;
            inbox.wait_acked().await;
            worker.stop().await;
            inbox.assert_exact(published).await;
            assert_eq!(inbox.count("runs").await, published, "{mode}");
            assert_eq!(inbox.count("inbox_messages WHERE attempts <> 1").await, 0, "{mode}");
        }
    }

    /// Single connections break, the one that keeps the role among them or not.
    #[tokio::test(flavor = "multi_thread")]
    async fn connections_that_break_one_by_one_stop_nobody_for_long() {
        for mode in ["transactional", "leased"] {
            let mut inbox = Inbox::new().await;
            inbox.set("WORKER_MODE", mode);
            inbox.set("WORKER_ACK_WAIT_MS", "1000");
            inbox.publish_many(0, 600, &json!({ "sleep_ms": 2 })).await;
            let worker = inbox.worker();
            for n in 1..8_i64 {
                inbox.wait_count("effects", n * 40).await;
                let broken = format!(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                     AND pid % 3 = {n} % 3"
                );
                inbox.env.query::<i64>(&broken).await;
            }
            until(DEADLINE, "all have had their effect", async || {
                inbox.count("(SELECT DISTINCT event_id FROM effects) AS t").await == 600
            })
            .await;
            inbox.wait_acked().await;
            assert_eq!(inbox.count("inbox_dead_letter").await, 0);
            if mode == "transactional" {
                inbox.assert_exact(600).await;
            }
            worker.stop().await;
        }
    }
}
