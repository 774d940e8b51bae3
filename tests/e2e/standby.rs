//! A commit that waits for a synchronous standby is in the log before it is visible.

use std::time::Duration;

use lab::NatsOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

async fn wait_for_a_standby_that_does_not_exist(env: &TestEnv) {
    let client = env.client().await;
    env.postgres.wait_for_standbys(&client, "nobody").await.expect("let commits wait");
}

async fn let_commits_through(env: &TestEnv) {
    env.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    env.execute("SELECT pg_reload_conf()").await;
}

/// A watermark taken while a row is not visible does not cover it: it must not be the last.
async fn wait_for_a_watermark(env: &TestEnv) {
    let taken: String = env.query("SELECT clock_timestamp()::TEXT").await;
    let later = format!("SELECT watermark_at > '{taken}' FROM tailpost_state");
    until(DEADLINE, "a watermark", async || env.query::<Option<bool>>(&later).await == Some(true))
        .await;
}

/// How many rows there are, and how many of them are not published.
async fn rows(env: &TestEnv) -> (i64, i64) {
    let row = "SELECT count(*), count(*) FILTER (WHERE status <> 'PUBLISHED') FROM outbox_status";
    let row = env.client().await.query_one(row, &[]).await.expect(row);
    (row.get(0), row.get(1))
}

async fn announced_before_it_is_visible(mark: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", mark);
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let _relay = env.relay();
    env.insert(1).await;
    let kept = i64::from(mark != "delete");
    until(DEADLINE, "it is marked", async || rows(&env).await == (kept, 0)).await;

    wait_for_a_standby_that_does_not_exist(&env).await;
    let writer = env.client().await;
    let commit = tokio::spawn(async move {
        writer.execute("SELECT outbox_emit('order', 'o-1', 'Waiting', '{}')", &[]).await
    });
    env.wait_stored(2).await;
    assert_eq!(rows(&env).await.0, kept);
    wait_for_a_watermark(&env).await;
    assert_eq!(rows(&env).await.0, kept);
    assert!(!commit.is_finished());

    let_commits_through(&env).await;
    commit.await.expect("no panic").expect("the commit goes through");
    let soon = Duration::from_secs(10);
    until(soon, "it is marked", async || rows(&env).await == (2 * kept, 0)).await;
    assert_eq!(env.stored_count().await, 2);

    // With nothing left to mark, watermarks stop.
    let idle = "SELECT clock_timestamp() - watermark_at > '3s' FROM tailpost_state";
    until(Duration::from_secs(20), "watermarks rest", async || env.query::<bool>(idle).await).await;
    assert_eq!(env.stored_count().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_announced_before_it_is_visible_is_published_once_and_marked_later() {
    announced_before_it_is_visible("row").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_announced_before_it_is_visible_is_published_once_and_deleted_later() {
    announced_before_it_is_visible("delete").await;
}

/// Rows that become visible just when their deletion has missed them are not taken
/// for such as the log did not bring.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_become_visible_a_moment_after_they_were_to_be_deleted_are_published_once() {
    const ROUNDS: u64 = 5;
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", "delete");
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    let _relay = env.relay();
    for round in 1..=ROUNDS {
        wait_for_a_standby_that_does_not_exist(&env).await;
        let writer = env.client().await;
        let commit = tokio::spawn(async move {
            writer.execute("SELECT outbox_emit('order', 'o-1', 'Waiting', '{}')", &[]).await
        });
        env.wait_stored(round).await;
        let_commits_through(&env).await;
        commit.await.expect("no panic").expect("the commit goes through");
        until(DEADLINE, "it is deleted", async || rows(&env).await == (0, 0)).await;
    }
    assert_eq!(env.stored_count().await, ROUNDS);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_announced_before_it_is_visible_is_covered_once_it_is() {
    announced_before_it_is_visible("lean").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_parked_before_it_is_visible_leaves_the_outbox_later() {
    let nats = NatsOptions { max_payload: Some(2_048), ..NatsOptions::default() };
    let env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    // The relay's own commits must not wait, or the dead letter would be late as well.
    env.execute("ALTER DATABASE postgres SET synchronous_commit = local").await;
    let _relay = env.relay();
    wait_for_a_standby_that_does_not_exist(&env).await;
    let writer = env.client().await;
    let commit = tokio::spawn(async move {
        let sql = "SET synchronous_commit = on;
             SELECT outbox_emit('order', 'o-1', 'Huge', jsonb_build_object('a', repeat('x', 5000)))";
        writer.batch_execute(sql).await
    });
    let dead = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "the event is parked", async || env.query::<i64>(dead).await == 1).await;
    wait_for_a_watermark(&env).await;
    assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_events").await, 0);
    let_commits_through(&env).await;
    commit.await.expect("no panic").expect("the commit goes through");

    let rows = "SELECT count(*) FROM outbox_events";
    until(DEADLINE, "the row is gone", async || env.query::<i64>(rows).await == 0).await;
    assert_eq!(env.query::<i64>(dead).await, 1);
    assert_eq!(env.stored_count().await, 0);
}

/// Its row comes after the dead letter, and a key keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_row_of_a_parked_event_that_will_not_go_is_named() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.execute("CREATE TABLE refers (id uuid CONSTRAINT its REFERENCES outbox_events)").await;
    env.execute("ALTER DATABASE postgres SET synchronous_commit = local").await;
    let _relay = env.relay();
    wait_for_a_standby_that_does_not_exist(&env).await;
    let writer = env.client().await;
    let commit = tokio::spawn(async move {
        let sql = "SET synchronous_commit = on; INSERT INTO refers
             SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')";
        writer.batch_execute(sql).await
    });
    let dead = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "the event is parked", async || env.query::<i64>(dead).await == 1).await;
    wait_for_a_watermark(&env).await;
    let_commits_through(&env).await;
    commit.await.expect("no panic").expect("the commit goes through");
    let named = "SELECT count(*) FROM tailpost_owed WHERE reason LIKE 'constraint its refuses%'";
    until(DEADLINE, "it is named", async || env.query::<i64>(named).await == 1).await;
    env.execute("ALTER TABLE refers DROP CONSTRAINT its").await;
    let rows = "SELECT count(*) FROM outbox_events";
    until(DEADLINE, "the row is gone", async || env.query::<i64>(rows).await == 0).await;
}
