//! What operators do about events that no attempt could process.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, until};
use uuid::Uuid;

use super::http::{set_up, wait_processed};
use super::service::{Service, emit};

const WHY: [&str; 2] = ["--why", "ticket 17"];

/// Servers, a relay, and one consumer.
struct Scene {
    env: TestEnv,
    service: Service,
    _relay: Relay,
    _inbox: Relay,
}

impl Scene {
    async fn new() -> Self {
        let env = set_up().await;
        let relay = env.relay();
        let service = Service::start().await;
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        Self { env, service, _relay: relay, _inbox: inbox }
    }

    /// Commits an event that the service refuses for good, and waits until it is a dead letter.
    async fn dead(&self, aggregate_id: &str) -> Uuid {
        self.service.answer_to(aggregate_id, 422);
        let before = self.dead_count().await;
        let id = emit(&self.env, aggregate_id, "{\"secret\": \"hunter2\"}").await;
        let what = format!("{id} is a dead letter");
        until(DEADLINE, &what, async || self.dead_count().await > before).await;
        id
    }

    async fn dead_count(&self) -> i64 {
        self.env.query("SELECT count(*) FROM inbox_dead_letter").await
    }

    async fn status_of(&self, id: Uuid) -> String {
        let sql = format!(
            "SELECT coalesce(max(status), '') FROM inbox_messages
             WHERE message_id = '{id}' AND consumer = 'billing'"
        );
        self.env.query(&sql).await
    }

    /// Who decided what about an event, oldest first.
    async fn decisions(&self, id: Uuid) -> String {
        let sql = format!(
            "SELECT coalesce(string_agg(decision || ':' || coalesce(reason, ''), ',' ORDER BY id), '')
             FROM inbox_decisions WHERE message_id = '{id}'"
        );
        self.env.query(&sql).await
    }

    async fn dlq(&self, code: i32, args: &[&str]) -> (String, String) {
        let args: Vec<_> = ["inbox", "dlq"].iter().chain(args).copied().collect();
        self.env.ends_with(code, &args).await
    }
}

// proves: G-LETTER-2
#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_event_takes_the_same_way_again_and_nobody_else_sees_it() {
    let scene = Scene::new().await;
    let other = Service::start().await;
    let args =
        ["inbox", "run", "--consumer", "audit", "--handler", &other.url()].map(str::to_owned);
    let mut all_args: Vec<_> = args.iter().map(String::as_str).collect();
    all_args.push("--quiet");
    let _audit = scene.env.spawn(&all_args);
    let id = scene.dead("o-1").await;
    other.wait_calls(1).await;
    let (stored, text) = (scene.env.stored_count().await, id.to_string());
    let (told, _) = scene.dlq(0, &["list"]).await;
    assert!(told.contains(&text) && told.contains("422 Unprocessable Entity"), "{told}");

    // Another set of attempts that ends the same.
    scene.dlq(0, &["requeue", &text]).await;
    until(DEADLINE, "it is called again", async || scene.service.calls_of(id) == 2).await;
    until(DEADLINE, "it is dead again", async || scene.status_of(id).await == "DEAD").await;
    scene.service.answer_to("o-1", 204);
    scene.dlq(0, &["requeue", &text, "--why", "mended"]).await;
    wait_processed(&scene.env, 2).await;
    until(DEADLINE, "the letter is gone", async || scene.dead_count().await == 0).await;

    let calls = scene.service.calls();
    let attempts: Vec<_> = calls.iter().map(|it| it.header("tailpost-attempt")).collect();
    assert_eq!(attempts, ["1", "1", "1"]);
    assert_eq!(calls[0].payload, calls[2].payload);
    assert_eq!(calls[0].header("event-type"), calls[2].header("event-type"));
    assert_eq!(calls[0].header("tailpost-stream-seq"), calls[2].header("tailpost-stream-seq"));
    assert_eq!(scene.env.stored_count().await, stored, "published again");
    assert_eq!(other.calls_of(id), 1, "another consumer saw it again");
    assert_eq!(scene.decisions(id).await, "requeue:,requeue:mended");
    let (_, said) = scene.dlq(3, &["requeue", &text]).await;
    assert!(said.contains("no dead letter"), "{said}");
}

