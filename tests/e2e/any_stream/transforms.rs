//! A stream stores events under other subjects than those that the relay gives them.

use async_nats::jetstream::stream::SubjectTransform;
use lab::NatsOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions};

use super::{check, edit};
use crate::inbox::http::{configure, wait_processed};
use crate::inbox::service::Service;
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

/// The account's mappings are seen by where the last message is.
// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn an_accounts_mapping_is_seen_by_where_events_are() {
    let config = vec!["mappings = { \"outbox.order.*\": \"outbox.other.{{wildcard(1)}}\" }".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
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
