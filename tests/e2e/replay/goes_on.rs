//! A replay goes on where it was, beside what is new.

use std::collections::HashMap;

use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use super::{ask, copies, ids, in_commit_order, wait_done};

/// Events that are replayed.
const OLD: usize = 3_000;

/// Kills relays while they replay beside a load, with a duplicate window that forgets at once.
async fn is_killed_and_goes_on(mut env: TestEnv) {
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let mut relay = env.relay();
    let load = env.load(11, 3_000.0).await;
    load.wait_committed(OLD as u64).await;
    let _ = load.stop().await;
    env.wait_marked().await;
    let old = in_commit_order(&env).await;
    let load = env.load(12, 300.0).await;
    let id = ask(&env, &["--all", "--source", "table", "--rate", "800"]).await;
    let status = format!("SELECT status FROM tailpost_replays WHERE id = '{id}'");
    let sent = format!("SELECT published FROM tailpost_replays WHERE id = '{id}'");
    let (mut kills, mut before) = (0, 0);
    while env.query::<String>(&status).await != "done" {
        until(DEADLINE, "the replay goes on", async || {
            env.query::<i64>(&sent).await > before || env.query::<String>(&status).await == "done"
        })
        .await;
        before = env.query::<i64>(&sent).await;
        if kills < 6 {
            relay.kill9().await;
            relay = env.relay();
            kills += 1;
        }
    }
    assert!(kills > 0, "it was done before a relay was killed");
    let done = wait_done(&env, &id).await;
    assert_eq!(done["failed"], 0, "{done}");
    let written = load.stop().await;
    assert!(!written.committed.is_empty());
    env.wait_marked().await;

    let copied = ids(&copies(&env, &id).await);
    assert!(copied.len() >= old.len());
    assert_each_once_in_order(&env, &copied[..], &old).await;
    assert_eq!(done["published"], copied.len(), "{done}");
    let (told, _) = env.ends_with(0, &["verify", "--json"]).await;
    assert!(told.contains("\"findings\":[]"), "{told}");
}

/// The order of each aggregate, and in fenced mode all of it.
async fn assert_each_once_in_order(env: &TestEnv, copied: &[Uuid], old: &[Uuid]) {
    let rows = env.client().await.query("SELECT id, aggregate_id FROM outbox_events", &[]).await;
    let aggregates: HashMap<Uuid, String> =
        rows.expect("rows").iter().map(|it| (it.get(0), it.get(1))).collect();
    let by_aggregate = |ids: &[Uuid]| {
        let mut all: HashMap<String, Vec<Uuid>> = HashMap::new();
        for id in ids {
            all.entry(aggregates[id].clone()).or_default().push(*id);
        }
        all
    };
    let (copied, old) = (by_aggregate(copied), by_aggregate(old));
    for (aggregate, ids) in &old {
        assert_eq!(copied.get(aggregate).map(|it| &it[..ids.len()]), Some(&ids[..]), "{aggregate}");
    }
}

mod long {
    use super::*;

    // proves: G-REPLAY-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_at_any_moment_a_replay_stores_each_event_once_in_fenced_mode() {
        is_killed_and_goes_on(TestEnv::new().await).await;
    }

    // proves: G-REPLAY-1
    #[tokio::test(flavor = "multi_thread")]
    async fn killed_at_any_moment_a_replay_stores_each_event_once_in_keyed_mode() {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", "keyed");
        is_killed_and_goes_on(env).await;
    }
}
