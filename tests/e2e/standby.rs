//! A commit that waits for a synchronous standby is in the log before it is visible.

use std::time::Duration;

use support::{DEADLINE, Rig, RigOptions, until};
use testbed::NatsOptions;

async fn wait_for_a_standby_that_does_not_exist(rig: &Rig) {
    rig.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    rig.execute("SELECT pg_reload_conf()").await;
    let shown = "SELECT current_setting('synchronous_standby_names')";
    until(DEADLINE, "commits wait", async || rig.query::<String>(shown).await == "nobody").await;
}

async fn let_commits_through(rig: &Rig) {
    rig.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    rig.execute("SELECT pg_reload_conf()").await;
}

/// A watermark taken while a row is not visible does not cover it: it must not be the last.
async fn wait_for_a_watermark(rig: &Rig) {
    let taken: String = rig.query("SELECT clock_timestamp()::TEXT").await;
    let later = format!("SELECT watermark_at > '{taken}' FROM tailpost_state");
    until(DEADLINE, "a watermark", async || rig.query::<Option<bool>>(&later).await == Some(true))
        .await;
}

/// How many rows there are, and how many of them are not published.
async fn rows(rig: &Rig) -> (i64, i64) {
    let row = "SELECT count(*), count(*) FILTER (WHERE status <> 'PUBLISHED') FROM outbox_status";
    let row = rig.client().await.query_one(row, &[]).await.expect(row);
    (row.get(0), row.get(1))
}

async fn announced_before_it_is_visible(mark: &str) {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_RELAY__MARK", mark);
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let _relay = rig.relay();
    rig.insert(1).await;
    let kept = i64::from(mark != "delete");
    until(DEADLINE, "it is marked", async || rows(&rig).await == (kept, 0)).await;

    wait_for_a_standby_that_does_not_exist(&rig).await;
    let writer = rig.client().await;
    let commit = tokio::spawn(async move {
        writer.execute("SELECT outbox_emit('order', 'o-1', 'Waiting', '{}')", &[]).await
    });
    rig.wait_stored(2).await;
    assert_eq!(rows(&rig).await.0, kept);
    wait_for_a_watermark(&rig).await;
    assert_eq!(rows(&rig).await.0, kept);
    assert!(!commit.is_finished());

    let_commits_through(&rig).await;
    commit.await.expect("no panic").expect("the commit goes through");
    let soon = Duration::from_secs(10);
    until(soon, "it is marked", async || rows(&rig).await == (2 * kept, 0)).await;
    assert_eq!(rig.stored_count().await, 2);

    // With nothing left to mark, watermarks stop.
    let idle = "SELECT clock_timestamp() - watermark_at > '3s' FROM tailpost_state";
    until(Duration::from_secs(20), "watermarks rest", async || rig.query::<bool>(idle).await).await;
    assert_eq!(rig.stored_count().await, 2);
}

/// R-REL-04, R-REL-02
#[tokio::test(flavor = "multi_thread")]
async fn an_event_announced_before_it_is_visible_is_published_once_and_marked_later() {
    announced_before_it_is_visible("row").await;
}

/// R-REL-04, R-REL-02
#[tokio::test(flavor = "multi_thread")]
async fn an_event_announced_before_it_is_visible_is_published_once_and_deleted_later() {
    announced_before_it_is_visible("delete").await;
}

/// R-REL-04, R-REL-02: rows that become visible just when their deletion has missed them are not taken
/// for such as the log did not bring.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_become_visible_a_moment_after_they_were_to_be_deleted_are_published_once() {
    const ROUNDS: u64 = 5;
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_RELAY__MARK", "delete");
    rig.set("TAILPOST_RELAY__MARK_INTERVAL", "1ms");
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let _relay = rig.relay();
    for round in 1..=ROUNDS {
        wait_for_a_standby_that_does_not_exist(&rig).await;
        let writer = rig.client().await;
        let commit = tokio::spawn(async move {
            writer.execute("SELECT outbox_emit('order', 'o-1', 'Waiting', '{}')", &[]).await
        });
        rig.wait_stored(round).await;
        let_commits_through(&rig).await;
        commit.await.expect("no panic").expect("the commit goes through");
        until(DEADLINE, "it is deleted", async || rows(&rig).await == (0, 0)).await;
    }
    assert_eq!(rig.stored_count().await, ROUNDS);
}

/// R-REL-04, R-REL-02
#[tokio::test(flavor = "multi_thread")]
async fn an_event_announced_before_it_is_visible_is_covered_once_it_is() {
    announced_before_it_is_visible("watermark").await;
}

/// R-REL-04, R-REL-10
#[tokio::test(flavor = "multi_thread")]
async fn an_event_parked_before_it_is_visible_leaves_the_outbox_later() {
    let nats = NatsOptions { max_payload: Some(2_048), ..NatsOptions::default() };
    let rig = Rig::with(RigOptions { nats, ..RigOptions::default() }).await;
    rig.setup().await;
    // The relay's own commits must not wait, or the dead letter would be late as well.
    rig.execute("ALTER DATABASE postgres SET synchronous_commit = local").await;
    let _relay = rig.relay();
    wait_for_a_standby_that_does_not_exist(&rig).await;
    let writer = rig.client().await;
    let commit = tokio::spawn(async move {
        let sql = "SET synchronous_commit = on;
             SELECT outbox_emit('order', 'o-1', 'Huge', jsonb_build_object('a', repeat('x', 5000)))";
        writer.batch_execute(sql).await
    });
    let dead = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "the event is parked", async || rig.query::<i64>(dead).await == 1).await;
    wait_for_a_watermark(&rig).await;
    assert_eq!(rig.query::<i64>("SELECT count(*) FROM outbox_events").await, 0);
    let_commits_through(&rig).await;
    commit.await.expect("no panic").expect("the commit goes through");

    let rows = "SELECT count(*) FROM outbox_events";
    until(DEADLINE, "the row is gone", async || rig.query::<i64>(rows).await == 0).await;
    assert_eq!(rig.query::<i64>(dead).await, 1);
    assert_eq!(rig.stored_count().await, 0);
}
