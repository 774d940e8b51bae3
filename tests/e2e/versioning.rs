//! Two versions of an event side by side, as docs/producers.md#changing-an-events-payload says.

use std::collections::HashMap;

use async_nats::jetstream::consumer::pull::{Config as Pull, Stream as Messages};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use futures_util::StreamExt;
use support::{DEADLINE, TestEnv, until};

const PAGE: &str = include_str!("../../docs/producers.md");
const AGGREGATES: usize = 7;

/// What a consumer handled: aggregate, number of the fact, version.
type Handled = Vec<(String, usize, i32)>;

/// Commits facts `from..to` in some versions, as the page's transaction does.
async fn write(env: &TestEnv, facts: std::ops::Range<usize>, versions: &[i32]) {
    let client = env.client().await;
    for fact in facts {
        let mut script = String::from("BEGIN;");
        for version in versions {
            script += &format!(
                "SELECT outbox_emit('order', 'o-{}', 'OrderPlaced', '{{\"n\": {fact}}}',
                     event_version => {version});",
                fact % AGGREGATES
            );
        }
        client.batch_execute(&(script + "COMMIT")).await.expect("write a fact");
    }
}

async fn consumer(
    env: &TestEnv,
    name: &str,
    version: i32,
    deliver_policy: DeliverPolicy,
) -> Messages {
    let config = Pull {
        durable_name: Some(name.into()),
        filter_subject: format!("outbox.*.*.v{version}"),
        ack_policy: AckPolicy::Explicit,
        deliver_policy,
        ..Pull::default()
    };
    let consumer = env.stream().await.create_consumer(config).await.expect("create a consumer");
    consumer.messages().await.expect("messages")
}

/// Where a consumer takes over from another one, whether that has messages waiting or not.
async fn from_the_floor_of(env: &TestEnv, name: &str) -> DeliverPolicy {
    let info = env.stream().await.consumer_info(name).await.expect("consumer info");
    DeliverPolicy::ByStartSequence { start_sequence: info.ack_floor.stream_sequence }
}

/// Handles the next `count` messages.
async fn handle(messages: &mut Messages, count: usize, handled: &mut Handled) {
    for n in 0..count {
        let next = tokio::time::timeout(DEADLINE, messages.next()).await;
        let next = next.unwrap_or_else(|_| panic!("waited in vain for message {n} of {count}"));
        let message = next.expect("no end").expect("next message");
        let headers = message.headers.as_ref().expect("headers");
        let header = |name| headers.get(name).expect("a header").as_str().to_owned();
        let payload: serde_json::Value = serde_json::from_slice(&message.payload).expect("JSON");
        let fact = payload["n"].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a fact");
        let version = header("Event-Version").parse().expect("a number");
        handled.push((header("Aggregate-Id"), fact, version));
        message.double_ack().await.expect("acknowledge");
    }
}

/// Checks that each fact was handled once, the facts of each aggregate in order, and in which version.
fn assert_handled(handled: &Handled, versions: &[(std::ops::Range<usize>, i32)]) {
    let mut by_aggregate: HashMap<&str, Vec<(usize, i32)>> = HashMap::new();
    for (aggregate, fact, version) in handled {
        by_aggregate.entry(aggregate).or_default().push((*fact, *version));
    }
    for n in 0..AGGREGATES {
        let facts = versions.iter().flat_map(|(facts, version)| {
            facts.clone().filter(|it| it % AGGREGATES == n).map(|it| (it, *version))
        });
        let name = format!("o-{n}");
        assert_eq!(
            by_aggregate.remove(name.as_str()).unwrap_or_default(),
            facts.collect::<Vec<_>>()
        );
    }
    assert!(by_aggregate.is_empty(), "{by_aggregate:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_move_from_one_version_to_the_next_and_miss_and_repeat_nothing() {
    let mut env = TestEnv::new().await;
    let subject = "outbox.{aggregate_type}.{event_type}.v{event_version}";
    assert!(PAGE.contains(subject), "the page says otherwise");
    env.set("TAILPOST_RELAY__SUBJECT", subject);
    env.setup().await;
    let relay = env.relay();
    let mut old = consumer(&env, "old", 1, DeliverPolicy::All).await;
    let mut moving = consumer(&env, "moving-v1", 1, DeliverPolicy::All).await;
    let (mut by_old, mut by_new) = (Vec::new(), Vec::new());
    let (mut by_moving, mut by_late) = (Vec::new(), Vec::new());

    // Version 1 alone, then both, the new one first; a crash in between.
    write(&env, 0..50, &[1]).await;
    let mut new = consumer(&env, "new", 2, DeliverPolicy::All).await;
    write(&env, 50..100, &[2, 1]).await;
    relay.kill9().await;
    drop(relay);
    let _relay = env.relay();
    write(&env, 100..150, &[2, 1]).await;

    // One consumer moves while both are written.
    handle(&mut moving, 90, &mut by_moving).await;
    let policy = from_the_floor_of(&env, "moving-v1").await;
    let mut moved = consumer(&env, "moving-v2", 2, policy).await;
    handle(&mut moved, 60, &mut by_moving).await;

    // The old one is done; version 2 alone.
    handle(&mut old, 150, &mut by_old).await;
    let mut late = consumer(&env, "late", 2, from_the_floor_of(&env, "old").await).await;
    write(&env, 150..180, &[2]).await;
    handle(&mut moved, 30, &mut by_moving).await;
    handle(&mut late, 30, &mut by_late).await;
    handle(&mut new, 130, &mut by_new).await;
    assert_handled(&by_old, &[(0..150, 1)]);
    assert_handled(&by_new, &[(50..180, 2)]);
    assert_handled(&by_late, &[(150..180, 2)]);
    assert_handled(&by_moving, &[(0..90, 1), (90..180, 2)]);
    for name in ["old", "new", "late", "moving-v2"] {
        let stream = env.stream().await;
        until(DEADLINE, "nothing is left", async || {
            let info = stream.consumer_info(name).await.expect("consumer info");
            info.num_pending == 0 && info.num_ack_pending == 0
        })
        .await;
    }
}
