//! What became of an event, from its row to its effect, also when the row is gone.

use serde_json::Value;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use super::http::{set_up, wait_processed};
use super::service::{Service, emit};

async fn explain(env: &TestEnv, id: Uuid) -> (Value, String) {
    let id = id.to_string();
    let (json, _) = env.ends_with(0, &["explain", &id, "--json"]).await;
    let (text, _) = env.ends_with(0, &["explain", &id]).await;
    (serde_json::from_str(&json).expect("JSON"), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_explained_from_its_row_to_its_effect() {
    let env = set_up().await;
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("bad", 422);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.wait_log("the consumer is ours").await;
    let id = emit(&env, "o-17", "{}").await;
    wait_processed(&env, 1).await;
    env.wait_marked().await;

    let (told, text) = explain(&env, id).await;
    assert_eq!(told["row"]["status"], "PUBLISHED", "{told}");
    assert_eq!(told["row"]["stream_seq"], 1, "{told}");
    assert_eq!(told["message"]["subject"], "outbox.order.OrderPlaced", "{told}");
    assert!(told["message"]["position"].is_string(), "{told}");
    assert_eq!(told["consumers"]["billing"]["record"]["status"], "PROCESSED", "{told}");
    assert_eq!(told["notes"], Value::Array(vec![]), "{told}");
    for line in ["aggregate     order:o-17, OrderPlaced", "published     in OUTBOX as 1, marked "] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("consumer      billing: processed"), "{text}");

    // Its row is gone: the consumer knows where the stream has it.
    env.execute("DELETE FROM outbox_events").await;
    let (told, text) = explain(&env, id).await;
    assert!(told["row"].is_null(), "{told}");
    assert_eq!(told["message"]["seq"], 1, "{told}");
    assert!(text.contains("the outbox does not have it, or not any more"), "{text}");
    env.purge().await;
    let (told, text) = explain(&env, id).await;
    assert!(told["message"].is_null(), "{told}");
    assert!(text.contains("stream OUTBOX has message 1 no more"), "{text}");

    let bad = emit(&env, "bad", "{}").await;
    let wait =
        ["wait", &bad.to_string(), "--processed-by", "billing", "--direct"].map(str::to_owned);
    env.ends_with(4, &wait.each_ref().map(String::as_str)).await;
    let reject = ["inbox", "dlq", "reject", &bad.to_string(), "--yes", "--why", "ticket 17"];
    env.ends_with(0, &reject).await;
    let (told, text) = explain(&env, bad).await;
    let billing = &told["consumers"]["billing"];
    assert_eq!(billing["record"]["status"], "REJECTED", "{told}");
    assert_eq!(billing["decisions"][0]["why"], "ticket 17", "{told}");
    assert!(text.contains("reject by ") && text.contains(": ticket 17"), "{text}");

    let (_, log) = env.ends_with(3, &["explain", &Uuid::now_v7().to_string()]).await;
    assert!(log.contains("nobody knows event"), "{log}");
}

/// Those of before a dead letter was requeued, too.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_failed_are_explained() {
    let mut env = set_up().await;
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "3");
    env.set("TAILPOST_INBOX__BACKOFF", "50ms");
    let _relay = env.relay();
    let service = Service::start().await;
    service.answer_to("bad", 500);
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let good = emit(&env, "good", "{}").await;
    let bad = emit(&env, "bad", "{}").await;
    let dead = "SELECT count(*) FROM inbox_dead_letter";
    until(DEADLINE, "it is a dead letter", async || env.query::<i64>(dead).await == 1).await;
    service.answer_to("bad", 204);
    let requeue = ["inbox", "dlq", "requeue", &bad.to_string()];
    env.ends_with(0, &requeue).await;
    wait_processed(&env, 2).await;

    let (told, text) = explain(&env, bad).await;
    let billing = &told["consumers"]["billing"];
    assert_eq!(billing["record"]["status"], "PROCESSED", "{told}");
    let failed = billing["failed_attempts"].as_array().expect("a list");
    let numbers: Vec<_> = failed.iter().map(|it| it["attempt"].as_i64()).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(3)], "{told}");
    for it in failed {
        assert_eq!(
            (&it["code"], &it["reason"]),
            (&500.into(), &"500 Internal Server Error".into())
        );
        assert!(it["took_ms"].is_u64() && it["failed_at"].is_string(), "{told}");
        assert_eq!(it["worker"], billing["record"]["worker"], "{told}");
    }
    for n in 1..=3 {
        let line = text.lines().find(|it| it.starts_with(&format!("  failed {n}")));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(
            line.contains(" after ") && line.ends_with(": 500 Internal Server Error"),
            "{text}"
        );
    }
    let (told, _) = explain(&env, good).await;
    let failed = &told["consumers"]["billing"]["failed_attempts"];
    assert_eq!(failed, &Value::Array(vec![]), "{told}");

    // Without them the rest is explained all the same.
    env.execute("DROP TABLE inbox_attempts").await;
    let (told, text) = explain(&env, bad).await;
    assert_eq!(told["consumers"]["billing"]["record"]["status"], "PROCESSED", "{told}");
    assert!(text.contains("note          failed attempts cannot be read: "), "{text}");
}

/// Without an inbox, and without a broker.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_waits_is_explained_without_an_inbox_and_a_broker() {
    let env = TestEnv::new().await;
    env.setup().await;
    let id = emit(&env, "o-17", "{}").await;
    let (told, text) = explain(&env, id).await;
    assert_eq!(told["row"]["status"], "PENDING", "{told}");
    assert!(told["row"]["transaction"].is_string(), "{told}");
    assert!(text.contains("state         pending"), "{text}");
    env.nats.pause().expect("pause NATS");
    env.execute("UPDATE outbox_events SET published_at = now(), stream = 'OUTBOX', stream_seq = 7")
        .await;
    let (_, text) = explain(&env, id).await;
    assert!(text.contains("the broker cannot be asked: "), "{text}");
    env.nats.resume().expect("resume NATS");
    let (_, text) = explain(&env, id).await;
    assert!(text.contains("stream OUTBOX has message 7 no more"), "{text}");
}
