//! What the NATS user may not ask is named, and not waited for.

use std::net::SocketAddr;

use async_nats::jetstream::consumer::pull;
use lab::{NatsOptions, Port};
use serde_json::{Value, json};
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions, ask, until};
use tokio::net::TcpStream;

use super::{replay, wait_done};

const LIST: &str = "$JS.API.CONSUMER.LIST.OUTBOX";
const INFO: &str = "$JS.API.STREAM.INFO.OUTBOX";

/// The relay's user may not publish there.
fn users(denied: &[&str]) -> Vec<String> {
    vec![format!(
        "authorization {{ users: [
           {{ user: admin, password: admin }},
           {{ user: relay, password: relay, permissions: {{ publish: {{ deny: {denied:?} }} }} }}
         ] }}
         no_auth_user: admin"
    )]
}

/// Servers with a consumer; the relay's user may not list the consumers.
async fn env() -> TestEnv {
    let nats = NatsOptions { config: users(&[LIST]), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    let mailer = pull::Config { durable_name: Some("mailer".into()), ..pull::Config::default() };
    env.stream().await.create_consumer(mailer).await.expect("a consumer");
    env.set("NATS_URL", &format!("nats://relay:relay@127.0.0.1:{}", env.nats.port()));
    env
}

/// A relay with an API, which listens there.
async fn relay(env: &mut TestEnv, port: &Port) -> (Relay, SocketAddr) {
    let api = port.addr();
    env.set("TAILPOST_ADMIN__LISTEN", &api.to_string());
    let relay = env.relay();
    until(DEADLINE, "the API listens", async || TcpStream::connect(api).await.is_ok()).await;
    (relay, api)
}

async fn post(api: SocketAddr, start: Value) -> (u16, Value) {
    let stream = TcpStream::connect(api).await.expect("connect");
    let headers = format!("Host: {api}\r\nContent-Type: application/json");
    let told = ask(stream, "POST", "/api/v1/replays", &headers, &start.to_string()).await;
    let told = told.expect("an answer");
    let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
    let code = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
    (code, serde_json::from_str(body).expect("JSON"))
}

/// The plan says that the consumers are unknown, and which permission is missing.
fn assert_names_permission(plan: &Value) {
    assert_eq!(plan["consumers"], Value::Null, "{plan}");
    let warning = plan["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("which consumers stream OUTBOX has is unknown"), "{plan}");
    assert!(warning.contains(&format!("may not publish on {LIST}")), "{plan}");
}

// proves: G-REPLAY-9
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_planned_and_done_by_a_user_that_may_not_list_the_consumers() {
    let mut env = env().await;
    let port = Port::reserve().expect("a free port");
    let (relay, api) = relay(&mut env, &port).await;
    relay.wait_active().await;
    env.insert(10).await;
    env.wait_marked().await;

    let told = replay(&env, 0, &["--all"]).await;
    assert_names_permission(&told["plans"][0]);
    assert_eq!(told["plans"][0]["events"], 10, "{told}");
    let (told, _) = env.ends_with(0, &["replay", "--all"]).await;
    assert!(told.contains(&format!("may not publish on {LIST}")), "{told}");

    let (code, told) = post(api, json!({ "all": true, "dry_run": true })).await;
    assert_eq!(code, 200, "{told}");
    assert_names_permission(&told["plans"][0]);
    let (code, told) = post(api, json!({ "all": true, "why": "a test" })).await;
    assert_eq!(code, 202, "{told}");
    assert_names_permission(&told["plans"][0]);
    let id = told["replays"][0].as_str().expect("an id");
    assert_eq!(wait_done(&env, id).await["published"], 10);
}

// proves: G-REPLAY-9
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_cannot_be_made_without_a_permission_names_it() {
    let mut env = env().await;
    let port = Port::reserve().expect("a free port");
    let (relay, api) = relay(&mut env, &port).await;
    relay.wait_active().await;
    // A session that has begun does not look at the stream's configuration.
    env.nats.reload(users(&[LIST, INFO]), None).await.expect("other permissions");
    let (_, said) = env.ends_with(4, &["replay", "--all"]).await;
    assert!(said.contains(&format!("may not publish on {INFO}")), "{said}");
    let (code, told) = post(api, json!({ "all": true, "dry_run": true })).await;
    assert_eq!(code, 409, "{told}");
    let detail = told["detail"].as_str().expect("a detail");
    assert!(detail.contains(&format!("may not publish on {INFO}")), "{told}");
    assert!(told["hint"].as_str().is_some_and(|it| it.contains(INFO)), "{told}");
}

/// It is no reason to fail: a relay publishes without it.
// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_to_list_consumers_is_a_warning_of_doctor() {
    let env = env().await;
    let args = ["doctor", "--json", "--only", "nats-permissions"];
    let (told, _) = env.ends_with(0, &args).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let found = &told["checks"][0];
    assert_eq!(found["severity"], "warning", "{found:#}");
    assert!(found["evidence"].as_str().is_some_and(|it| it.contains(LIST)), "{found:#}");
    let remedy = found["remedies"][0]["text"].as_str().expect("a remedy");
    assert!(remedy.contains(&format!("\"{LIST}\"")), "{found:#}");
    let (_, said) = env.ends_with(4, &["doctor", "--only", "relay", "--probe"]).await;
    assert!(said.contains(&format!("may not publish on {LIST}")), "{said}");
}
