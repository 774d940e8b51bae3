//! Waiting for an event, or for all of them: what a test, or a request that wants to read its own
//! write, does.

use std::io::Write;

use lab::{NatsOptions, Port};
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions, get, until};
use uuid::Uuid;

/// Servers, and the admin port of relays to come.
async fn set_up(nats: NatsOptions) -> (TestEnv, Port) {
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    (env, admin)
}

async fn insert(env: &TestEnv, id: Uuid, event_type: &str, filling: usize) {
    env.execute(&format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('{id}', 'order', 'o-1', '{event_type}',
             jsonb_build_object('x', repeat('x', {filling})))"
    ))
    .await;
}

/// What `tailpost wait --json` says of an event.
async fn wait_for(env: &TestEnv, code: i32, id: Uuid, more: &[&str]) -> Value {
    let id = id.to_string();
    let args = [&["wait", &id, "--json"][..], more].concat();
    let (stdout, _) = env.ends_with(code, &args).await;
    let said: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(said["id"], id);
    said
}

/// The event that is waited for is not even committed when the waiting begins, and the mark
/// of its row never comes.
// proves: G-WAIT-1
#[tokio::test(flavor = "multi_thread")]
async fn the_brokers_answer_ends_the_waiting_and_not_the_mark() {
    let (mut env, admin) = set_up(NatsOptions::default()).await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = env.relay();
    relay.wait_active().await;
    let id = Uuid::now_v7();
    let waiting = env.spawn(&["wait", &id.to_string(), "--timeout", "5m"]);
    let looks = "SELECT count(*) > 0 FROM pg_stat_activity
                 WHERE application_name = 'tailpost wait' AND query LIKE '%outbox_status%'";
    until(DEADLINE, "the table is asked", async || env.query::<bool>(looks).await).await;
    insert(&env, id, "OrderPlaced", 1).await;
    assert!(waiting.wait_exit(DEADLINE).await.success(), "{}", waiting.log());
    assert_eq!(waiting.stdout(), "published in OUTBOX as 1\n");
    assert_eq!(env.unmarked().await, 1, "the mark was not waited for");
    drop(relay);
    drop(admin);
}

/// Each state has its exit code and its words, from a relay and from the database.
// proves: G-WAIT-1
#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_an_event_is_told_with_an_exit_code() {
    let small = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let (mut env, admin) = set_up(small).await;
    let mut routes = tempfile::Builder::new().suffix(".toml").tempfile().expect("create a file");
    routes.write_all(b"[[route]]\nevent_type = 'Heartbeat'\ndrop = true\n").expect("write it");
    env.set("TAILPOST_CONFIG", routes.path().to_str().expect("UTF-8"));
    let relay = env.relay();
    relay.wait_active().await;
    let [published, dead, dropped, pending, unknown] = std::array::from_fn(|_| Uuid::now_v7());
    insert(&env, published, "OrderPlaced", 1).await;
    insert(&env, dead, "OrderPlaced", 9_000).await;
    insert(&env, dropped, "Heartbeat", 1).await;
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    // A relay that cannot reach the broker still answers.
    insert(&env, pending, "OrderPlaced", 1).await;
    env.nats.pause().expect("pause NATS");
    let relay = env.relay();
    until(DEADLINE, "the relay answers", async || get(admin.addr(), "/livez").await.is_some())
        .await;
    for direct in [&[][..], &["--direct"]] {
        let short = [direct, &["--timeout", "1s"]].concat();
        let said = wait_for(&env, 0, published, direct).await;
        assert_eq!((&said["state"], &said["stream"]), (&"published".into(), &"OUTBOX".into()));
        assert_eq!(said["seq"], 1);
        let said = wait_for(&env, 4, dead, direct).await;
        assert_eq!(said["state"], "dead");
        assert!(said["reason"].as_str().expect("a reason").contains("max_payload"), "{said}");
        assert_eq!(wait_for(&env, 4, dropped, direct).await["state"], "dropped");
        assert_eq!(wait_for(&env, 6, pending, &short).await["state"], "pending");
        assert_eq!(wait_for(&env, 3, unknown, &short).await["state"], "unknown");
    }
    let (_, log) = env.ends_with(3, &["wait", &unknown.to_string(), "--timeout", "0s"]).await;
    assert!(log.contains("neither the outbox nor its dead letters have it"), "{log}");
    assert!(log.contains("says how far it came"), "{log}");
    let (_, log) = env.ends_with(6, &["wait", "--all", "--timeout", "0s"]).await;
    assert!(log.contains("1 events are not published"), "{log}");
    env.nats.resume().expect("resume NATS");
    assert_eq!(wait_for(&env, 0, pending, &["--timeout", "5m"]).await["state"], "published");
    let (stdout, _) = env.ends_with(0, &["wait", "--all", "--timeout", "5m"]).await;
    assert_eq!(stdout, "everything is published\n");
    drop(relay);
}

/// The API says by its status what became of the event, and does not wait longer than asked.
// proves: G-WAIT-1
#[tokio::test(flavor = "multi_thread")]
async fn the_api_answers_by_its_status() {
    let (env, admin) = set_up(NatsOptions::default()).await;
    let relay = env.relay();
    relay.wait_active().await;
    let ids = env.insert(1).await;
    let ask = async |path: String| get(admin.addr(), &path).await.expect("an answer");
    let told = ask(format!("/api/v1/events/{}/wait", ids[0])).await;
    assert!(told.starts_with("HTTP/1.1 200 ") && told.contains("\"seq\":1"), "{told}");
    let unknown = Uuid::now_v7();
    let told = ask(format!("/api/v1/events/{unknown}/wait?timeout=100ms")).await;
    assert!(told.starts_with("HTTP/1.1 404 ") && told.contains("\"state\":\"unknown\""), "{told}");
    for wrong in ["timeout=soon", "timeout=-1s", "patience=1s", "processed_by=billing"] {
        let told = ask(format!("/api/v1/events/{unknown}/wait?{wrong}")).await;
        assert!(told.starts_with("HTTP/1.1 400 "), "{wrong}: {told}");
        assert!(told.contains("application/problem+json"), "{wrong}: {told}");
    }
    let told = ask("/api/v1/events/o-17/wait".into()).await;
    assert!(told.starts_with("HTTP/1.1 400 "), "{told}");
    drop(relay);
}

/// Nobody who waits gets an answer that is not known.
// proves: G-WAIT-1
#[tokio::test(flavor = "multi_thread")]
async fn without_a_relay_or_its_database_the_waiting_fails() {
    let (env, admin) = set_up(NatsOptions::default()).await;
    let id = Uuid::now_v7().to_string();
    let (_, log) = env.ends_with(5, &["wait", &id]).await;
    assert!(log.contains("could not reach a relay") && log.contains("--direct"), "{log}");
    let relay = env.relay();
    relay.wait_active().await;
    env.postgres.pause().expect("pause PostgreSQL");
    let (stdout, log) = env.ends_with(5, &["wait", &id, "--timeout", "2s"]).await;
    assert!(stdout.is_empty() && log.contains("the database cannot be asked"), "{log}");
    env.postgres.resume().expect("resume PostgreSQL");
    drop(relay);
    drop(admin);
}
