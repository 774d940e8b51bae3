//! Nothing is reported where nothing is wrong, and a canary event gets through.

use axum::Router;
use axum::http::StatusCode;
use lab::NatsCluster;
use serde_json::Value;
use support::{DEADLINE, Relay, TestEnv, until};
use tokio::net::TcpListener;

/// A way to run it.
struct Shape {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    setup: &'static [&'static str],
    has_inbox: bool,
}

const SHAPES: &[Shape] = &[
    Shape { name: "fenced", settings: &[], setup: &["setup"], has_inbox: true },
    Shape {
        name: "keyed",
        settings: &[("TAILPOST_RELAY__MODE", "keyed")],
        setup: &["setup"],
        has_inbox: false,
    },
    Shape {
        name: "polled",
        settings: &[("TAILPOST_RELAY__MODE", "poll")],
        setup: &["setup"],
        has_inbox: false,
    },
    Shape {
        name: "sharded",
        settings: &[
            ("TAILPOST_RELAY__SHARDS", "2"),
            ("TAILPOST_RELAY__SUBJECT", "sharded.{shard}.{aggregate_type}"),
            ("TAILPOST_STREAM__SUBJECTS", "sharded.{shard}.>"),
        ],
        setup: &["setup"],
        has_inbox: false,
    },
    Shape {
        name: "partitioned",
        settings: &[("TAILPOST_RELAY__MARK", "lean")],
        setup: &["setup", "--partitioned"],
        has_inbox: false,
    },
    Shape {
        name: "deleting",
        settings: &[("TAILPOST_RELAY__MARK", "delete")],
        setup: &["setup"],
        has_inbox: false,
    },
];

async fn json(env: &TestEnv<NatsCluster>, args: &[&str]) -> Value {
    let (told, _) = env.ends_with(0, &[&["doctor", "--json"], args].concat()).await;
    serde_json::from_str(&told).expect("JSON")
}

/// A relay that may read and write, and owns nothing.
async fn courier(env: &mut TestEnv<NatsCluster>, database: &str) {
    let client = env.postgres.client(database).await.expect("connect to PostgreSQL");
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO courier";
    client.batch_execute(grant).await.expect("grant");
    let url = env.postgres.url(database).replace("postgres@", "courier@");
    env.set("DATABASE_URL", &url);
}

// proves: G-DOCTOR-3, G-DOCTOR-4
#[tokio::test(flavor = "multi_thread")]
async fn a_sound_set_up_has_nothing_but_ok_and_lets_a_canary_through() {
    let mut env = TestEnv::replicated().await;
    env.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '20GB'").await;
    env.execute("SELECT pg_reload_conf()").await;
    env.execute("CREATE ROLE courier LOGIN REPLICATION").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tailpost.toml");
    for Shape { name, settings, setup, has_inbox } in SHAPES {
        env.postgres.create_database(name).await.expect("create a database");
        for (variable, value) in [
            ("DATABASE_URL", env.postgres.url(name)),
            ("TAILPOST_POSTGRES__SLOT", (*name).to_owned()),
            ("TAILPOST_POSTGRES__PUBLICATION", (*name).to_owned()),
            ("TAILPOST_STREAM__NAME", name.to_uppercase()),
            ("TAILPOST_STREAM__SUBJECTS", format!("{name}.>")),
            ("TAILPOST_RELAY__SUBJECT", format!("{name}.{{aggregate_type}}.{{event_type}}")),
        ] {
            env.set(variable, &value);
        }
        settings.iter().for_each(|(variable, value)| env.set(variable, value));
        let inbox =
            if *has_inbox { "[inbox.billing]\nhandler = \"http://127.0.0.1:9/\"\n" } else { "" };
        std::fs::write(&file, inbox).expect("write the configuration");
        env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
        json(&env, &["--pre"]).await;
        env.ends_with(0, setup).await;
        courier(&mut env, name).await;
        if *name == "partitioned" {
            let owned = "GRANT postgres TO courier";
            owns_nothing(&env, owned).await;
            let client = env.postgres.client(name).await.expect("connect to PostgreSQL");
            let create = "GRANT CREATE ON SCHEMA public TO courier";
            client.batch_execute(&format!("{owned}; {create}")).await.expect("grant");
        }
        let mut running = vec![env.relay()];
        if *has_inbox {
            running.push(env.spawn(&["inbox", "run", "--consumer", "billing"]));
        }
        nothing_but_ok(&env, name).await;
        if !has_inbox {
            let told = json(&env, &["--only", "relay", "--probe"]).await;
            let legs = told["probe"].as_array().expect("legs");
            assert_eq!(legs.len(), if *name == "sharded" { 2 } else { 1 }, "{told:#}");
            for leg in legs {
                let at =
                    |name: &str| leg[name].as_f64().unwrap_or_else(|| panic!("{name}: {leg:#}"));
                assert!(at("committed") <= at("stored") && at("stored") <= at("marked"), "{leg:#}");
                assert!(leg["seq"].as_u64() > Some(0), "{leg:#}");
            }
        }
        for process in running {
            process.sigterm();
            assert!(process.wait_exit(DEADLINE).await.success(), "{}", process.log());
        }
        settings.iter().for_each(|(variable, _)| env.set(variable, ""));
        one_server_keeps_it(&env, name).await;
    }
}

