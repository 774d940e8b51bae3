//! What docs/api.md, docs/verify.md, docs/replay.md and docs/retention.md show of a relay and an inbox
//! that work.

use lab::Port;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use super::shown::{Step, steps};
use crate::inbox::service::Service;
use crate::verify::{free, message_of, remove, store};

const WAITING: &str = include_str!("../../../docs/api.md");
const VERIFY: &str = include_str!("../../../docs/verify.md");
const REWIND: &str = include_str!("../../../docs/replay.md");
const RETENTION: &str = include_str!("../../../docs/retention.md");

/// The page's commands that begin with these words.
fn commands(page: &'static str, words: &str) -> Vec<Step> {
    let mut steps = steps(page);
    steps.retain(|it| it.args.join(" ").starts_with(words));
    assert!(!steps.is_empty(), "the page does not show {words}");
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_verifying_rewinding_and_deleting_go_as_their_pages_show() {
    let mut env = TestEnv::new().await;
    let (admin, service) = (Port::reserve().expect("a free port"), Service::start().await);
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    // A repair waits for as long.
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let relay = env.relay();
    relay.wait_active().await;
    let from = ["inbox", "run", "--consumer", "billing", "--handler", &service.url()];
    let _inbox = env.spawn(&from);
    let emit = "SELECT outbox_emit('order', 'o-17', 'OrderPlaced', '{\"total\": 42}')";
    let id = env.query::<Uuid>(emit).await.to_string();
    for step in commands(WAITING, "wait") {
        step.play(&env, &[("$ID", &id)]).await;
    }
    let processed = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL";
    let is_processed = async || env.query::<i64>(processed).await == 1;
    until(DEADLINE, "the event is processed", is_processed).await;
    // The first block; what the others show was broken first.
    for step in commands(VERIFY, "verify").iter().take(5) {
        step.play(&env, &[]).await;
    }
    for step in commands(REWIND, "inbox rewind").iter().chain(&commands(REWIND, "wait")) {
        step.play(&env, &[("4001", "1")]).await;
    }
    assert_eq!(service.calls_of(id.parse().expect("an id")), 2, "handled again");
    for step in commands(RETENTION, "maintain").iter().take(2) {
        step.play(&env, &[]).await;
    }
    what_somebody_broke_is_found_and_repaired(&env).await;
    an_outbox_in_use_gets_partitions(&env).await;
}

/// A message and its copy, two deleted messages, and a row that was changed.
async fn what_somebody_broke_is_found_and_repaired(env: &TestEnv) {
    let ids = env.insert_each(5).await;
    env.wait_marked().await;
    for id in &ids[..2] {
        remove(env, *id).await;
    }
    let original = message_of(env, ids[2]).await;
    let copy = store(env, &original.subject, &free(&original), &original.payload).await;
    let change = "UPDATE outbox_events SET payload = '{}' WHERE id = ";
    env.execute(&format!("{change}'{}'", ids[3])).await;
    let all = commands(VERIFY, "verify");
    let [found, repair, again] = &all[5..] else { panic!("{} commands", all.len()) };
    found.play(env, &[]).await;
    env.delete_message(copy).await;
    repair.play(env, &[]).await;
    for step in commands(VERIFY, "wait") {
        step.play(env, &[]).await;
    }
    again.play(env, &[]).await;
}

/// While a relay is at work.
async fn an_outbox_in_use_gets_partitions(env: &TestEnv) {
    for step in commands(RETENTION, "setup --partitioned") {
        step.play(env, &[]).await;
    }
    let before = env.stored_count().await;
    env.insert_each(2).await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, before + 2);
}