// proves: G-LETTER-2
#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_or_discarded_is_resolved_and_written_down() {
    let scene = Scene::new().await;
    let [rejected, discarded] = [scene.dead("o-1").await, scene.dead("o-2").await];
    let (rejects, discards) = (rejected.to_string(), discarded.to_string());
    let (_, said) = scene.dlq(4, &["reject", &rejects, "--why", "ticket 17"]).await;
    assert!(said.contains("would be done") && said.contains("--yes"), "{said}");
    let plan = ["discard", "--all-matching", "--dry-run", "--why", "x", "--json"];
    let (told, _) = scene.dlq(0, &plan).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!((&told["dry_run"], &told["total"]), (&true.into(), &2.into()), "{told}");
    assert_eq!(told["dead_letters"].as_array().map(Vec::len), Some(2));
    assert_eq!(scene.dead_count().await, 2, "looking has done something");
    scene.dlq(2, &["reject", &rejects, "--yes"]).await; // without saying why

    scene.dlq(0, &["reject", &rejects, "--yes", WHY[0], WHY[1]]).await;
    let all = ["discard", "--all-matching", "--yes", WHY[0], WHY[1], "--json"];
    let (told, plan) = scene.dlq(0, &all).await;
    assert!(plan.contains("to discard: 1 dead letter") && plan.contains(&discards), "{plan}");
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!((&told["done"], &told["total"]), (&1.into(), &1.into()), "{told}");
    assert_eq!(scene.dead_count().await, 0);
    assert_eq!(scene.status_of(rejected).await, "REJECTED");
    assert_eq!(scene.status_of(discarded).await, "DEAD");
    assert_eq!(scene.decisions(rejected).await, "reject:ticket 17");
    assert_eq!(scene.decisions(discarded).await, "discard:ticket 17");
    scene.dlq(3, &["discard", &rejects, "--yes", WHY[0], WHY[1]]).await;
    let (told, _) = scene.dlq(0, &["list"]).await;
    assert_eq!(told.trim(), "no dead letters");
}

/// `discard --all-matching --reason size --yes` discarded everything and noted "size" as the reason,
/// where the outbox's command filtered by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reason_chooses_dead_letters_and_why_is_kept_as_in_the_outbox() {
    let scene = Scene::new().await;
    scene.service.answer_to("%C3%9C%202", 422);
    let [first, second] = [scene.dead("o-1").await, scene.dead("Ü 2").await];
    let all = ["discard", "--all-matching", "--yes"];
    let (_, said) = scene.dlq(2, &["discard", "--all", "--yes", "--why", "x"]).await;
    assert!(said.contains("--all-matching"), "{said}");
    let (_, said) = scene.dlq(2, &[&all[..], &["--reason", "size"]].concat()).await;
    assert!(said.contains("--why"), "{said}");
    let (_, said) = scene.dlq(2, &["discard", &first.to_string(), "--reason", "x", "--yes"]).await;
    assert!(said.contains("--why"), "{said}");
    assert_eq!(scene.dead_count().await, 2);
    let (_, plan) = scene.dlq(0, &[&all[..], &["--reason", "size"], &WHY].concat()).await;
    assert!(plan.contains("no dead letters") && plan.contains("reason contains"), "{plan}");
    assert_eq!(scene.dead_count().await, 2, "the reason did not filter");
    let (told, _) = scene.dlq(0, &["list", "--reason", "UNPROCESSABLE", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!((&told["total"], &told["groups"][0]["count"]), (&2.into(), &2.into()), "{told}");
    assert_eq!(told["dead_letters"][0]["aggregate_id"], "Ü 2", "as it was before it travelled");
    let one = ["--aggregate", "order:Ü 2", "--type", "OrderPlaced", "--since", "1h", "--rate", "9"];
    scene.dlq(0, &[&all[..], &one, &["--by", "ada"], &WHY].concat()).await;
    assert_eq!(scene.decisions(second).await, "discard:ticket 17");
    assert_eq!(scene.decisions(first).await, "");
    assert_eq!(scene.dead_count().await, 1);
}

/// Payloads are shown to whoever asks for them, and to nobody else.
// proves: G-SECRET-1
#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_shown_only_when_asked_for() {
    let scene = Scene::new().await;
    let id = scene.dead("o-1").await.to_string();
    for args in [&["list"][..], &["list", "--json"], &["show", &id], &["show", &id, "--json"]] {
        let (told, said) = scene.dlq(0, args).await;
        assert!(told.contains(&id) && !told.contains("hunter2"), "{args:?}: {told}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let (told, _) = scene.dlq(0, &["show", &id]).await;
    assert!(!told.contains("Event-Type: OrderPlaced"), "headers are about people too: {told}");
    let (told, _) = scene.dlq(0, &["show", &id, "--payload"]).await;
    assert!(told.contains("hunter2") && told.contains("Event-Type: OrderPlaced"), "{told}");
    let (told, _) = scene.dlq(0, &["export"]).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!(told["payload"]["secret"], "hunter2");
    assert_eq!(told["headers"]["Event-Type"][0], "OrderPlaced");

    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("letters.jsonl");
    let file = file.to_str().expect("UTF-8");
    scene.dlq(0, &["export", "--output", file]).await;
    assert!(std::fs::read_to_string(file).expect("an export").contains("hunter2"));
    let mode = std::fs::metadata(file).expect("an export").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others may read it");
    let (_, said) = scene.dlq(4, &["export", "--output", file]).await;
    assert!(said.contains("exists"), "{said}");
    scene.dlq(3, &["show", &Uuid::nil().to_string()]).await;
}

/// What was mended by hand does not happen a second time.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_marked_as_processed_is_not_handled_any_more() {
    let scene = Scene::new().await;
    let mark = async |code: i32, id: Uuid, more: &[&str]| {
        let id = id.to_string();
        let args = ["inbox", "mark-processed", "--consumer", "billing", "--event-id", &id];
        let args: Vec<_> = args.iter().chain(&WHY).chain(more).copied().collect();
        scene.env.ends_with(code, &args).await
    };
    let dead = scene.dead("o-1").await;
    let (told, _) = mark(0, dead, &[]).await;
    assert!(told.contains("marked as processed"), "{told}");
    assert_eq!(scene.dead_count().await, 0);
    let (told, _) = mark(0, dead, &["--json"]).await;
    assert!(told.contains("\"result\":\"already_processed\""), "{told}");
    assert_eq!(scene.decisions(dead).await, "mark_processed:ticket 17", "once");

    // It is in no inbox yet, but in the outbox; then it comes.
    let next = Uuid::now_v7();
    let (_, said) = mark(3, next, &[]).await;
    assert!(said.contains("--occurred-at"), "{said}");
    mark(0, next, &["--occurred-at", "2020-01-01T00:00:00Z"]).await;
    let insert = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
                  occurred_at) VALUES";
    scene
        .env
        .execute(&format!(
            "{insert} ('{next}', 'order', 'o-2', 'Placed', '{{}}', '2020-01-01 00:00Z')"
        ))
        .await;
    let last = emit(&scene.env, "o-3", "{}").await;
    until(DEADLINE, "the last event has come", async || scene.service.calls_of(last) == 1).await;
    scene.env.wait_stored(3).await;
    assert_eq!(scene.service.calls_of(next), 0);
    assert_eq!(scene.service.calls_of(dead), 1);
}

