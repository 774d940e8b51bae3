//! Partitions of a stream: every subject has the number of its aggregate's, and that number stays.

use std::num::NonZeroU32;

use outbox::wire::partition;
use support::{DEADLINE, TestEnv};
use uuid::Uuid;

use crate::doctor::nats_commands;

const FOUR: NonZeroU32 = NonZeroU32::new(4).expect("above 0");

const SECOND: &str = "outbox.{partition}.{aggregate_type}.{event_type}";

fn divide(env: &mut TestEnv, partitions: &str, subject: &str) {
    env.set("TAILPOST_RELAY__SUBJECT", subject);
    env.set("TAILPOST_RELAY__PARTITIONS", partitions);
}

/// Events of 50 aggregates, and the subjects that they have to have.
async fn insert(env: &TestEnv) -> Vec<(Uuid, String)> {
    let mut expected = Vec::new();
    for n in 0..100 {
        let (id, aggregate) = (Uuid::new_v4(), format!("o.{}", n % 50));
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   VALUES ($1, 'order', $2, 'Placed', '{}')";
        env.client().await.execute(sql, &[&id, &aggregate]).await.expect("insert an event");
        let number = partition("order", &aggregate, FOUR);
        expected.push((id, format!("{number}.outbox.order.Placed")));
    }
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_knows_the_partition_of_an_event() {
    let mut env = TestEnv::new().await;
    divide(&mut env, "4", "{partition}.outbox.{aggregate_type}.{event_type}");
    env.setup().await;
    let stream = env.stream().await.cached_info().config.clone();
    assert_eq!(
        stream.subjects,
        ["outbox.>", "0.outbox.*.*", "1.outbox.*.*", "2.outbox.*.*", "3.outbox.*.*"]
    );
    assert_eq!(stream.metadata["partitions"], "4");

    let _relay = env.relay();
    let expected = insert(&env).await;
    env.wait_marked().await;
    let stored: Vec<_> = env.stored().await.into_iter().map(|it| (it.id, it.subject)).collect();
    assert_eq!(stored, expected);
    let mut used: Vec<_> = expected.iter().map(|it| it.1.split('.').next()).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 4, "every partition has events");
    env.ends_with(0, &["verify"]).await;
    env.ends_with(0, &["doctor"]).await;
    env.ends_with(0, &["replay", "--all", "--execute", "--why", "a test", "--by", "ada"]).await;
    let copies: Vec<_> = env.stored().await.into_iter().skip(expected.len()).collect();
    let copies: Vec<_> = copies.into_iter().map(|it| (it.event().id, it.subject)).collect();
    assert_eq!(copies, expected, "each where it was");
    let (id, subject) = &expected[0];
    let (story, _) = env.ends_with(0, &["explain", &id.to_string()]).await;
    assert!(story.contains(subject.as_str()), "{story}");
}

/// As a configuration does that is written as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_is_written_back_into_metadata_that_was_removed() {
    let mut env = TestEnv::new().await;
    divide(&mut env, "4", SECOND);
    env.setup().await;
    let relay = env.relay();
    env.insert(3).await;
    env.wait_marked().await;
    nats_commands::edit(&env, "OUTBOX", |it| it.metadata.clear()).await;
    relay.announce("");
    assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    let log = relay.log();
    assert!(log.contains("its metadata does not say how its messages are divided"), "{log}");
    let (_, command) = log.rsplit_once("`nats ").expect("a command");
    let command = format!("nats {}", command.split('`').next().expect("its end"));
    nats_commands::run(&env, &command).await;
    assert_eq!(env.stream().await.cached_info().config.metadata["partitions"], "4");
    let _relay = env.relay();
    env.insert(3).await;
    env.wait_stored(6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_is_changed_only_while_the_stream_has_no_messages() {
    let mut env = TestEnv::new().await;
    divide(&mut env, "4", SECOND);
    env.setup().await;
    let relay = env.relay();
    env.insert(1).await;
    env.wait_marked().await;
    relay.sigterm();
    relay.wait_exit(DEADLINE).await;

    let refused = async |env: &TestEnv, commands: &[&str], wanted: &str| {
        for command in commands {
            let (_, log) = env.ends_with(4, &[command]).await;
            let told = format!("relay.partitions = {wanted}, and its messages are divided into 4");
            assert!(log.contains(&told), "{command}: {log}");
            assert!(log.contains("set relay.partitions = 4"), "{command}: {log}");
        }
    };
    divide(&mut env, "8", SECOND);
    refused(&env, &["setup", "relay"], "8").await;
    divide(&mut env, "1", "outbox.{aggregate_type}.{event_type}");
    refused(&env, &["setup", "relay"], "1").await;

    env.purge().await;
    divide(&mut env, "8", SECOND);
    refused(&env, &["relay"], "8").await;
    let (steps, _) = env.ends_with(0, &["setup"]).await;
    assert!(steps.contains("partitions = 8 of stream OUTBOX"), "{steps}");
    let stream = env.stream().await.cached_info().config.clone();
    assert_eq!(stream.metadata["partitions"], "8");
    assert_eq!(stream.metadata["made-by"], "tailpost setup");
}
