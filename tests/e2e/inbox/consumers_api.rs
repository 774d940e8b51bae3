//! Consumers over HTTP: paused, resumed, and taken for mended.

use std::net::SocketAddr;

use lab::Port;
use serde_json::{Value, json};
use support::{DEADLINE, Relay, TestEnv, ask, get, until};
use tokio::net::TcpStream;

use super::http::{set_up, wait_processed};
use super::service::{Service, emit};

struct Scene {
    env: TestEnv,
    service: Service,
    api: SocketAddr,
    _port: Port,
    _relay: Relay,
}

impl Scene {
    async fn new() -> Self {
        let mut env = set_up().await;
        let port = Port::reserve().expect("a free port");
        let api = port.addr();
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &api.to_string());
        let relay = env.relay();
        let service = Service::start().await;
        Self { env, service, api, _port: port, _relay: relay }
    }

    async fn inbox(&self) -> Relay {
        let inbox = self.env.spawn(&self.service.args().each_ref().map(String::as_str));
        inbox.wait_log("the consumer is ours").await;
        until(DEADLINE, "it listens", async || get(self.api, "/livez").await.is_some()).await;
        inbox
    }

    async fn ask(&self, method: &str, path: &str) -> (u16, Value) {
        let body = json!({ "by": "ada", "why": "tests" });
        self.ask_with(method, &format!("/consumers{path}"), &body).await
    }

    async fn ask_with(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let stream = TcpStream::connect(self.api).await.expect("connect");
        let headers = format!("Host: {}\r\nContent-Type: application/json", self.api);
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let path = format!("/api/v1{path}");
        let told = ask(stream, method, &path, &headers, &body).await.expect("an answer");
        let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
        let code = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        (code, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Waits until the worker here is so.
    async fn wait_status(&self, field: &str, value: Value) {
        let what = format!("{field} is {value}");
        until(DEADLINE, &what, async || {
            self.ask("GET", "/billing").await.1.pointer(field) == Some(&value)
        })
        .await;
    }
}

/// What is wanted is in the database: it holds for the next worker too.
// proves: G-CONTROL-1
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_consumer_begins_nothing_also_after_a_restart_until_it_is_resumed() {
    let scene = Scene::new().await;
    let first = scene.inbox().await;
    emit(&scene.env, "o-1", "{}").await;
    wait_processed(&scene.env, 1).await;
    assert_eq!(scene.ask("POST", "/nobody/pause").await.0, 404);
    let (code, told) = scene.ask("POST", "/billing/pause").await;
    assert_eq!((code, told["pause"]["by"].as_str()), (200, Some("ada")), "{told}");
    scene.wait_status("/status/state", "paused".into()).await;
    let ready = get(scene.api, "/readyz").await.expect("an answer");
    assert!(ready.starts_with("HTTP/1.1 200 "), "a pause is no reason to replace it: {ready}");
    for n in 0..10 {
        emit(&scene.env, &format!("o-{n}"), "{}").await;
    }
    scene.env.wait_marked().await;
    first.kill9().await;
    let second = scene.inbox().await;
    scene.wait_status("/status/state", "paused".into()).await;
    assert_eq!(scene.service.calls().len(), 1, "something was begun");

    let (code, told) = scene.ask("POST", "/billing/pause").await;
    assert_eq!((code, told["pause"]["by"].as_str()), (200, Some("ada")), "twice is once: {told}");
    let (code, told) = scene.ask("POST", "/billing/resume").await;
    assert_eq!((code, &told["pause"]), (200, &Value::Null), "{told}");
    wait_processed(&scene.env, 11).await;
    assert_eq!(scene.service.calls().len(), 11);
    let (_, told) = scene.ask("GET", "/billing").await;
    let entry = |n: usize| {
        let entry = &told["history"][n];
        (entry["action"].as_str(), entry["why"].as_str(), entry["via"].as_str())
    };
    assert_eq!(entry(0), (Some("resume"), Some("tests"), Some("http")), "{told}");
    assert_eq!(entry(1), (Some("pause"), Some("tests"), Some("http")), "{told}");
    assert_eq!(told["history"].as_array().map(Vec::len), Some(2), "{told}");
    second.sigterm();
    assert!(second.wait_exit(DEADLINE).await.success());
}

/// What was made of a backup of the other server has its system identifier.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_of_a_copied_server_has_another_name() {
    let (one, copy) = (Scene::new().await, Scene::new().await);
    let identity = "SELECT system_identifier::text FROM pg_control_system()";
    let identities = [&one, &copy].map(|it| it.env.query::<String>(identity));
    let [of_one, of_copy] = identities;
    assert_eq!(of_one.await, of_copy.await, "the servers of tests are copies");
    let _inboxes = [one.inbox().await, copy.inbox().await];
    let database = async |it: &Scene| it.ask("GET", "").await.1["database"].clone();
    let (first, again, other) = (database(&one).await, database(&one).await, database(&copy).await);
    assert!(first.is_string() && first == again && first != other, "{first} {again} {other}");
}