/// A dry run says what would be done.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_without_a_record_is_not_requeued_and_a_dry_run_says_so() {
    let scene = Scene::new().await;
    let id = scene.dead("o-1").await;
    scene.env.execute("DELETE FROM inbox_messages").await;
    for more in [&["--dry-run"][..], &[]] {
        let text = id.to_string();
        let args = [&["requeue", &text], more].concat();
        let (told, said) = scene.dlq(4, &args).await;
        assert!(told.contains("skipped, it has no record"), "{told}");
        assert!(said.contains("nothing there is to requeue"), "{said}");
    }
    assert_eq!(scene.decisions(id).await, "");
    scene.dlq(0, &["discard", &id.to_string(), "--yes", WHY[0], WHY[1]]).await;
    assert_eq!(scene.dead_count().await, 0);
}

/// What no attempt can ever handle is not given one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_event_cannot_be_requeued_but_resolved() {
    let scene = Scene::new().await;
    let jetstream = scene.env.nats.jetstream().await.expect("connect to NATS");
    let publish = jetstream.publish("outbox.order.Odd", "hunter2".into()).await.expect("sent");
    publish.await.expect("stored");
    until(DEADLINE, "it is a dead letter", async || scene.dead_count().await == 1).await;
    let id: Uuid = scene.env.query("SELECT message_id FROM inbox_dead_letter").await;
    let (told, said) = scene.dlq(4, &["requeue", &id.to_string()]).await;
    assert!(
        told.contains("skipped") && said.contains("nothing there is to requeue"),
        "{told}{said}"
    );
    scene.dlq(4, &["requeue", "--all-matching", "--yes"]).await;
    assert_eq!(scene.status_of(id).await, "DEAD");
    let (told, _) = scene.dlq(0, &["export"]).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!(told["payload_base64"], "aHVudGVyMg==");
    scene.dlq(0, &["discard", &id.to_string(), "--yes", WHY[0], WHY[1]]).await;
    assert_eq!(scene.dead_count().await, 0);
    assert!(scene.service.calls().is_empty());
}
