//! Which events are meant.

use serde_json::Value;
use support::TestEnv;
use uuid::Uuid;

use super::{copies, ids, replay};

async fn emit(env: &TestEnv, aggregate: &str, event_type: &str) -> Uuid {
    env.query(&format!("SELECT outbox_emit('order', '{aggregate}', '{event_type}', '{{}}')")).await
}

async fn lsn(env: &TestEnv, id: Uuid) -> String {
    env.query(&format!("SELECT commit_lsn::text FROM outbox_events WHERE id = '{id}'")).await
}

/// What a replay from each source publishes.
async fn both(env: &TestEnv, args: &[&str]) -> [Vec<Uuid>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for (source, found) in ["table", "stream"].into_iter().zip(&mut found) {
        let more = ["--source", source, "--execute", "--why", "a test"];
        let done = replay(env, 0, &[args, &more].concat()).await;
        *found = match done["id"].as_str() {
            Some(id) => ids(&copies(env, id).await),
            None => Vec::new(),
        };
    }
    found
}

/// Positions of rows that another cluster published say nothing here. They are left out of
/// what is chosen by position, and the plan says so.
// proves: G-REPLAY-3
#[tokio::test(flavor = "multi_thread")]
async fn positions_of_another_cluster_are_not_compared() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    env.insert(3).await;
    env.wait_marked().await;
    // As after a restore from a dump: the table has been in another cluster until now.
    env.execute(
        "INSERT INTO tailpost_epochs VALUES ('42', 1, now() - interval '1 day');
         UPDATE tailpost_epochs SET began_at = clock_timestamp() WHERE system_identifier <> '42'",
    )
    .await;
    let later = env.insert(2).await;
    env.wait_marked().await;
    let table = |plan: &Value| {
        let sources = plan["plans"][0]["sources"].as_array().expect("a list").clone();
        sources.into_iter().find(|it| it["source"] == "table").expect("the table")
    };
    let planned = table(&replay(&env, 0, &["--from-lsn", "0/0", "--source", "table"]).await);
    assert_eq!((&planned["events"], &planned["is_complete"]), (&2.into(), &false.into()));
    assert!(planned["note"].as_str().is_some_and(|it| it.starts_with("3 more rows")), "{planned}");
    let all = ["--from-lsn", "0/0", "--source", "table", "--execute", "--why", "a test"];
    let done = replay(&env, 0, &all).await;
    assert_eq!(ids(&copies(&env, done["id"].as_str().expect("an id")).await), later);
    assert_eq!(table(&replay(&env, 0, &["--since", "1h"]).await)["events"], 5);
}

/// Under other subjects, which only those see who ask for them.
// proves: G-REPLAY-1
#[tokio::test(flavor = "multi_thread")]
async fn events_can_be_published_under_other_subjects() {
    let env = TestEnv::new().await;
    env.setup().await;
    let _relay = env.relay();
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    let mut config = env.stream().await.cached_info().config.clone();
    config.subjects.push("replay.july.>".into());
    jetstream.update_stream(config).await.expect("add a subject");
    let events = env.insert(3).await;
    env.wait_marked().await;
    let args = ["--all", "--to-subject-prefix", "replay.july", "--execute", "--why", "a test"];
    let done = replay(&env, 0, &args).await;
    let stored = copies(&env, done["id"].as_str().expect("an id")).await;
    assert_eq!(ids(&stored), events);
    assert!(stored.iter().all(|it| it.subject.starts_with("replay.july.outbox.")), "{stored:?}");
    env.ends_with(0, &["verify"]).await;
}

mod long {
    use super::*;

    /// By position, by time, by id, by aggregate, by type; from either source the same.
    // proves: G-REPLAY-1
    #[tokio::test(flavor = "multi_thread")]
    async fn events_are_chosen_by_position_time_id_aggregate_and_type() {
        let env = TestEnv::new().await;
        env.setup().await;
        let _relay = env.relay();
        let a = emit(&env, "a", "OrderPlaced").await;
        let b = emit(&env, "b", "OrderPlaced").await;
        env.wait_marked().await;
        let noon: String = env.query("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')").await;
        let c = emit(&env, "a", "OrderPaid").await;
        let d = emit(&env, "b", "InvoiceSent").await;
        env.wait_marked().await;
        let same = |ids: &[Uuid]| [ids.to_vec(), ids.to_vec()];
        let (of_b, of_c) = (lsn(&env, b).await, lsn(&env, c).await);
        assert_eq!(both(&env, &["--from-lsn", &of_b, "--to-lsn", &of_c]).await, same(&[b, c]));
        assert_eq!(both(&env, &["--since", &noon]).await, same(&[c, d]));
        assert_eq!(both(&env, &["--until", &noon]).await, same(&[a, b]));
        let (id_a, id_d) = (a.to_string(), d.to_string());
        assert_eq!(both(&env, &["--event-id", &id_d, "--event-id", &id_a]).await, same(&[a, d]));
        assert_eq!(both(&env, &["--aggregate", "order:a"]).await, same(&[a, c]));
        assert_eq!(
            both(&env, &["--event-type", "Order*", "--since", "1h"]).await,
            same(&[a, b, c])
        );
        assert_eq!(both(&env, &["--aggregate", "order:none"]).await, same(&[]));
    }
}
