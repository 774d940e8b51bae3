//! Dead letters over HTTP: what the commands do.

use std::net::SocketAddr;

use lab::Port;
use serde_json::{Value, json};
use support::{DEADLINE, Relay, TestEnv, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::http::{set_up, wait_processed};
use super::service::{Service, emit};

const TOKEN: &str = "sesame";
const PATH: &str = "/api/v1/inbox/dead-letter";

/// Servers, a relay, a consumer, and its address for operators.
struct Scene {
    env: TestEnv,
    service: Service,
    api: SocketAddr,
    _port: Port,
    _relay: Relay,
    _inbox: Relay,
}

impl Scene {
    async fn new() -> Self {
        let mut env = set_up().await;
        let port = Port::reserve().expect("a free port");
        let api = port.addr();
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &api.to_string());
        env.set("TAILPOST_ADMIN__TOKEN", TOKEN);
        let relay = env.relay();
        let service = Service::start().await;
        let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
        inbox.wait_log("serving health").await;
        Self { env, service, api, _port: port, _relay: relay, _inbox: inbox }
    }

    async fn dead(&self, aggregate_id: &str) -> Uuid {
        self.service.answer_to(aggregate_id, 422);
        let id = emit(&self.env, aggregate_id, "{\"secret\": \"hunter2\"}").await;
        let count = format!("SELECT count(*) FROM inbox_dead_letter WHERE message_id = '{id}'");
        let what = format!("{id} is a dead letter");
        until(DEADLINE, &what, async || self.env.query::<i64>(&count).await == 1).await;
        id
    }

    /// Asks with the token; returns the status and the body.
    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
        let authorization = format!("Authorization: Bearer {TOKEN}\r\n");
        self.ask_with(&authorization, method, path, body).await
    }

    async fn ask_with(
        &self,
        headers: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, String) {
        let kind = if body.is_some() { "Content-Type: application/json\r\n" } else { "" };
        let body = body.map_or_else(String::new, |it| it.to_string());
        let request = format!(
            "{method} {PATH}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}{kind}\
             Content-Length: {}\r\n\r\n{body}",
            self.api,
            body.len()
        );
        let mut stream = TcpStream::connect(self.api).await.expect("connect to the api");
        stream.write_all(request.as_bytes()).await.expect("ask");
        let mut told = String::new();
        stream.read_to_string(&mut told).await.expect("an answer");
        let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, body.to_owned())
    }
}

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_seen_and_decided_about_over_http() {
    let scene = Scene::new().await;
    let [first, second] = [scene.dead("o-1").await, scene.dead("o-2").await];
    let (status, body) = scene.ask("GET", "", None).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(parsed(&body)["dead_letters"].as_array().map(Vec::len), Some(2), "{body}");
    let (_, body) = scene.ask("GET", "?consumer=nobody", None).await;
    assert_eq!(parsed(&body)["dead_letters"], json!([]));
    let (_, body) =
        scene.ask("GET", "?aggregate=order:o-1&type=OrderPlaced&reason=422", None).await;
    assert_eq!(parsed(&body)["dead_letters"][0]["id"], first.to_string(), "{body}");
    assert_eq!(parsed(&body)["total"], 1, "{body}");
    let (_, body) = scene.ask("GET", "?limit=1", None).await;
    assert_eq!(parsed(&body)["dead_letters"][0]["id"], second.to_string(), "the latest");

    let (_, body) = scene.ask("GET", &format!("/{first}"), None).await;
    assert_eq!(parsed(&body)["dead_letter"]["cause"], "dead", "{body}");
    let failed = &parsed(&body)["failed_attempts"][0];
    assert_eq!((&failed["attempt"], &failed["code"]), (&json!(1), &json!(422)), "{body}");
    assert!(!body.contains("hunter2"), "payloads are shown only when asked for: {body}");
    assert!(parsed(&body)["headers"].is_null(), "headers are about people too: {body}");
    let (_, body) = scene.ask("GET", &format!("/{first}?payload=true"), None).await;
    assert_eq!(parsed(&body)["payload"]["secret"], "hunter2");
    let read = "SELECT string_agg(decision || ' by ' || decided_by, ',') FROM inbox_decisions";
    assert_eq!(scene.env.query::<String>(read).await, "read by postgres (unnamed)");

    scene.service.answer_to("o-1", 204);
    let why = json!({ "by": "ada", "why": "mended" });
    let (status, body) = scene.ask("POST", &format!("/{first}/requeue"), Some(why.clone())).await;
    assert_eq!((status, body.as_str()), (204, ""));
    wait_processed(&scene.env, 1).await;
    assert_eq!(scene.service.calls_of(first), 2);
    let (status, _) = scene.ask("DELETE", &format!("/{second}"), Some(why)).await;
    assert_eq!(status, 204);
    let decided =
        "SELECT string_agg(decision || ':' || decided_by || ':' || reason, ',' ORDER BY id)
        FROM inbox_decisions";
    assert_eq!(
        scene.env.query::<String>(decided).await,
        "requeue:postgres (ada):mended,discard:postgres (ada):mended"
    );
    until(DEADLINE, "no letter is left", async || {
        scene.env.query::<i64>("SELECT count(*) FROM inbox_dead_letter").await == 0
    })
    .await;
    for (method, path) in [("GET", ""), ("POST", "/requeue"), ("DELETE", "")] {
        let body = (method != "GET").then(|| json!({ "why": "again" }));
        let (status, body) = scene.ask(method, &format!("/{second}{path}"), body).await;
        assert_eq!(status, 404, "{method}: {body}");
        assert!(body.contains("no dead letter of event"), "{body}");
    }
}

