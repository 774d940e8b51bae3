//! JetStream behind a leaf node, under a domain of its own; and users who hear nothing but their own
//! answers.

use lab::{Nats, NatsOptions, Port};
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

use crate::inbox::service::Service;

/// A hub with the domain `hub`, and a leaf node of it with one of its own.
async fn hub_and_leaf() -> (TestEnv, Nats, Port) {
    let port = Port::reserve().expect("a free port");
    let nats = NatsOptions {
        jetstream: vec!["domain: hub".into()],
        config: vec![format!("leafnodes {{ listen: \"{}\" }}", port.addr())],
        ..NatsOptions::default()
    };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    let remote = format!("leafnodes {{ remotes: [{{ url: \"nats://{}\" }}] }}", port.addr());
    let leaf = NatsOptions {
        jetstream: vec!["domain: leaf".into()],
        config: vec![remote],
        ..NatsOptions::default()
    };
    let leaf = Nats::start(leaf).await.expect("start a leaf node");
    env.set("NATS_URL", &leaf.url());
    env.set("TAILPOST_NATS__API_PREFIX", "$JS.hub.API");
    env.set("TAILPOST_NATS__INBOX_PREFIX", "_INBOX_relay");
    until(DEADLINE, "the hub is reached", async || {
        let client = leaf.client().await.expect("connect to the leaf node");
        client.request("$JS.hub.API.INFO", "".into()).await.is_ok()
    })
    .await;
    (env, leaf, port)
}

async fn status(env: &TestEnv) -> Value {
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    serde_json::from_str(&told).expect("JSON")
}

/// The stream of the hub is the relay's. One of the same name in the leaf node's domain, with the same
/// subjects, answers as well.
// proves: G-STRANGER-1
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_another_domain_is_reached_and_no_other_one_answers() {
    let (mut env, leaf, _port) = hub_and_leaf().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    let service = Service::start().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let _inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let relay = env.relay();
    let mut ids = env.insert_each(20).await;
    env.wait_marked().await;
    let jetstream = leaf.jetstream().await.expect("connect to the leaf node");
    let mut config = env.stream().await.cached_info().config.clone();
    config.allow_batch_publish = false;
    jetstream.create_stream(config).await.expect("a stream of the leaf node");
    ids.extend(env.insert_each(20).await);
    ids.extend(env.insert(200).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(relay.exited(), None);
    let told = status(&env).await["relay"].take();
    assert!(told["strangers_total"].as_u64() > Some(0), "{told}");
    assert_eq!((&told["mode"], &told["breaker_opened_total"]), (&"fenced".into(), &0.into()));
    service.wait_calls(ids.len()).await;
    assert!(ids.iter().all(|id| service.calls_of(*id) == 1), "each event has one effect");
    env.ends_with(0, &["doctor", "--only", "nats-jetstream,nats-permissions"]).await;
}

/// Permissions as `doctor` prints them, for another prefix.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_hears_only_its_own_answers_needs_the_prefix() {
    let users = "authorization { users: [
        { user: relay, password: relay, permissions: {
            publish: [\"outbox.>\", \"$JS.API.>\", \"$SYS.REQ.USER.INFO\"], subscribe: \"_INBOX_relay.>\" } }
        { user: test } ] }";
    let config = vec![users.into(), "no_auth_user: test".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env.set("NATS_URL", &env.nats.url().replace("://", "://relay:relay@"));
    let (told, _) = env.ends_with(1, &["doctor", "--only", "nats-permissions"]).await;
    assert!(told.contains("_INBOX.>") && told.contains("nats.inbox_prefix"), "{told}");
    env.set("TAILPOST_NATS__INBOX_PREFIX", "_INBOX_relay");
    env.ends_with(0, &["doctor", "--only", "nats-permissions"]).await;
    env.insert(20).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!((env.stored_count().await, env.unmarked().await), (20, 0));
}
