//! The same checks, asked of the processes that run.

use std::net::SocketAddr;

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, get, until};

/// What `/api/v1/doctor` answers, once it is not older than the question.
async fn ask(address: SocketAddr, query: &str) -> Value {
    let asked = jiff::Timestamp::now();
    let mut found = Value::Null;
    until(DEADLINE, "the checks are made anew", async || {
        let Some(told) = get(address, &format!("/api/v1/doctor{query}")).await else {
            return false;
        };
        let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{told}");
        found = serde_json::from_str(body).expect("JSON");
        let checked: jiff::Timestamp =
            found["checked_at"].as_str().and_then(|it| it.parse().ok()).expect("a time");
        checked >= asked
    })
    .await;
    found
}

/// The checks that are not as they should be.
fn reported(found: &Value) -> Vec<&Value> {
    let checks = found["checks"].as_array().expect("checks").iter();
    checks.filter(|it| it["severity"] != "ok").collect()
}

struct Scene {
    env: TestEnv,
    _ports: [Port; 2],
    relay: SocketAddr,
    inbox: SocketAddr,
    _running: [Relay; 2],
    _folder: tempfile::TempDir,
}

/// A relay and an inbox that listen, and nothing to complain of but that there is one broker.
async fn scene() -> Scene {
    let mut env = TestEnv::new().await;
    env.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '20GB'").await;
    env.execute("SELECT pg_reload_conf()").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tailpost.toml");
    let config = "[inbox.billing]\nhandler = \"http://127.0.0.1:9/\"\n";
    std::fs::write(&file, config).expect("write the configuration");
    env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let ports = [(); 2].map(|()| Port::reserve().expect("a free port"));
    let [relay, inbox] = ports.each_ref().map(Port::addr);
    env.set("TAILPOST_ADMIN__LISTEN", &relay.to_string());
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox.to_string());
    let running = [env.relay(), env.spawn(&["inbox", "run"])];
    for address in [relay, inbox] {
        until(DEADLINE, "it is ready", async || {
            get(address, "/readyz").await.is_some_and(|it| it.starts_with("HTTP/1.1 200 "))
        })
        .await;
    }
    Scene { env, _ports: ports, relay, inbox, _running: running, _folder: folder }
}

/// However many ask, the servers see one look.
// proves: G-API-2
#[tokio::test(flavor = "multi_thread")]
async fn the_checks_are_made_once_however_many_ask() {
    let Scene { env, relay, .. } = &scene().await;
    let client = env.client().await;
    // One look at the outbox waits for this lock, for a second.
    client.batch_execute("BEGIN; LOCK TABLE outbox_events").await.expect("lock the table");
    let asked: Vec<_> =
        (0..16).map(|_| tokio::spawn(get_owned(*relay, "/api/v1/doctor"))).collect();
    until(DEADLINE, "somebody looks", async || connections(env).await > 0).await;
    let mut times = Vec::new();
    for told in asked {
        assert!(connections(env).await <= 3);
        let told = told.await.expect("no panic").expect("an answer");
        let (head, body) = told.split_once("\r\n\r\n").expect("a whole answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{told}");
        let found: Value = serde_json::from_str(body).expect("JSON");
        times.push(found["checked_at"].as_str().expect("a time").to_owned());
    }
    times.dedup();
    assert_eq!(times.len(), 1, "{times:?}");
    client.batch_execute("COMMIT").await.expect("unlock the table");
    until(DEADLINE, "its connections end", async || connections(env).await == 0).await;
}

async fn get_owned(address: SocketAddr, path: &'static str) -> Option<String> {
    get(address, path).await
}

async fn connections(env: &TestEnv) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost doctor'";
    env.query(count).await
}

mod long {
    use super::*;

    // proves: G-API-2
    #[tokio::test(flavor = "multi_thread")]
    async fn relay_and_inbox_find_over_http_what_is_wrong_and_nothing_else() {
        let Scene { env, relay, inbox, .. } = &scene().await;
        for (address, at_least) in [(*relay, 30), (*inbox, 5)] {
            let found = ask(address, "?skip=stream-replicas").await;
            let told = reported(&found);
            assert!(told.is_empty(), "{told:#?}");
            let ok = found["summary"]["ok"].as_u64().expect("a number");
            assert!(ok >= at_least && found["summary"]["error"] == 0, "{:#}", found["summary"]);
        }

        env.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = off)").await;
        let found = ask(*relay, "?skip=stream-replicas").await;
        let [told] = *reported(&found) else { panic!("{found:#}") };
        assert_eq!((&told["id"], &told["severity"]), (&"outbox-vacuum".into(), &"warning".into()));
        let remedy = told["remedies"][0]["text"].as_str().expect("a remedy").to_owned();
        eprintln!("{told:#} {:#}", found["summary"]);
        assert_eq!(found["summary"]["warning"], 1, "{found:#}");
        assert_eq!(ask(*relay, "?only=nats").await["summary"]["warning"], 0);
        env.execute(&remedy).await;
        let found = ask(*relay, "?only=outbox").await;
        assert_eq!(reported(&found), Vec::<&Value>::new());

        // Nothing needs it until somebody decides about a dead letter.
        env.execute("ALTER TABLE inbox_decisions RENAME TO away").await;
        let found = ask(*inbox, "").await;
        let [told] = *reported(&found) else { panic!("{found:#}") };
        assert_eq!(told["id"], "inbox-tables", "{found:#}");
        env.execute("ALTER TABLE away RENAME TO inbox_decisions").await;
        assert_eq!(reported(&ask(*inbox, "").await), Vec::<&Value>::new());
    }
}