/// Two people at one letter: the second learns what the first did, also if it died again meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_of_two_people_is_told_what_the_first_decided() {
    let scene = Scene::new().await;
    let id = scene.dead("o-1").await;
    let shown = async || parsed(&scene.ask("GET", &format!("/{id}"), None).await.1);
    let tag = shown().await["etag"].as_str().expect("a tag").to_owned();
    let decide = async |tag: &str, method: &str, path: &str, by: &str| {
        let headers = format!("Authorization: Bearer {TOKEN}\r\nIf-Match: {tag}\r\n");
        let body = json!({ "by": by, "why": "tests" });
        scene.ask_with(&headers, method, &format!("/{id}{path}"), Some(body)).await
    };
    assert_eq!(decide(&tag, "POST", "/requeue", "ada").await.0, 204);
    until(DEADLINE, "it died again", async || shown().await["state"] == "dead").await;
    for (method, path) in [("POST", "/requeue"), ("POST", "/reject"), ("DELETE", "")] {
        let (code, told) = decide(&tag, method, path, "bob").await;
        assert_eq!(code, 412, "{told}");
        assert!(
            told.contains("requeue by postgres (ada)") && told.contains("it is dead now"),
            "{told}"
        );
    }
    let tag = shown().await["etag"].as_str().expect("a tag").to_owned();
    assert_eq!(decide(&tag, "DELETE", "", "bob").await.0, 204);
    let (code, told) = decide(&tag, "POST", "/requeue", "ada").await;
    assert_eq!(code, 412, "{told}");
    assert!(
        told.contains("discard by postgres (bob)") && told.contains("it is gone now"),
        "{told}"
    );
    assert_eq!(decide("\"another\"", "POST", "/reject", "ada").await.0, 412);
}

