//! A stream stores events under other subjects than those that the relay gives them.

use async_nats::jetstream::stream::SubjectTransform;
use lab::{NatsOptions, Port};
use support::{DEADLINE, SCRAPER, TestEnv, TestEnvOptions, until};

use super::{check, edit};
use crate::inbox::http::{configure, wait_processed};
use crate::inbox::service::Service;
use crate::inbox::shared_stuck::asked;
use crate::replay::{ask, wait_done};

async fn transform(env: &TestEnv) {
    edit(env, |it| {
        let (source, destination) = ("outbox.>".into(), "kept.>".into());
        it.subject_transform = Some(SubjectTransform { source, destination });
    })
    .await;
}

// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn a_transform_is_named_and_an_inbox_that_gets_nothing_by_it_does_not_start() {
    let mut env = TestEnv::new().await;
    let _folder = configure(&mut env);
    env.setup().await;
    transform(&env).await;
    let (said, _) = env.ends_with(0, &["setup"]).await;
    assert!(said.contains("subject_transform"), "{said}");
    assert_eq!(check(&env, "stream-transform").await["severity"], "warning");
    let relay = env.relay();
    env.insert_each(20).await;
    env.wait_marked().await;
    assert!(relay.log().contains("subject_transform"), "{}", relay.log());
    env.ends_with(0, &["verify"]).await;

    env.set("TAILPOST_INBOX__BILLING__SUBJECTS", "outbox.order.>");
    let service = Service::start().await;
    let args = service.args();
    let args = args.each_ref().map(String::as_str);
    let inbox = env.spawn(&args);
    inbox.announce("");
    assert!(!inbox.wait_exit(DEADLINE).await.success(), "it handles nothing, and says nothing");
    assert!(inbox.log().contains("kept.>"), "{}", inbox.log());
    let (_, said) = env.ends_with(4, &["inbox", "setup"]).await;
    assert!(said.contains("kept.>"), "{said}");
    // As the message says.
    env.set("TAILPOST_INBOX__BILLING__SUBJECTS", "kept.order.>");
    let _inbox = env.spawn(&args);
    wait_processed(&env, 20).await;
}

/// What a replay reads from the stream is transformed once.
// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_from_a_transformed_stream_has_the_subjects_of_the_events() {
    let env = TestEnv::new().await;
    env.setup().await;
    transform(&env).await;
    let _relay = env.relay();
    env.insert_each(5).await;
    env.wait_marked().await;
    let id = ask(&env, &["--all", "--source", "stream"]).await;
    let done = wait_done(&env, &id).await;
    assert_eq!((&done["published"], &done["failed"]), (&5.into(), &0.into()), "{done}");
    let stored = env.stored().await;
    assert_eq!(stored.len(), 10);
    assert!(stored.iter().all(|it| it.subject == "kept.order.OrderPlaced"), "{stored:?}");
}

async fn mapped() -> TestEnv {
    let config = vec!["mappings = { \"outbox.order.*\": \"outbox.other.{{wildcard(1)}}\" }".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await
}

/// The account's mappings are seen by where the last message is.
// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn an_accounts_mapping_is_seen_by_where_events_are() {
    let env = mapped().await;
    env.setup().await;
    let relay = env.relay();
    env.insert_each(5).await;
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    let found = check(&env, "stream-transform").await;
    assert_eq!(found["severity"], "warning", "{found}");
    let (said, _) = env.ends_with(0, &["setup"]).await;
    assert!(said.contains("outbox.other.OrderPlaced"), "{said}");
    let relay = env.relay();
    env.insert_each(1).await;
    env.wait_marked().await;
    assert!(relay.log().contains("outbox.other.OrderPlaced"), "{}", relay.log());
}

/// The broker has nothing pending for the consumer. What is told mends it.
// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_whose_events_the_account_maps_to_other_subjects_is_named() {
    const PASSED_BY: &str = "events pass it by: one is stored under outbox.other.OrderPlaced";
    let api = Port::reserve().expect("a free port");
    let mut env = mapped().await;
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &api.addr().to_string());
    env.set("TAILPOST_ADMIN__TOKEN", SCRAPER);
    env.set("TAILPOST_METRICS__INTERVAL", "300ms");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tailpost.toml");
    let of = |name: &str, subjects: &str| {
        format!("[inbox.{name}]\nhandler = \"http://127.0.0.1:9/\"\nsubjects = [{subjects}]\n")
    };
    // Events of `rare` were never published, and none is mapped.
    let rare = of("rare", "\"outbox.order.OrderRefunded\", \"outbox.bill.>\"");
    let write = |subjects| {
        let text = of("billing", subjects) + &rare;
        std::fs::write(&file, text).expect("write the settings");
    };
    write("\"outbox.order.>\", \"outbox.bill.>\"");
    env.set("TAILPOST_CONFIG", file.to_str().expect("Unicode"));
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let _relay = env.relay();
    let service = Service::start().await;
    let args = service.args();
    let run = || env.spawn(&args.each_ref().map(String::as_str));
    let said = async || env.ends_with(0, &["status"]).await.0.matches(PASSED_BY).count();
    let inbox = run();
    until(DEADLINE, "it is ready", async || asked(&api, "/readyz").await.contains(" 200 ")).await;
    assert_eq!(said().await, 0);
    env.insert_each(20).await;
    env.wait_marked().await;

    let ready = async || asked(&api, "/readyz").await;
    until(DEADLINE, "/readyz says it", async || ready().await.contains(PASSED_BY)).await;
    assert_eq!(said().await, 1, "of the one that has such events");
    let metric = r#"tailpost_inbox_unread{env="default",consumer="billing",durable="billing"} "#;
    let metrics = async || asked(&api, "/metrics").await;
    // A look before the last event counts fewer.
    until(DEADLINE, "all are counted", async || metrics().await.contains(&format!("{metric}16.0")))
        .await;
    let found = check(&env, "inbox-subjects").await;
    assert_eq!(found["severity"], "warning", "{found}");
    inbox.sigterm();
    inbox.wait_exit(DEADLINE).await;
    let inbox = run();
    until(DEADLINE, "the start says it", async || inbox.log().contains(PASSED_BY)).await;
    inbox.sigterm();
    inbox.wait_exit(DEADLINE).await;

    // As it says.
    write("\"outbox.other.>\", \"outbox.bill.>\"");
    let _inbox = run();
    until(DEADLINE, "it is for the other subjects", async || {
        let info = env.stream().await.consumer_info("billing").await.expect("the consumer");
        info.config.filter_subjects.contains(&"outbox.other.>".into())
    })
    .await;
    let rewind = ["inbox", "rewind", "--consumer", "billing", "--to-sequence", "1"];
    env.ends_with(0, &[&rewind[..], &["--execute", "--why", "a mapping"]].concat()).await;
    wait_processed(&env, 20).await;
    until(DEADLINE, "/readyz is silent", async || !ready().await.contains(PASSED_BY)).await;
    assert_eq!(said().await, 0);
    assert!(metrics().await.contains(&format!("{metric}0.0")), "{}", metrics().await);
    assert_eq!(check(&env, "inbox-subjects").await["severity"], "ok");
}