/// The next attempt would be minutes away.
// proves: G-CONTROL-1
#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_is_closed_lets_events_through_at_once() {
    let mut scene = Scene::new().await;
    scene.env.set("TAILPOST_INBOX__BACKOFF", "24h");
    let _inbox = scene.inbox().await;
    scene.service.answer(503);
    for n in 0..4 {
        emit(&scene.env, &format!("o-{n}"), "{}").await;
    }
    scene.wait_status("/status/handler/breaker", "open".into()).await;
    let calls = scene.service.calls().len();
    scene.service.answer(204);
    let (code, told) = scene.ask("POST", "/billing/breaker/close").await;
    assert_eq!(code, 200, "{told}");
    wait_processed(&scene.env, 4).await;
    assert!(scene.service.calls().len() >= calls + 4);
    scene.wait_status("/status/handler/breaker", "closed".into()).await;
    let (code, all) = scene.ask("GET", "").await;
    assert_eq!((code, &all["consumers"][0]["name"]), (200, &json!("billing")), "{all}");
}

/// The plan first, then for a reason, and with who wanted it.
// proves: G-REWIND-1
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_rewound_over_http_for_a_reason() {
    let scene = Scene::new().await;
    let _inbox = scene.inbox().await;
    let id = emit(&scene.env, "o-1", "{}").await;
    wait_processed(&scene.env, 1).await;
    let rewind = async |name: &str, body: Value| {
        scene.ask_with("POST", &format!("/consumers/{name}/rewinds"), &body).await
    };
    let (code, plan) =
        rewind("billing", json!({ "to_sequence": 1, "again": true, "dry_run": true })).await;
    assert_eq!((code, &plan["processed"], &plan["handled"]), (200, &json!(1), &json!(1)), "{plan}");
    assert_eq!(plan["counted_to_sequence"], plan["delivered_sequence"], "{plan}");
    for (name, body, refused) in [
        ("nobody", json!({ "to_sequence": 1 }), 404),
        ("billing", json!({}), 400),
        ("billing", json!({ "to_sequence": 1, "since": "2026-11-27T00:00:00Z" }), 400),
        ("billing", json!({ "to_sequence": 1, "again": true }), 400),
        ("billing", json!({ "to_sequence": 1, "event_type": "Placed" }), 400),
        ("billing", json!({ "to_sequence": 1000 }), 409),
    ] {
        let (code, told) = rewind(name, body.clone()).await;
        assert_eq!(code, refused, "{name} {body}: {told}");
    }
    assert_eq!(scene.service.calls_of(id), 1, "nothing was done");
    let again = json!({ "to_sequence": 1, "again": true, "by": "ada", "why": "a lost effect" });
    let (code, begun) = rewind("billing", again).await;
    assert_eq!((code, &begun["from_sequence"]), (202, &json!(1)), "{begun}");
    let listed = async || scene.ask_with("GET", "/rewinds", &Value::Null).await.1;
    until(DEADLINE, "it is rewound", async || listed().await["rewinds"][0]["outcome"] == "rewound")
        .await;
    wait_processed(&scene.env, 1).await;
    assert_eq!(scene.service.calls_of(id), 2);
    let it = &listed().await["rewinds"][0];
    assert_eq!((&it["removed"], &it["why"]), (&json!(1), &json!("a lost effect")), "{it}");
    assert!(it["requested_by"].as_str().is_some_and(|it| it.ends_with("(ada)")), "{it}");

    let pending = "INSERT INTO inbox_rewinds (consumer, stream, from_seq, until_seq, again,
        requested_by, removed_to) VALUES ('other', 'OUTBOX', 1, 1, false, 'bob', 0)";
    scene.env.execute(pending).await;
    assert_eq!(scene.ask("DELETE", "/other/rewinds").await.0, 204);
    assert_eq!(scene.ask("DELETE", "/other/rewinds").await.0, 404);
    let (_, audit) = scene.ask_with("GET", "/audit", &Value::Null).await;
    let done = |at: usize| (&audit["entries"][at]["action"], &audit["entries"][at]["why"]);
    assert_eq!(done(0), (&json!("cancel_rewind"), &json!("tests")), "{audit}");
}

