//! What the commands say and how they end, whatever state the servers are in.

use lab::NatsOptions;
use serde_json::Value;
use support::{TestEnv, TestEnvOptions};

/// DESIGN 11
#[tokio::test(flavor = "multi_thread")]
async fn status_tells_what_it_knows_and_its_code_says_what_is_missing() {
    let mut env = TestEnv::new().await;
    let (told, said) = env.ends_with(3, &["status"]).await;
    assert_eq!(told, "");
    assert!(said.contains("tailpost setup"), "{said}");

    env.setup().await;
    let (told, said) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("tailpost, not active") && told.contains("OUTBOX, 1 replica"), "{told}");
    assert_eq!(said, "", "nothing to say beside the status");

    env.drop_slot("tailpost").await;
    let (told, said) = env.ends_with(3, &["status"]).await;
    assert!(told.contains("OUTBOX, 1 replica"), "{told}");
    assert!(said.contains("replication slot \"tailpost\" does not exist"), "{said}");
    env.setup().await;

    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    let (told, said) = env.ends_with(3, &["status"]).await;
    assert!(told.contains("tailpost, not active"), "{told}");
    assert!(said.contains("stream \"OUTBOX\" does not exist"), "{said}");

    env.nats.kill().await.expect("kill the broker");
    let (told, said) = env.ends_with(5, &["status", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!(told["slot"]["name"], "tailpost");
    assert_eq!(told["stream"], Value::Null);
    assert!(said.contains("error: could not connect to nats://"), "{said}");

    env.set("TAILPOST_NATS__CREDS", "/nowhere");
    let (told, _) = env.ends_with(78, &["status"]).await;
    assert!(told.contains("unpublished  0"), "{told}");
}

/// DESIGN 11
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_and_a_broker_without_jetstream_are_told_what_they_lack() {
    let accounts = "accounts {
        full { jetstream: enabled, users: [{ user: test }] }
        bare { users: [{ user: bare, password: bare }] }
    }";
    let config = vec![accounts.into(), "no_auth_user: test".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env.execute("CREATE ROLE guest LOGIN").await;
    let url = env.postgres.url("postgres");
    env.set("DATABASE_URL", &url.replace("postgres@", "guest@"));
    for args in [&["setup"][..], &["status"], &["relay", "--once"]] {
        let (_, said) = env.ends_with(4, args).await;
        assert!(said.contains("needs REPLICATION"), "{said}");
    }

    env.set("DATABASE_URL", &url);
    env.set("NATS_URL", &env.nats.url().replace("://", "://bare:bare@"));
    for args in [&["setup"][..], &["status"], &["relay", "--once"]] {
        let (_, said) = env.ends_with(5, args).await;
        assert!(said.contains("nats-server --jetstream"), "{said}");
    }
}

// proves: G-SECRET-1
#[tokio::test(flavor = "multi_thread")]
async fn nothing_secret_is_logged_however_much_is_asked_for() {
    let users = "authorization { users: [{ user: relay, password: hunter2 }, { user: test }] }";
    let config = vec![users.into(), "no_auth_user: test".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env.set("NATS_URL", &env.nats.url().replace("://", "://relay:hunter2@"));
    env.set("DATABASE_URL", &env.postgres.url("postgres").replace('@', ":hunter2@"));
    let silent = ["tokio_postgres::query", "async_nats::jetstream::context"];
    let silent = silent.map(|it| format!("{it}=trace")).join(",");
    for filters in ["".into(), format!("trace,{silent}")] {
        env.set("TAILPOST_LOG", &filters);
        // The second relay reads back what the first one stored.
        for _ in 0..2 {
            env.execute("SELECT outbox_emit('order', 'o-1', 'OrderPaid', '{\"iban\": 4200}')")
                .await;
            let (_, log) = env.ends_with(0, &["relay", "--once", "-vv"]).await;
            assert!(log.contains("DEBUG async_nats"), "nothing was asked for:\n{log}");
            // The payload's own bytes, and as the broker's answers encode it.
            for secret in ["hunter2", "iban", "eyJpYmFuIjog"] {
                assert!(!log.contains(secret), "{secret}:\n{log}");
            }
        }
    }
}
