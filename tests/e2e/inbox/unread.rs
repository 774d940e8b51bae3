//! Messages leave the stream before the inbox was given them.

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use futures_util::StreamExt;
use lab::Port;
use outbox::Event;
use serde_json::json;
use support::{DEADLINE, SCRAPER, TestEnv, until};
use tempfile::TempDir;

use super::database_gone_back::DatabaseCopy;
use super::http::{configure, processed, wait_processed};
use super::service::Service;
use super::shared_stuck::asked;
use super::{Inbox, Worker};

const WAIT: [&str; 6] = ["wait", "--all", "--processed-by", "worker", "--timeout", "5m"];

/// Changes the stream.
async fn change(inbox: &Inbox, set: impl Fn(&mut Config)) {
    let mut config = inbox.env.stream().await.cached_info().config.clone();
    set(&mut config);
    inbox.jetstream.update_stream(&config).await.expect("change the stream");
}

async fn set_up() -> Inbox {
    let inbox = Inbox::new().await;
    inbox.env.setup().await;
    inbox
}

async fn begun(mut inbox: Inbox, subjects: &str) -> (Inbox, Worker) {
    inbox.set("WORKER_SUBJECTS", subjects);
    let worker = inbox.worker();
    worker.wait_active().await;
    inbox.publish_many(0, 10, &json!({})).await;
    inbox.wait_count("effects", 10).await;
    inbox.wait_acked().await;
    (inbox, worker)
}

/// Events of somebody else.
async fn publish_others(inbox: &Inbox, n: u32) {
    for _ in 0..n {
        let event = Event::new("bill", "b", "Billed", &json!({})).expect("an event");
        inbox.publish_to("outbox.bill.Billed", &event).await;
    }
}

/// What `status` says of it, if it does.
async fn unread(env: &TestEnv) -> Option<String> {
    let (status, _) = env.ends_with(0, &["status"]).await;
    status.lines().find_map(|it| it.strip_prefix("  unread       ")).map(str::to_owned)
}

/// Waits until the worker has looked at the stream up to there.
async fn wait_looked(inbox: &Inbox, seq: u64) {
    let looked = format!("inbox_roles WHERE seen_to >= {seq}");
    inbox.wait_count(&looked, 1).await;
}

