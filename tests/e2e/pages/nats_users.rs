//! The users of NATS that docs/security.md shows.

use lab::{NatsOptions, Port};
use support::{DEADLINE, TestEnv, TestEnvOptions, ask, until};
use tokio::net::TcpStream;

use super::{SECURITY, configured, example};
use crate::inbox::service::Service;

/// The page's users, and one more for the test itself.
fn users() -> Vec<String> {
    let page = example(SECURITY, "text", 0);
    let mut users = page.replace("users = [", "users = [ { user: test }");
    for name in ["operator", "relay", "inbox"] {
        users = users.replace(&format!("${}_PASSWORD", name.to_uppercase()), name);
    }
    assert!(!users.contains('$') || !users.contains("_PASSWORD"), "{users}");
    vec![users, "no_auth_user: test".into()]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_nats_user_of_the_security_page_may_do_what_it_has_to() {
    let nats = NatsOptions { config: users(), ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    let (admin, service) = (Port::reserve().expect("a free port"), Service::start().await);
    let consumer = format!("[inbox.billing]\nhandler = '{}'\n", service.url());
    let _file = configured(&mut env, &format!("{consumer}[metrics]\ninterval = '1s'\n"));
    let url = env.nats.url().replace("://", "://USER:USER@");
    let become_user = |env: &mut TestEnv, user| env.set("NATS_URL", &url.replace("USER", user));

    become_user(&mut env, "operator");
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    become_user(&mut env, "inbox");
    let _inbox = env.spawn(&["inbox", "run", "--consumer", "billing"]);
    become_user(&mut env, "relay");
    env.ends_with(0, &["doctor", "--only", "nats-permissions"]).await;
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = env.relay();
    relay.wait_active().await;
    let id = env.insert(1).await[0];
    until(DEADLINE, "the event is handled", async || service.calls_of(id) == 1).await;
    env.ends_with(0, &["status"]).await;
    let stream = TcpStream::connect(admin.addr()).await.expect("the relay listens");
    let headers = format!("Host: {}\r\nContent-Type: application/json", admin.addr());
    let plan = r#"{"aggregate": "order:o-1", "dry_run": true}"#;
    let planned = ask(stream, "POST", "/api/v1/replays", &headers, plan).await.expect("an answer");
    assert!(planned.starts_with("HTTP/1.1 200"), "{planned}");

    become_user(&mut env, "operator");
    for args in [
        &["status"][..],
        &["wait", "--all", "--processed-by", "billing"],
        &["verify"],
        &["explain", &id.to_string()],
        &["replay", "--event-id", &id.to_string(), "--execute", "--why", "a test"],
    ] {
        env.ends_with(0, args).await;
    }
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("pending      0, 0 delivered"), "{told}");
    assert_eq!(refused(&env), [""; 0]);
}

/// `doctor` asks as the relay's user what only the operator may, and the page says so.
fn refused(env: &TestEnv) -> Vec<String> {
    let log = env.nats.log();
    let refused = log.lines().filter(|it| it.contains("Violation"));
    refused.filter(|it| !it.contains("STREAM.NAMES")).map(str::to_owned).collect()
}

/// The name of each durable consumer of a divided consumer is another one.
#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_user_of_a_divided_consumer_needs_its_durable_consumers() {
    for names in ["billing", "*"] {
        let config =
            users().into_iter().map(|it| it.replace("OUTBOX.billing", &format!("OUTBOX.{names}")));
        let nats = NatsOptions { config: config.collect(), ..NatsOptions::default() };
        let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
        let service = Service::start().await;
        let consumer = format!("[inbox.billing]\nhandler = '{}'\npartitions = 2\n", service.url());
        let relay = "[relay]\npartitions = 2\nsubject = 'outbox.{partition}.{event_type}'\n";
        let _file = configured(&mut env, &format!("{consumer}{relay}"));
        let url = env.nats.url().replace("://", "://USER:USER@");
        let become_user = |env: &mut TestEnv, user| env.set("NATS_URL", &url.replace("USER", user));
        become_user(&mut env, "operator");
        env.setup().await;
        env.ends_with(0, &["inbox", "setup"]).await;
        become_user(&mut env, "inbox");
        let doctor = ["doctor", "--only", "inbox-permissions"];
        if names == "billing" {
            let (told, _) = env.ends_with(1, &doctor).await;
            assert!(
                told.contains("$JS.ACK.OUTBOX.billing-0.>, $JS.ACK.OUTBOX.billing-1.>"),
                "{told}"
            );
            assert!(told.contains("$JS.EVENT.ADVISORY.CONSUMER.*.OUTBOX.billing-1"), "{told}");
            continue;
        }
        env.ends_with(0, &doctor).await;
        let _inbox = env.spawn(&["inbox", "run", "--consumer", "billing"]);
        become_user(&mut env, "relay");
        let (told, _) = env.ends_with(0, &doctor).await;
        assert!(told.contains("ask as that of the inbox"), "{told}");
        let _relay = env.relay();
        let id = env.insert(1).await[0];
        until(DEADLINE, "the event is handled", async || service.calls_of(id) == 1).await;
        become_user(&mut env, "operator");
        until(DEADLINE, "it is acknowledged", async || {
            let (told, _) = env.ends_with(0, &["status"]).await;
            told.contains("pending      0, 0 delivered")
        })
        .await;
        assert_eq!(refused(&env), [""; 0]);
    }
}
