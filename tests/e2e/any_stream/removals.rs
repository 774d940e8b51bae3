//! Messages go before anybody has read them.

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::DiscardPolicy;
use lab::Port;
use serde_json::Value;
use support::{DEADLINE, TestEnv, until};

use super::{check, edit};
use crate::inbox::service::Service;
use crate::inbox::shared_stuck::asked;
use crate::inbox::unread::served;

/// `tailpost verify`: its exit code is checked.
async fn verify(env: &TestEnv, code: i32) -> Value {
    let (told, _) = env.ends_with(code, &["verify", "--json"]).await;
    serde_json::from_str(&told).expect("one JSON object")
}

fn removed(report: &Value) -> u64 {
    let counts = report["counts"].as_array().expect("a list");
    let removed = counts.iter().find(|it| it["kind"] == "removed");
    removed.map_or(0, |it| it["count"].as_u64().expect("a count"))
}

/// Events that a relay published before it ended.
async fn published(events: usize) -> TestEnv {
    let env = TestEnv::new().await;
    env.setup().await;
    publish(&env, events).await;
    env
}

async fn publish(env: &TestEnv, events: usize) {
    let relay = env.relay();
    env.insert_each(events).await;
    env.wait_marked().await;
    env.wait_confirmed().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
}

/// Made anew, it may also begin behind the end of the former one.
// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn what_a_former_stream_of_that_name_had_is_missed_wherever_the_new_one_begins() {
    let env = published(5).await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let mut config = env.stream().await.cached_info().config.clone();
    jetstream.delete_stream(&config.name).await.expect("delete the stream");
    config.first_sequence = Some(1_000);
    jetstream.create_stream(config).await.expect("make it anew");
    env.removes_messages();
    publish(&env, 3).await;
    let report = verify(&env, 1).await;
    assert_eq!((removed(&report), &report["matched"]), (5, &3.into()), "{report}");
}

/// A limit for each subject removes old messages whatever `discard` says.
// proves: G-STREAM-1, G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_per_subject_is_named_and_so_is_what_it_removed() {
    let env = published(1).await;
    env.removes_messages();
    edit(&env, |it| (it.max_messages_per_subject, it.discard) = (1, DiscardPolicy::New)).await;
    let (said, _) = env.ends_with(0, &["setup"]).await;
    assert!(said.contains("max_msgs_per_subject"), "{said}");
    let found = check(&env, "stream-per-subject").await;
    assert_eq!(found["severity"], "warning", "{found}");

    publish(&env, 20).await;
    assert_eq!(env.stored_count().await, 1);
    assert_eq!(removed(&verify(&env, 1).await), 20);
    // Who has read everything misses nothing.
    let config = pull::Config { durable_name: Some("reader".into()), ..pull::Config::default() };
    let stream = env.stream().await;
    let reader = stream.create_consumer(config).await.expect("make a consumer");
    let messages = reader.fetch().max_messages(1).messages().await.expect("ask");
    let message = futures_util::StreamExt::next(&mut Box::pin(messages)).await;
    message.expect("one").expect("a message").double_ack().await.expect("acknowledge");
    assert_eq!(removed(&verify(&env, 0).await), 0);
    publish(&env, 20).await;
    assert_eq!(removed(&verify(&env, 1).await), 19);
}

/// What is printed ends it.
// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_of_a_stream_with_a_limit_per_subject_is_told() {
    let (env, api, _file) = served().await;
    edit(&env, |it| it.max_messages_per_subject = 3).await;
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    let told = "max_msgs_per_subject = 3: of each subject it removes older ones, read or not: nats \
                stream edit OUTBOX --max-msgs-per-subject=-1";
    let ready = async || asked(&api, "/readyz").await;
    until(DEADLINE, "/readyz says it", async || ready().await.contains(told)).await;
    assert!(inbox.log().contains(told), "{}", inbox.log());
    let status = async || env.ends_with(0, &["status"]).await.0;
    assert!(status().await.contains(&format!("\n  warning      {told}\n")), "{}", status().await);
    edit(&env, |it| it.max_messages_per_subject = -1).await;
    until(DEADLINE, "/readyz is silent", async || !ready().await.contains(told)).await;
    assert!(!status().await.contains(told), "{}", status().await);
}

/// A roll-up is nobody's limit: what one removed is told as what an operator removed is.
// proves: G-STREAM-1, G-LOSS-8
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_takes_roll_ups_is_named_and_so_is_what_one_removed() {
    let mut env = published(8).await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.removes_messages();
    edit(&env, |it| it.allow_rollup = true).await;
    let (said, _) = env.ends_with(0, &["setup"]).await;
    assert!(said.contains("allow_rollup_hdrs"), "{said}");
    let found = check(&env, "stream-rollup").await;
    assert_eq!(found["severity"], "warning", "{found}");

    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Rollup", "all");
    let sent = jetstream.publish_with_headers("outbox.order.rolled", headers, "".into()).await;
    sent.expect("publish").await.expect("acknowledged");
    assert_eq!(env.stored_count().await, 1);
    // What is marked only now is too young to be looked at.
    env.execute("UPDATE outbox_events SET published_at = published_at + interval '1 minute'").await;
    let relay = env.relay();
    let named = "of stream OUTBOX, which has no message there";
    until(DEADLINE, "a row is named", async || {
        env.ends_with(0, &["status"]).await.0.contains(named)
    })
    .await;
    assert!(relay.log().contains("allow_rollup_hdrs"), "{}", relay.log());
}

/// A stream without limits loses nothing by itself.
// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn what_no_limit_explains_is_found_as_removed() {
    let env = published(20).await;
    env.removes_messages();
    env.stream().await.purge().sequence(16).await.expect("purge the stream's beginning");
    assert_eq!(removed(&verify(&env, 1).await), 15);
    edit(&env, |it| it.max_age = std::time::Duration::from_hours(1)).await;
    assert_eq!(removed(&verify(&env, 1).await), 15, "they are not as old as that");
    let old = "UPDATE outbox_events SET published_at = published_at - interval '2 h'";
    env.execute(old).await;
    assert_eq!(removed(&verify(&env, 0).await), 0);
}

/// Without marks, too.
// proves: G-VERIFY-1
#[tokio::test(flavor = "multi_thread")]
async fn what_no_limit_explains_is_found_without_marks() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.setup().await;
    let relay = env.relay();
    env.insert_each(20).await;
    env.wait_covered().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    env.purge().await;
    assert_eq!(removed(&verify(&env, 1).await), 20);
}