/// A worker comes back, handles five more events and has nothing to tell.
async fn assert_silent(inbox: &Inbox, effects: i64) {
    inbox.publish_many(500, 5, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", effects).await;
    inbox.wait_acked().await;
    let last = inbox.env.stream().await.cached_info().state.last_sequence;
    wait_looked(inbox, last).await;
    assert_eq!(unread(&inbox.env).await, None, "{}", worker.log());
    inbox.env.ends_with(0, &WAIT).await;
    worker.stop().await;
}

/// The operator has done what is told, and does the last of it.
async fn settle(env: &TestEnv, told: &str) {
    let (_, update) = told.split_once("Once that is done: ").expect("what settles it");
    env.execute(update).await;
    assert_eq!(unread(env).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_limit_takes_while_no_worker_runs_is_told_once_and_until_it_is_settled() {
    let (inbox, worker) = begun(set_up().await, "").await;
    worker.stop().await;
    inbox.publish_many(10, 20, &json!({})).await;
    change(&inbox, |it| it.max_messages = 5).await;
    for _ in 0..2 {
        let worker = inbox.worker();
        inbox.wait_count("effects", 15).await;
        inbox.wait_acked().await;
        let told = unread(&inbox.env).await.expect("it is told");
        assert!(told.starts_with("up to 15 messages left the stream unread"), "{told}");
        inbox.env.ends_with(4, &WAIT).await;
        worker.stop().await;
    }
    let told = "inbox_control_audit WHERE consumer = 'worker' AND action = 'unread'";
    assert_eq!(inbox.count(told).await, 1);
    settle(&inbox.env, &unread(&inbox.env).await.expect("it is told")).await;
    inbox.env.ends_with(0, &WAIT).await;
}

/// Also before any worker has seen it, and of a worker that runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_purge_takes_is_told() {
    let (inbox, worker) = begun(set_up().await, "").await;
    worker.stop().await;
    inbox.publish_many(10, 20, &json!({})).await;
    inbox.env.purge().await;
    inbox.env.ends_with(4, &WAIT).await;
    let worker = inbox.worker();
    until(DEADLINE, "it is told", async || unread(&inbox.env).await.is_some()).await;
    let told = unread(&inbox.env).await.expect("it is told");
    assert!(told.starts_with("up to 20 messages left the stream unread"), "{told}");
    inbox.env.ends_with(4, &WAIT).await;
    settle(&inbox.env, &told).await;
    wait_looked(&inbox, 30).await;

    // It runs, and gets nothing: the broker says nothing to it.
    worker.pause();
    inbox.publish_many(30, 600, &json!({})).await;
    inbox.env.purge().await;
    worker.resume();
    until(DEADLINE, "it is told", async || unread(&inbox.env).await.is_some()).await;
    worker.stop().await;
}

/// Somebody deletes the consumer, and makes one that begins behind what waits, by any of its settings.
// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_made_anew_passes_over_is_told_and_a_rewind_brings_it() {
    let (inbox, worker) = begun(set_up().await, "").await;
    worker.stop().await;
    let mut effects = 10;
    for policy in [DeliverPolicy::New, DeliverPolicy::ByStartSequence { start_sequence: 51 }] {
        inbox.publish_many(effects, 20, &json!({})).await;
        let stream = inbox.env.stream().await;
        let mut config = stream.consumer_info("worker").await.expect("it is there").config;
        (config.deliver_policy, config.name) = (policy, None);
        stream.delete_consumer("worker").await.expect("delete it");
        stream.create_consumer(config).await.expect("make it anew");
        let worker = inbox.worker();
        until(DEADLINE, "it is told", async || unread(&inbox.env).await.is_some()).await;
        let told = unread(&inbox.env).await.expect("it is told");
        assert!(told.starts_with("up to 20 messages are acknowledged and have no rec"), "{told}");
        inbox.env.ends_with(4, &WAIT).await;
        let rewind = ["inbox", "rewind", "--to-sequence", "1", "--consumer", "worker"];
        let rewind = [&rewind[..], &["--execute", "--why", "it was told"]].concat();
        inbox.env.ends_with(0, &rewind).await;
        effects += 20;
        inbox.wait_count("effects", effects).await;
        inbox.wait_acked().await;
        settle(&inbox.env, &told).await;
        worker.stop().await;
    }
}

/// The worker takes what the new one delivers, and notices later.
// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_made_anew_passes_over_while_a_worker_runs_is_told() {
    let (inbox, worker) = begun(set_up().await, "").await;
    worker.pause();
    inbox.publish_many(10, 20, &json!({})).await;
    let stream = inbox.env.stream().await;
    let mut config = stream.consumer_info("worker").await.expect("it is there").config;
    (config.deliver_policy, config.name) = (DeliverPolicy::New, None);
    stream.delete_consumer("worker").await.expect("delete it");
    stream.create_consumer(config).await.expect("make it anew");
    inbox.publish_many(30, 100, &json!({})).await;
    worker.resume();
    inbox.wait_count("effects WHERE n >= 30", 100).await;
    until(DEADLINE, "it is told", async || unread(&inbox.env).await.is_some()).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_partition_tells_what_it_was_not_given() {
    let mut inbox = set_up().await;
    inbox.divide(4).await;
    let worker = inbox.worker();
    inbox.publish_many(0, 40, &json!({})).await;
    inbox.wait_count("effects", 40).await;
    inbox.wait_acked().await;
    worker.stop().await;
    inbox.wait_count("inbox_roles WHERE seen_to = 40", 4).await;
    inbox.publish_many(40, 40, &json!({})).await;
    inbox.env.purge().await;
    let _workers = [inbox.worker(), inbox.worker()];
    inbox.wait_count("inbox_roles WHERE unread > 0", 4).await;
    let told = unread(&inbox.env).await.expect("it is told");
    let expected = "up to 40 messages left the stream unread in each of 4 partitions";
    assert!(told.starts_with(expected), "{told}");
    // What nobody has been told of yet is not settled.
    inbox.env.execute("UPDATE inbox_roles SET unread = 41 WHERE partition = 0").await;
    let (_, update) = told.split_once("Once that is done: ").expect("what settles it");
    inbox.env.execute(update).await;
    settle(&inbox.env, &unread(&inbox.env).await.expect("there is more")).await;
    inbox.publish_many(80, 40, &json!({})).await;
    inbox.wait_count("effects", 80).await;
    assert_eq!(unread(&inbox.env).await, None);
}

/// Servers, and where an inbox is to serve its API.
pub(crate) async fn served() -> (TestEnv, Port, TempDir) {
    let api = Port::reserve().expect("a free port");
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &api.addr().to_string());
    env.set("TAILPOST_ADMIN__TOKEN", SCRAPER);
    env.set("TAILPOST_METRICS__INTERVAL", "300ms");
    let file = configure(&mut env);
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    (env, api, file)
}

