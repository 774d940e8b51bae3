//! Retention beside a relay at work.

use std::time::Duration;

use lab::Port;
use serde_json::Value;
use support::{DEADLINE, TestEnv, get, until};

use super::{age, env, left, maintain, stop, wait_watermark};

/// Rows go a second after they were published.
async fn not_set_up() -> TestEnv {
    let mut env = env().await;
    env.set("TAILPOST_RETENTION__PUBLISHED", "1s");
    env.set("TAILPOST_RETENTION__INTERVAL", "200ms");
    env
}

async fn hasty() -> TestEnv {
    let env = not_set_up().await;
    env.setup().await;
    env
}

async fn deleted(env: &TestEnv) -> i64 {
    env.query("SELECT coalesce(max(rows_deleted), 0) FROM tailpost_retention").await
}

async fn exact_under_load(mark: &str, seed: u64) {
    let mut env = hasty().await;
    env.set("TAILPOST_RELAY__MARK", mark);
    env.setup().await;
    let mut relay = env.relay();
    let load = env.load(seed, 2_000.0).await;
    for kills in 0..4 {
        let (gone, committed) = (deleted(&env).await, load.committed());
        until(DEADLINE, "rows are deleted while others come", async || {
            deleted(&env).await > gone + 500 && load.committed() > committed + 1_000
        })
        .await;
        if kills < 3 {
            relay.kill9().await;
            drop(relay);
            relay = env.relay();
        }
    }
    let written = load.stop().await;
    env.wait_confirmed().await;
    let count = written.committed.len() as u64;
    env.wait_stored(count).await;
    env.tally(&written).await.assert_exact();
    until(DEADLINE, "all rows are gone", async || left(&env).await.is_empty()).await;
    stop(relay).await;
    env.tally(&written).await.assert_exact();
}

/// Of several relays one does it, also for all shards; and operators see that it does.
// proves: G-RET-2
#[tokio::test(flavor = "multi_thread")]
async fn relays_delete_by_themselves_and_say_so() {
    let mut env = not_set_up().await;
    env.set_shards(2);
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let one = env.relay();
    one.wait_active().await;
    env.set("TAILPOST_ADMIN__LISTEN", "off");
    let other = env.relay();
    env.insert(50).await;
    until(DEADLINE, "all rows are gone", async || left(&env).await.is_empty()).await;
    until(DEADLINE, "each is counted once", async || deleted(&env).await == 50).await;
    let told = env.ends_with(0, &["status", "--json"]).await.0;
    let told: Value = serde_json::from_str(&told).expect("one JSON object");
    assert_eq!(told["retention"]["rows_deleted"], 50);
    assert!(told["retention"]["last_success_at"].is_string());
    assert!(told["retention"]["failure"].is_null());
    let metric = "tailpost_retention_last_success_timestamp_seconds";
    until(DEADLINE, "the metrics show the last success", async || {
        get(admin.addr(), "/metrics").await.unwrap_or_default().contains(metric)
    })
    .await;
    stop(one).await;
    stop(other).await;
}

/// What cannot be deleted stops nothing, is logged once, and is seen.
// proves: G-RET-2
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_retention_ends_nothing_and_is_told() {
    let mut env = hasty().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = env.relay();
    relay.wait_active().await;
    env.execute("ALTER TABLE tailpost_published_history RENAME TO elsewhere").await;
    let readyz = async |text: &str| {
        let told = get(admin.addr(), "/readyz").await.unwrap_or_default();
        told.starts_with("HTTP/1.1 200 ") && told.contains(text)
    };
    until(DEADLINE, "it is told", async || readyz("\"retention\":{\"ok\":false").await).await;
    env.insert(20).await;
    env.wait_marked().await;
    let failures = "tailpost_retention_failures_total";
    until(DEADLINE, "it is tried again", async || {
        let metrics = get(admin.addr(), "/metrics").await.unwrap_or_default();
        metrics.lines().any(|it| {
            let count = it.strip_prefix(failures).and_then(|it| it.rsplit_once(' '));
            count.and_then(|(_, it)| it.parse::<u64>().ok()).is_some_and(|it| it >= 3)
        })
    })
    .await;
    assert_eq!(relay.log().matches("could not delete old rows").count(), 1, "{}", relay.log());
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains("old rows could not be deleted"), "{told}");
    env.execute("ALTER TABLE elsewhere RENAME TO tailpost_published_history").await;
    until(DEADLINE, "all rows are gone", async || left(&env).await.is_empty()).await;
    until(DEADLINE, "it is well", async || readyz("\"retention\":{\"ok\":true").await).await;
    stop(relay).await;
}

/// Deleted rows are no findings, in whatever order they go; a message that never had a
/// row is one all the same.
// proves: G-VERIFY-2, G-RET-4
#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_nothing_where_retention_deleted_rows() {
    let env = env().await;
    env.setup().await;
    let relay = env.relay();
    let ids = env.insert_each(30).await;
    env.wait_marked().await;
    // All but the first and some in the middle.
    age(&env, &[&ids[3..10], &ids[15..25]].concat()).await;
    wait_watermark(&env).await;
    assert_eq!(maintain(&env, &[]).await["published"], 17);
    let verify = async |code| {
        let (told, said) = env.ends_with(code, &["verify", "--json"]).await;
        eprintln!("{said}");
        serde_json::from_str::<Value>(&told).expect("one JSON object")
    };
    // They were published now, and only look old.
    let phantoms = verify(1).await;
    assert_eq!(phantoms["counts"][0], serde_json::json!({ "kind": "phantom", "count": 17 }));
    env.execute("UPDATE tailpost_retention SET deleted_before = now()").await;
    let told = verify(0).await;
    let retention = told["unjudged"].as_array().expect("a list").iter();
    let retention: Vec<_> = retention.filter(|it| it["what"] == "retention").collect();
    assert_eq!(retention[0]["count"], 17);
    stop(relay).await;
}

/// A relay of this version beside tables of the one before publishes all the same.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_tables_of_retention_a_relay_publishes_and_says_what_is_missing() {
    let env = hasty().await;
    env.execute("DROP TABLE tailpost_retention").await;
    let relay = env.relay();
    env.insert(10).await;
    env.wait_marked().await;
    relay.wait_log("could not delete old rows").await;
    assert!(relay.log().contains("tailpost_retention"), "{}", relay.log());
    assert!(relay.log().contains("tailpost setup"), "{}", relay.log());
    tokio::time::timeout(Duration::from_secs(30), stop(relay)).await.expect("it stops");
}

mod long {
    use super::*;

    /// Beside live events, and whenever the relay is killed, each event is stored once and in
    /// order, and no row goes before it is published.
    // proves: G-RET-1
    #[tokio::test(flavor = "multi_thread")]
    async fn deleting_beside_a_relay_that_is_killed_costs_no_event() {
        exact_under_load("row", 41).await;
    }

    /// The same for rows without marks of their own.
    // proves: G-RET-1
    #[tokio::test(flavor = "multi_thread")]
    async fn deleting_rows_without_marks_costs_no_event() {
        exact_under_load("lean", 42).await;
    }
}