/// The oldest first, no faster than asked for, and listed with who wanted it.
#[tokio::test(flavor = "multi_thread")]
async fn many_are_worked_on_after_the_request_and_listed_with_their_progress() {
    let scene = Scene::new().await;
    let mut ids = Vec::new();
    for number in 0..6 {
        ids.push(scene.dead(&format!("o-{number}")).await);
        scene.service.answer_to(&format!("o-{number}"), 204);
    }
    let request = json!({
        "action": "requeue", "filter": { "reason": "422" }, "consumer": "billing", "first": 4,
        "rate": 4, "by": "ada", "why": "mended", "dry_run": true,
    });
    let (status, body) = scene.ask("POST", "/operations", Some(request.clone())).await;
    assert_eq!((status, &parsed(&body)["total"]), (200, &json!(6)), "{body}");
    let mut wanted = request;
    wanted["dry_run"] = json!(false);
    let (status, body) = scene.ask("POST", "/operations", Some(wanted.clone())).await;
    assert_eq!((status, &parsed(&body)["operation"]), (202, &json!(1)), "{body}");
    wait_processed(&scene.env, 4).await;
    let listed = async || parsed(&scene.ask("GET", "/operations", None).await.1);
    until(DEADLINE, "it has ended", async || {
        listed().await["operations"][0]["progress"]["ended"] == true
    })
    .await;
    let listed = listed().await;
    let (request, progress) =
        (&listed["operations"][0]["request"], &listed["operations"][0]["progress"]);
    assert_eq!((&progress["total"], &progress["done"]), (&json!(4), &json!(4)), "{listed}");
    assert_eq!((&request["by"], &request["why"]), (&json!("ada"), &json!("mended")), "{listed}");
    for (place, id) in ids.into_iter().enumerate() {
        let calls = if place < 4 { 2 } else { 1 };
        assert_eq!(scene.service.calls_of(id), calls, "the oldest alone: {place}");
    }
    for (field, value) in [("rate", json!(0)), ("first", json!(0)), ("why", Value::Null)] {
        let mut wrong = wanted.clone();
        wrong["action"] = json!("discard");
        wrong[field] = value;
        let (status, body) = scene.ask("POST", "/operations", Some(wrong)).await;
        assert!(matches!(status, 400 | 422), "{field}: {status} {body}");
    }
}

/// Who may not, does not.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_decided_over_http_without_token_body_and_reason() {
    let scene = Scene::new().await;
    let id = scene.dead("o-1").await;
    let (requeue, discard) = (format!("/{id}/requeue"), format!("/{id}"));
    let why = || Some(json!({ "why": "mended" }));
    for headers in ["", "Authorization: Bearer guessed\r\n"] {
        for (method, path, body) in
            [("GET", "", None), ("POST", &*requeue, why()), ("DELETE", &*discard, why())]
        {
            let (status, _) = scene.ask_with(headers, method, path, body).await;
            assert_eq!(status, 401, "{method} {headers}");
        }
    }
    // What a page of another origin can send: no JSON.
    assert_eq!(scene.ask("POST", &requeue, None).await.0, 415);
    assert_eq!(scene.ask("DELETE", &discard, None).await.0, 415);
    let (status, body) = scene.ask("DELETE", &discard, Some(json!({ "by": "ada" }))).await;
    assert_eq!(status, 400, "{body}");
    let typo = Some(json!({ "reasn": "mended" }));
    assert_eq!(scene.ask("POST", &requeue, typo).await.0, 422);
    let decisions: i64 = scene.env.query("SELECT count(*) FROM inbox_decisions").await;
    assert_eq!(decisions, 0, "something was decided");
}

/// A request does not wait for ever for who has the table locked; who asks is told why.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_holds_no_request_for_long() {
    let scene = Scene::new().await;
    let client = scene.env.client().await;
    client.batch_execute("BEGIN; LOCK TABLE inbox_dead_letter").await.expect("lock the table");
    let (code, body) = scene.ask("GET", "", None).await;
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("the database took longer than 3s"), "{body}");
    let path = format!("/{}/requeue", Uuid::nil());
    let (code, body) = scene.ask("POST", &path, Some(json!({}))).await;
    assert_eq!(code, 503, "{body}");
    let held = "SELECT count(*) FROM pg_stat_activity
                WHERE application_name = 'tailpost inbox api' AND wait_event_type = 'Lock'";
    assert_eq!(scene.env.query::<i64>(held).await, 0, "the server has ended it as well");
    client.batch_execute("COMMIT").await.expect("unlock the table");
    assert_eq!(scene.ask("GET", "", None).await.0, 200);
}