/// The effect of a dead letter was made by hand.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_marked_as_processed_over_http_for_a_reason() {
    let scene = Scene::new().await;
    let _inbox = scene.inbox().await;
    scene.service.answer_to("o-1", 422);
    let id = emit(&scene.env, "o-1", "{}").await;
    let dead = async || {
        let sql = "SELECT count(*) FROM inbox_dead_letter";
        scene.env.query::<i64>(sql).await
    };
    until(DEADLINE, "it is a dead letter", async || dead().await == 1).await;
    let mark = async |name: &str, body: Value| {
        let path = format!("/consumers/{name}/events/{id}/mark-processed");
        scene.ask_with("POST", &path, &body).await
    };
    let (code, told) = mark("billing", json!({ "dry_run": true })).await;
    assert_eq!((code, &told["before"]["record"]["status"]), (200, &json!("DEAD")), "{told}");
    assert_eq!(mark("billing", json!({})).await.0, 400);
    assert_eq!(mark("nobody", json!({ "why": "by hand" })).await.0, 404);
    assert_eq!(dead().await, 1);
    let (code, told) = mark("billing", json!({ "by": "ada", "why": "by hand" })).await;
    assert_eq!((code, &told["result"]), (200, &json!("marked")), "{told}");
    assert_eq!(dead().await, 0);
    let decided = "SELECT decision || ' ' || decided_by || ' ' || reason FROM inbox_decisions";
    let decided = scene.env.query::<String>(decided).await;
    assert_eq!(decided, "mark_processed postgres (ada) by hand");
    let (code, told) = mark("billing", json!({ "why": "again" })).await;
    assert_eq!((code, &told["result"]), (200, &json!("already_processed")), "{told}");
}

/// The next attempt would be a day away.
#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_goes_on_at_once_when_what_blocks_it_is_marked_or_tried() {
    let mut scene = Scene::new().await;
    scene.env.set("TAILPOST_INBOX__BACKOFF", "24h");
    let _inbox = scene.inbox().await;
    for (aggregate, action) in [("o-1", "mark-processed"), ("o-2", "try-now")] {
        scene.service.answer_to(aggregate, 500);
        let blocks = emit(&scene.env, aggregate, "{}").await;
        let behind = emit(&scene.env, aggregate, "{}").await;
        let failed = "SELECT count(*) FROM inbox_messages WHERE status = 'FAILED'";
        let fails = async || scene.env.query::<i64>(failed).await == 1;
        until(DEADLINE, "the first event failed", fails).await;
        scene.service.answer_to(aggregate, 204);
        let path = format!("/consumers/billing/events/{blocks}/{action}");
        let body = json!({ "by": "ada", "why": "mended" });
        let (code, told) = scene.ask_with("POST", &path, &body).await;
        assert!(code < 300, "{action}: {code} {told}");
        until(DEADLINE, "the event behind it is handled", async || {
            scene.service.calls_of(behind) == 1
        })
        .await;
        let attempts = scene.service.calls_of(blocks);
        assert_eq!(attempts, if action == "try-now" { 2 } else { 1 }, "{action}");
    }
    let decided =
        "SELECT string_agg(decision || ' ' || decided_by || ' ' || reason, ', ' ORDER BY id)
        FROM inbox_decisions";
    let told = "mark_processed postgres (ada) mended, try_now postgres (ada) mended";
    assert_eq!(scene.env.query::<String>(decided).await, told);
    let path = format!("/consumers/billing/events/{}/try-now", uuid::Uuid::nil());
    assert_eq!(scene.ask_with("POST", &path, &json!({})).await.0, 409, "nothing fails");
}

/// A service that is gone for good is not called again before somebody says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_gone_retires_its_consumer_until_it_is_resumed() {
    let scene = Scene::new().await;
    scene.service.answer(410);
    let first = scene.inbox().await;
    emit(&scene.env, "o-1", "{}").await;
    scene.wait_status("/pause/why", "retired".into()).await;
    scene.wait_status("/status/paused_by", "tailpost".into()).await;
    scene.service.answer(204);
    first.sigterm();
    assert!(first.wait_exit(DEADLINE).await.success(), "{}", first.log());
    let second = scene.inbox().await;
    scene.wait_status("/status/paused_by", "tailpost".into()).await;
    let before = scene.service.calls().len();
    emit(&scene.env, "o-2", "{}").await;
    scene.env.wait_stored(2).await;
    assert_eq!(scene.service.calls().len(), before, "{}", second.log());
    assert_eq!(scene.ask("POST", "/billing/resume").await.0, 200);
    wait_processed(&scene.env, 2).await;
    let calls = scene.service.calls();
    assert!(calls.iter().all(|it| it.header("tailpost-attempt") == "1"), "no attempt is counted");
    let dead: i64 = scene.env.query("SELECT count(*) FROM inbox_dead_letter").await;
    assert_eq!(dead, 0);
}
