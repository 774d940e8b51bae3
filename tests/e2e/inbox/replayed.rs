//! Replays, as a consumer with an inbox sees them.

use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream;
use serde_json::Value;
use support::{Relay, TestEnv};
use uuid::Uuid;

use super::{Inbox, TABLES, Worker};

async fn relayed() -> (Inbox, Relay, Worker) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "500ms");
    env.setup().await;
    let mut client = env.client().await;
    inbox::create_tables(&mut client, "public").await.expect("create the tables");
    env.execute(TABLES).await;
    let jetstream = jetstream::new(env.nats.client().await.expect("connect to NATS"));
    let variables = vec![
        ("DATABASE_URL".to_owned(), env.postgres.url("postgres")),
        ("NATS_URL".to_owned(), env.nats.url()),
    ];
    let relay = env.relay();
    let inbox = Inbox { env, jetstream, variables, partitions: None };
    let worker = inbox.worker();
    (inbox, relay, worker)
}

/// Copies have the times of their events, too.
// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_skips_what_a_replay_brings_again_of_events_that_were_given_no_time() {
    let (inbox, _relay, _worker) = relayed().await;
    inbox
        .env
        .execute(
            "INSERT INTO outbox_events
                 (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
             SELECT gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', NULL
             FROM generate_series(1, 20)",
        )
        .await;
    inbox.wait_count("effects", 20).await;
    inbox.env.wait_marked().await;
    let replay = ["replay", "--all", "--source", "table", "--execute", "--why", "a test"];
    inbox.env.ends_with(0, &replay).await;
    inbox.env.wait_stored(40).await;
    let mut times: BTreeMap<Uuid, BTreeSet<String>> = BTreeMap::new();
    for it in inbox.env.stored().await {
        let time = it.header("Occurred-At").expect("a time").to_owned();
        times.entry(it.id).or_default().insert(time);
    }
    assert!(times.len() == 20 && times.values().all(|it| it.len() == 1), "{times:?}");
    inbox.wait_acked().await;
    inbox.assert_exact(20).await;
}

mod long {
    use super::*;

    /// Copies have the ids of their events. What is processed is skipped, and what is new has
    /// its effect beside it.
    // proves: G-EFFECT-1
    #[tokio::test(flavor = "multi_thread")]
    async fn an_inbox_skips_what_a_replay_brings_again() {
        let (inbox, _relay, _worker) = relayed().await;
        let load = inbox.env.load(5, 300.0).await;
        load.wait_committed(200).await;
        let committed = i64::try_from(inbox.env.finish(load).await.committed).expect("it fits");
        inbox.wait_count("effects", committed).await;
        inbox.wait_acked().await;
        let (told, _) = inbox.env.ends_with(0, &["replay", "--all", "--json"]).await;
        let planned: Value = serde_json::from_str(&told).expect("JSON");
        let plan = &planned["plans"][0];
        assert_eq!(plan["with_inbox"].as_array().map(Vec::len), Some(1), "{told}");
        assert_eq!(plan["without_inbox"].as_array().map(Vec::len), Some(0), "{told}");

        let beside = inbox.env.load(6, 300.0).await;
        inbox.env.ends_with(0, &["replay", "--all", "--execute", "--why", "a test"]).await;
        let written = beside.stop().await;
        inbox.env.wait_marked().await;
        let all = committed + i64::try_from(written.committed.len()).expect("it fits");
        inbox.wait_count("effects", all).await;
        inbox.wait_acked().await;
        inbox.assert_exact(all).await;
    }
}
