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
        let stream = TcpStream::connect(self.api).await.expect("connect");
        let headers = format!("Host: {}\r\nContent-Type: application/json", self.api);
        let body = json!({ "by": "ada", "why": "tests" }).to_string();
        let body = if method == "GET" { "" } else { &body };
        let path = format!("/api/v1/consumers{path}");
        let told = ask(stream, method, &path, &headers, body).await.expect("an answer");
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

/// The next attempt would be minutes away.
// proves: G-CONTROL-1
#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_is_closed_lets_events_through_at_once() {
    let mut scene = Scene::new().await;
    scene.env.set("TAILPOST_INBOX__BACKOFF", "30m,60m");
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