/// Who owns nothing makes no partitions.
async fn owns_nothing(env: &TestEnv<NatsCluster>, remedy: &str) {
    let told = json(env, &["--only", "outbox-partitions"]).await;
    let found = &told["checks"][0];
    assert_eq!(found["severity"], "warning", "{found:#}");
    assert_eq!(
        found["remedies"][0]["text"],
        remedy.replace("postgres", "\"postgres\"").replace("courier", "\"courier\"")
    );
}

async fn nothing_but_ok(env: &TestEnv<NatsCluster>, name: &str) {
    until(DEADLINE, "relay and worker are at work", async || {
        let told = json(env, &["--only", "relay,inbox-running"]).await;
        told["summary"]["warning"] == 0
    })
    .await;
    let told = json(env, &[]).await;
    let checks = told["checks"].as_array().expect("checks");
    let reported: Vec<_> = checks.iter().filter(|it| it["severity"] != "ok").collect();
    assert!(reported.is_empty(), "{name}: {reported:#?}");
    assert!(checks.len() > 30, "{name}: {checks:#?}");
}

/// The one thing that needs a cluster to be mended.
async fn one_server_keeps_it(env: &TestEnv<NatsCluster>, name: &str) {
    if name != "fenced" {
        return;
    }
    let jetstream = support::Broker::jetstream(&env.nats).await;
    for (replicas, severity) in [(1, "warning"), (3, "ok")] {
        let stream = jetstream.get_stream("FENCED").await.expect("look up the stream");
        let mut config = stream.cached_info().config.clone();
        config.num_replicas = replicas;
        jetstream.update_stream(config).await.expect("change the stream");
        let told = json(env, &["--only", "stream-replicas"]).await;
        let found = &told["checks"][0];
        assert_eq!(found["severity"], severity, "{found:#}");
        if replicas == 1 {
            let text = &found["remedies"][0]["text"];
            assert_eq!(text, "nats stream edit FENCED --replicas 3", "{found:#}");
        }
    }
}

/// Who would get it is asked before it is sent, and is waited for.
// proves: G-DOCTOR-4
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_goes_to_consumers_only_when_told_to() {
    let mut env = TestEnv::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let service = Router::new().fallback(async || StatusCode::NO_CONTENT);
    let service = tokio::spawn(async move { axum::serve(listener, service).await });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tailpost.toml");
    let config = format!("[inbox.billing]\nhandler = \"http://{address}/events\"\n");
    std::fs::write(&file, config).expect("write the configuration");
    env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
    env.setup().await;

    let probe = ["doctor", "--json", "--only", "stream-exists", "--probe", "--timeout"];
    let (_, log) = env.ends_with(4, &[&probe[..], &["1s"]].concat()).await;
    assert!(log.contains("consumers would get a canary event") && log.contains("billing"), "{log}");
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 0);

    // Nobody publishes it.
    let (told, _) = env.ends_with(1, &[&probe[..], &["1s", "--yes"]].concat()).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let stopped = told["probe"][0]["stopped"].as_str().expect("a reason");
    assert!(stopped.starts_with("no relay published it within 1s"), "{told:#}");

    let _relay: Relay = env.relay();
    let worker = env.spawn(&["inbox", "run", "--consumer", "billing"]);
    let (told, _) = env.ends_with(0, &[&probe[..], &["60s", "--yes"]].concat()).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let [leg, effect] = [&told["probe"][0], &told["probe"][0]["consumers"][0]];
    assert_eq!(effect["consumer"], "billing", "{told:#}");
    assert!(effect["processed"].as_f64() >= leg["stored"].as_f64(), "{told:#}");
    // Both are there, as those of any event.
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 2);
    drop(worker);
    service.abort();
}
