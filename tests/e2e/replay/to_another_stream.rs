//! Copies go to another stream than the relay's own, and that one's troubles are nobody else's.

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use super::{ask, copies, ids, in_commit_order, replay, shown, wait_done};

const TO: [&str; 4] = ["--to-stream", "COPIES", "--to-subject-prefix", "replay"];

/// Makes the other stream, or changes it. It forgets ids at once.
async fn copies_are_stored(env: &TestEnv, max_messages: i64) {
    let config = Config {
        name: "COPIES".into(),
        subjects: vec!["replay.>".into()],
        duplicate_window: std::time::Duration::from_millis(100),
        discard: DiscardPolicy::New,
        max_messages,
        ..Config::default()
    };
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.create_or_update_stream(config).await.expect("make the stream");
}

/// A relay's environment, with events that were published.
async fn env_with(events: i32) -> (TestEnv, Vec<Uuid>) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let relay = env.relay();
    env.insert(events).await;
    env.insert_each(20).await;
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    let all = in_commit_order(&env).await;
    (env, all)
}

async fn published(env: &TestEnv, id: &str) -> i64 {
    env.query(&format!("SELECT published FROM tailpost_replays WHERE id = '{id}'")).await
}

async fn stored_there(env: &TestEnv) -> Vec<Uuid> {
    ids(&env.stored_in("COPIES").await)
}

// proves: G-REPLAY-8
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_a_replay_stores_each_event_once_in_another_stream() {
    let (env, all) = env_with(580).await;
    copies_are_stored(&env, -1).await;
    let mut relay = env.relay();
    let args = [&["--all", "--source", "table", "--rate", "200"], &TO[..]].concat();
    let id = ask(&env, &args).await;
    let status = format!("SELECT status FROM tailpost_replays WHERE id = '{id}'");
    let (mut kills, mut before) = (0, 0);
    while env.query::<String>(&status).await != "done" {
        until(DEADLINE, "the replay goes on", async || {
            published(&env, &id).await > before || env.query::<String>(&status).await == "done"
        })
        .await;
        before = published(&env, &id).await;
        if kills < 5 {
            relay.kill9().await;
            relay = env.relay();
            kills += 1;
        }
    }
    assert!(kills > 2, "only {kills} kills");
    let done = wait_done(&env, &id).await;
    assert_eq!((&done["published"], &done["failed"]), (&all.len().into(), &0.into()), "{done}");
    assert_eq!(stored_there(&env).await, all);
    let there = env.stored_in("COPIES").await;
    assert!(there.iter().all(|it| it.subject.starts_with("replay.outbox.")));
    assert!(there.iter().all(|it| it.header("Tailpost-Replay") == Some(&*id)));
    assert!(copies(&env, &id).await.is_empty(), "the relay's own stream has none");
    env.ends_with(0, &["verify"]).await;
}

// proves: G-REPLAY-8
#[tokio::test(flavor = "multi_thread")]
async fn another_stream_that_is_full_holds_up_its_replay_and_nothing_else() {
    let (env, all) = env_with(30).await;
    copies_are_stored(&env, 10).await;
    let _relay = env.relay();
    let id = ask(&env, &[&["--all", "--source", "table"], &TO[..]].concat()).await;
    let is_told = async || {
        let told = shown(&env, &id).await["waits_for"].to_string();
        told.contains("maximum messages exceeded")
    };
    until(DEADLINE, "it waits, and says why", is_told).await;
    env.insert(5).await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, all.len() as u64 + 5, "new events are published");
    assert_eq!(stored_there(&env).await, all[..10]);
    copies_are_stored(&env, 1_000).await;
    // It may be paused by now: that depends on how long this took.
    let goes_on = async || {
        if shown(&env, &id).await["status"] == "paused" {
            env.ends_with(0, &["replays", "resume", &id]).await;
        }
        stored_there(&env).await.len() == all.len()
    };
    until(DEADLINE, "it goes on", goes_on).await;
    let done = wait_done(&env, &id).await;
    assert_eq!((&done["failed"], &done["waits_for"]), (&0.into(), &serde_json::Value::Null));
    assert_eq!(stored_there(&env).await, all);
}

// proves: G-REPLAY-8
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_to_a_stream_that_is_deleted_is_paused_with_the_reason() {
    let (env, all) = env_with(80).await;
    copies_are_stored(&env, -1).await;
    let _relay = env.relay();
    let args = [&["--all", "--source", "table", "--rate", "20"], &TO[..]].concat();
    let id = ask(&env, &args).await;
    until(DEADLINE, "it has begun", async || published(&env, &id).await > 5).await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.delete_stream("COPIES").await.expect("delete the stream");
    let is_paused = async || shown(&env, &id).await["status"] == "paused";
    until(DEADLINE, "it is paused", is_paused).await;
    let told = shown(&env, &id).await;
    assert_eq!(told["decisions"][0]["by"], "the relay", "{told}");
    assert!(told["decisions"][0]["why"].to_string().contains("stream"), "{told}");
    let before = usize::try_from(published(&env, &id).await).expect("small");
    env.insert(5).await;
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, all.len() as u64 + 5, "new events are published");
    // What was stored before is gone with the stream.
    copies_are_stored(&env, -1).await;
    env.ends_with(0, &["replays", "resume", &id]).await;
    wait_done(&env, &id).await;
    assert_eq!(stored_there(&env).await, all[before..]);
}

/// Before it begins.
// proves: G-REPLAY-8
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_cannot_store_the_copies_is_refused() {
    let (env, _) = env_with(10).await;
    let refused = async |code, to: &[&str], why: &str| {
        let args = [&["replay", "--all", "--source", "table"], to].concat();
        let (_, said) = env.ends_with(code, &args).await;
        assert!(said.contains(why), "{said}");
    };
    refused(4, &TO, "it does not exist").await;
    copies_are_stored(&env, 20).await;
    let prefix = ["--to-subject-prefix", "other"];
    refused(4, &[&TO[..2], &prefix[..]].concat(), "does not store subjects").await;
    refused(4, &TO[..2], "give --to-subject-prefix").await;
    refused(4, &["--to-stream", "OUTBOX", TO[2], TO[3]], "is the relay's own").await;
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let queue = Config {
        name: "QUEUE".into(),
        subjects: vec!["queue.>".into()],
        retention: async_nats::jetstream::stream::RetentionPolicy::WorkQueue,
        ..Config::default()
    };
    jetstream.create_stream(queue).await.expect("make the stream");
    let queue = ["--to-stream", "QUEUE", "--to-subject-prefix", "queue"];
    refused(4, &queue, "retention is not by limits").await;
    let plan = replay(&env, 0, &[&["--all", "--source", "table"], &TO[..]].concat()).await;
    let warnings = plan["plans"][0]["warnings"].to_string();
    assert!(warnings.contains("max_msgs is 20") && warnings.contains("takes nothing"), "{plan}");
}