/// `/readyz` says so and stays green; what is printed brings them, and settles it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_brings_what_was_purged() {
    let (env, api, _file) = served().await;
    let _relay = env.relay();
    let service = Service::start().await;
    let args = service.args();
    let run = || env.spawn(&args.each_ref().map(String::as_str));
    let inbox = run();
    env.insert(10).await;
    wait_processed(&env, 10).await;
    inbox.sigterm();
    inbox.wait_exit(DEADLINE).await;
    env.insert(20).await;
    env.ends_with(0, &["wait", "--all"]).await;
    env.purge().await;
    let _inbox = run();
    until(DEADLINE, "it is told", async || unread(&env).await.is_some()).await;
    until(DEADLINE, "it is ready, and says so", async || {
        let ready = asked(&api, "/readyz").await;
        ready.contains(" 200 ") && ready.contains(r#""unread":20"#)
    })
    .await;
    let metric = async || asked(&api, "/metrics").await;
    let written = r#"tailpost_inbox_unread{env="default",consumer="billing",durable="billing"} "#;
    assert!(metric().await.contains(&format!("{written}20.0")), "{}", metric().await);
    let shown = asked(&api, "/api/v1/consumers/billing").await;
    assert!(shown.contains("up to 20 messages left the stream unread"), "{shown}");

    let told = unread(&env).await.expect("it is told");
    let command = told.split('`').nth(1).and_then(|it| it.strip_prefix("tailpost ")).expect("it");
    let mut words: Vec<&str> = command.split(' ').collect();
    words.extend(["--execute", "--why", "a purge"]);
    env.ends_with(0, &words).await;
    wait_processed(&env, 30).await;
    settle(&env, &told).await;
    env.ends_with(0, &["wait", "--all", "--processed-by", "billing", "--timeout", "5m"]).await;
    until(DEADLINE, "the metric ends", async || metric().await.contains(&format!("{written}0.0")))
        .await;
}

