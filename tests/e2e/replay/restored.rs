//! What the stream has lost comes back.

use std::collections::HashSet;

use support::{DEADLINE, TestEnv, until};

use super::{copies, ids, in_commit_order, replay, wait_done};

/// Rows that were deleted come back from the stream, and copies of earlier replays are not copied.
// proves: G-REPLAY-1
#[tokio::test(flavor = "multi_thread")]
async fn what_the_stream_has_is_published_again_without_a_row() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let events = env.insert_each(20).await;
    env.wait_marked().await;
    env.execute("DELETE FROM outbox_events").await;
    for _ in 0..2 {
        let done = replay(&env, 0, &["--all", "--execute", "--why", "again"]).await;
        assert_eq!((&done["source"], &done["published"]), (&"stream".into(), &20.into()));
        let stored = copies(&env, done["id"].as_str().expect("an id")).await;
        assert_eq!(ids(&stored), events);
    }
    assert_eq!(env.stored_count().await, 60);
}

/// What `tailpost explain` says of the events of that replay.
async fn assert_explained(env: &TestEnv, events: &[uuid::Uuid], replay: &str) {
    for (event, outcome, told) in [
        (events[4], "published", "published again, "),
        (events[3], "failed", "could not be published again: its row is gone, "),
    ] {
        let (text, _) = env.ends_with(0, &["explain", &event.to_string()]).await;
        assert!(text.contains(&format!("replay        {told}{replay}, done")), "{text}");
        let (json, _) = env.ends_with(0, &["explain", &event.to_string(), "--json"]).await;
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["replays"][0]["id"], replay, "{json}");
        assert_eq!(json["replays"][0]["outcome"], outcome, "{json}");
    }
    // Of another event, and of one that came later, it was no replay.
    let later = env.insert(1).await[0].to_string();
    env.wait_marked().await;
    let (json, _) = env.ends_with(0, &["explain", &later, "--json"]).await;
    assert!(json.contains("\"replays\":[]"), "{json}");
}

/// What is written down of an old replay goes, with its list; never the newest.
async fn assert_forgotten(env: &TestEnv, replay: &str) {
    let next = super::ask(env, &["--all", "--source", "stream"]).await;
    wait_done(env, &next).await;
    env.execute("UPDATE tailpost_replays SET ended_at = now() - interval '89 days'").await;
    let (told, _) = env.ends_with(0, &["maintain"]).await;
    assert!(told.contains("  replays      0 ended ones deleted"), "{told}");
    env.execute("UPDATE tailpost_replays SET ended_at = now() - interval '91 days'").await;
    let (told, _) = env.ends_with(0, &["maintain", "--dry-run"]).await;
    assert!(told.contains("  replays      1 ended ones to delete"), "{told}");
    let (told, _) = env.ends_with(0, &["maintain"]).await;
    assert!(told.contains("  replays      1 ended ones deleted"), "{told}");
    env.ends_with(3, &["replays", "show", replay]).await;
    let left = "SELECT count(*) FROM tailpost_replay_events";
    assert_eq!(env.query::<i64>(left).await, 0);
    env.ends_with(0, &["replays", "show", &next]).await;
}

mod long {
    use super::*;

    /// Somebody purges the stream. A replay from the first position brings every event
    /// back, in order; and verify says so, before and after.
    // proves: G-REPLAY-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_purged_stream_is_restored_in_order() {
        let env = TestEnv::new().await;
        env.setup().await;
        env.insert(50).await; // not brought by the log
        let _relay = env.relay();
        env.wait_stored(50).await;
        let load = env.load(3, 500.0).await;
        load.wait_committed(500).await;
        env.finish(load).await;
        let all = in_commit_order(&env).await;
        let originals = env.stored().await;
        env.purge().await;

        let verified =
            |told: &str| -> serde_json::Value { serde_json::from_str(told).expect("JSON") };
        let (told, _) = env.ends_with(1, &["verify", "--json"]).await;
        assert_eq!(verified(&told)["counts"][0]["count"], all.len(), "{told}");
        let planned = replay(&env, 0, &["--all"]).await;
        let plan = &planned["plans"][0];
        assert_eq!((&plan["chosen"], &plan["events"]), (&"table".into(), &all.len().into()));
        assert_eq!(env.stored_count().await, 0, "a plan publishes nothing");

        let done = replay(&env, 0, &["--all", "--execute", "--why", "purged by accident"]).await;
        assert_eq!(done["status"], "done");
        assert_eq!((&done["published"], &done["failed"]), (&all.len().into(), &0.into()));
        let id = done["id"].as_str().expect("an id");
        let copies = copies(&env, id).await;
        assert_eq!(ids(&copies), all);
        for copy in &copies {
            let event = copy.event();
            assert_eq!(copy.header("Nats-Msg-Id"), Some(&*format!("{}.{id}", event.id)));
            let original = originals.iter().find(|it| it.event().id == event.id);
            let original = original.expect("the event was stored");
            assert_eq!((&event, &copy.subject), (&original.event(), &original.subject));
            if original.header("Tailpost-Position-Event").is_none() {
                let position = copy.header("Tailpost-Position");
                assert_eq!(position, original.header("Tailpost-Position"));
            }
        }
        let (told, _) = env.ends_with(0, &["verify", "--json"]).await;
        assert_eq!(verified(&told)["matched"], all.len(), "{told}");
        // What comes next is published as ever.
        let next = env.insert(5).await;
        env.wait_marked().await;
        assert_eq!(ids(&env.stored().await)[all.len()..], next);
    }

    /// A row that is gone is listed, and the others are published.
    // proves: G-REPLAY-2
    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_published_again_is_listed() {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
        env.setup().await;
        let relay = env.relay();
        let events = env.insert_each(10).await;
        env.wait_marked().await;
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        let id = super::super::ask(&env, &["--all", "--source", "table"]).await;
        env.execute(&format!("DELETE FROM outbox_events WHERE id = '{}'", events[3])).await;
        let too_much = format!(
            "UPDATE outbox_events SET payload = jsonb_build_object('x', repeat('x', 2000000))
             WHERE id = '{}'",
            events[5]
        );
        env.execute(&too_much).await;
        let _relay = env.relay();
        let done = wait_done(&env, &id).await;
        assert_eq!((&done["published"], &done["failed"]), (&8.into(), &2.into()), "{done}");
        let failures = done["failures"].as_array().expect("a list");
        assert_eq!(failures[0]["event"], events[3].to_string());
        assert_eq!(failures[0]["reason"], "its row is gone");
        assert_eq!(failures[1]["event"], events[5].to_string());
        let stored: HashSet<_> = ids(&copies(&env, &id).await).into_iter().collect();
        assert_eq!(stored.len(), 8);
        let (_, said) = env.ends_with(1, &["replays", "show", &id, "--follow"]).await;
        assert!(said.contains("2 events could not be published again"), "{said}");
        assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_dead_letter").await, 0);
        assert_explained(&env, &events, &id).await;
        assert_forgotten(&env, &id).await;
        until(DEADLINE, "the relay goes on", async || env.unmarked().await == 0).await;
    }
}