/// The database comes back as it was before the consumer's first session: nothing in it says whether it
/// or another one had what is acknowledged.
// proves: G-REWIND-7
#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_and_was_never_recorded_is_told_and_what_is_printed_has_it_handled() {
    let (mut env, api, _file) = served().await;
    let copied = DatabaseCopy::take(&mut env).await;
    let service = Service::start().await;
    let args = service.args();
    let args = args.each_ref().map(String::as_str);
    let (relay, inbox) = (env.relay(), env.spawn(&args));
    env.insert(10).await;
    let wait = ["wait", "--all", "--processed-by", "billing", "--timeout", "5m"];
    env.ends_with(0, &wait).await;
    for process in [relay, inbox] {
        process.sigterm();
        assert!(process.wait_exit(DEADLINE).await.success(), "{}", process.log());
    }
    copied.put_back(&mut env).await;

    for _ in 0..2 {
        let inbox = env.spawn(&args);
        until(DEADLINE, "/readyz says it", async || {
            asked(&api, "/readyz").await.contains(r#""unread":10"#)
        })
        .await;
        let metric = asked(&api, "/metrics").await;
        let found = metric.lines().find(|it| it.starts_with("tailpost_inbox_unread{"));
        assert!(found.is_some_and(|it| it.ends_with(" 10.0")), "{metric}");
        env.ends_with(4, &wait).await;
        inbox.sigterm();
        inbox.wait_exit(DEADLINE).await;
    }
    let told = "SELECT count(*) FROM inbox_control_audit WHERE action = 'unread'";
    assert_eq!(env.query::<i64>(told).await, 1);
    assert_eq!((service.calls().len(), processed(&env).await), (10, 0));

    let told = unread(&env).await.expect("it is told");
    let expected = "up to 10 messages are acknowledged and have no record here";
    assert!(told.starts_with(expected), "{told}");
    let inbox = env.spawn(&args);
    let command = told.split('`').nth(1).and_then(|it| it.strip_prefix("tailpost ")).expect("it");
    let mut words: Vec<&str> = command.split(' ').collect();
    words.extend(["--execute", "--why", "the database was restored"]);
    env.ends_with(0, &words).await;
    wait_processed(&env, 10).await;
    assert_eq!(service.calls().len(), 20);
    settle(&env, &told).await;
    env.ends_with(0, &wait).await;
    until(DEADLINE, "/readyz is silent", async || !asked(&api, "/readyz").await.contains("unread"))
        .await;
    inbox.sigterm();
    inbox.wait_exit(DEADLINE).await;
}

/// They were acknowledged, which the row did not say any more when the worker was killed.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_before_it_left_is_not_told() {
    let (inbox, worker) = begun(set_up().await, "").await;
    wait_looked(&inbox, 10).await;
    inbox.publish_many(10, 10, &json!({})).await;
    inbox.wait_count("effects", 20).await;
    inbox.wait_acked().await;
    worker.kill9().await;
    inbox.env.purge().await;
    assert_silent(&inbox, 25).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_left_before_the_consumer_was_there_is_not_told() {
    let inbox = set_up().await;
    inbox.publish_many(0, 20, &json!({})).await;
    inbox.env.purge().await;
    assert_silent(&inbox, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_others_are_not_told() {
    let (inbox, worker) = begun(set_up().await, "outbox.order.*").await;
    publish_others(&inbox, 20).await;
    wait_looked(&inbox, 30).await;
    worker.stop().await;
    inbox.env.purge().await;
    assert_silent(&inbox, 15).await;
}

/// From a work queue they go when they are acknowledged, also those of others.
#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_a_work_queue_is_not_told() {
    let inbox = set_up().await;
    inbox.jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
    let queue = Config {
        name: "OUTBOX".into(),
        subjects: vec!["outbox.>".into()],
        retention: RetentionPolicy::WorkQueue,
        ..Config::default()
    };
    let stream = inbox.jetstream.create_stream(queue).await.expect("create the stream");
    let (inbox, worker) = begun(inbox, "outbox.order.*").await;
    worker.stop().await;
    publish_others(&inbox, 20).await;
    let filter_subject = "outbox.bill.*".to_owned();
    let others = pull::Config { filter_subject, ..pull::Config::default() };
    let others = stream.create_consumer(others).await.expect("another consumer");
    let mut messages = others.fetch().max_messages(20).messages().await.expect("fetch");
    while let Some(message) = messages.next().await {
        message.expect("a message").double_ack().await.expect("acknowledge");
    }
    inbox.publish_many(500, 5, &json!({})).await;
    let worker = inbox.worker();
    inbox.wait_count("effects", 15).await;
    inbox.wait_acked().await;
    assert_eq!(unread(&inbox.env).await, None, "{}", worker.log());
    inbox.env.ends_with(0, &WAIT).await;
    worker.stop().await;
}
