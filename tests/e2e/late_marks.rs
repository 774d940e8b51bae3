//! Marks that PostgreSQL writes more slowly than it sends its log.

use std::time::Instant;

use rustix::process::Pid;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

/// A broker that forgets ids at once, so that a second publication would be stored.
async fn env() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    env
}

/// Stops the relay's connection for marks. Returns the events so far, too.
async fn stop_first(env: &TestEnv) -> (Pid, Vec<Uuid>) {
    // A session opens with statements on this connection, and is idle between them. The relay works
    // once it has marked something.
    let ids = env.insert(1).await;
    env.wait_marked().await;
    (env.stop_backend("tailpost marks").await, ids)
}

const SECOND: &str = "tailpost marks 2";

/// Rows that nobody should have left unmarked are looked for once an hour, whoever
/// does it and however often relays are started.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_table_is_looked_at_when_that_is_due_and_not_when_the_relay_was_started() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.execute(crate::scanner::DOCUMENTED_TABLE).await;
    let old = env.insert(3).await;
    env.ends_with(0, &["setup"]).await;
    env.execute("CREATE INDEX idx_outbox_txid ON outbox_events (txid)").await;
    let relay = env.relay();
    let new = env.insert(3).await;
    env.wait_marked().await;
    let fresh = "SELECT count(*) FROM tailpost_state WHERE gap_filled_at IS NOT NULL
                     AND swept_lsn > start_lsn
                     AND least(scanned_at, whole_swept_at) > now() - interval '30 minutes'";
    until(DEADLINE, "both looks are noted", async || env.query::<i64>(fresh).await == 1).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    // Their marks are taken away, and an hour passes.
    env.execute(
        "UPDATE outbox_events SET published_at = NULL;
         UPDATE tailpost_state SET scanned_at = now() - interval '61 minutes',
             whole_swept_at = now() - interval '61 minutes'",
    )
    .await;
    let _relay = env.relay();
    env.wait_marked().await;
    until(DEADLINE, "both looks are noted", async || env.query::<i64>(fresh).await == 1).await;
    let ids = env.stored_ids().await;
    assert_eq!(ids, [old, new].concat(), "the stream had them");
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn marks_that_are_late_are_written_over_a_second_connection_until_they_are_not() {
        const ROWS: i32 = 40_000;
        let env = env().await;
        let relay = env.relay();
        relay.wait_active().await;
        let (first, mut ids) = stop_first(&env).await;
        ids.extend(env.insert(ROWS).await);
        // All but the two statements that wait, and what is not worth a statement.
        until(DEADLINE, "the second one marks", async || env.unmarked().await <= 15_000).await;
        assert!(env.unmarked().await > 0, "the first one was not stopped: the test proves nothing");
        relay.wait_log("marks are late").await;
        env.resume_backend(first);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        let places = "SELECT count(DISTINCT stream_seq) FROM outbox_events";
        assert_eq!(
            env.query::<i64>(places).await,
            i64::from(ROWS) + 1,
            "none was left to the sweeper"
        );
        let open =
            format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{SECOND}'");
        until(DEADLINE, "the second is closed", async || env.query::<i64>(&open).await == 0).await;
    }

    /// When the table was analysed last, no row waited. (Asked plainly, PostgreSQL then looks at
    /// all that wait for each row that is to be marked.)
    #[tokio::test(flavor = "multi_thread")]
    async fn marks_are_quick_also_where_the_planner_expects_no_backlog() {
        let env = env().await;
        let relay = env.relay();
        let mut ids = env.insert(10_000).await;
        env.wait_marked().await;
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        env.execute("VACUUM ANALYZE outbox_events").await;
        ids.extend(env.insert(40_000).await);
        let relay = env.relay();
        env.wait_stored(50_000).await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        let places = "SELECT count(DISTINCT stream_seq) FROM outbox_events";
        assert_eq!(env.query::<i64>(places).await, 50_000, "none was left to the sweeper");
        assert!(!relay.log().contains("left rows to be marked later"), "{}", relay.log());
    }

    /// What is lost with the second connection is what was on its way over it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_second_connection_that_breaks_takes_few_marks_with_it() {
        const ROWS: i32 = 60_000;
        let env = env().await;
        let ids = env.insert(ROWS).await;
        let mut client = env.client().await;
        let lock = client.transaction().await.unwrap();
        lock.batch_execute("LOCK TABLE outbox_events IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
        let started = Instant::now();
        let relay = env.relay();
        env.wait_stored(ids.len() as u64).await;
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{SECOND}'"
        );
        let there = format!(
            "SELECT count(*) FROM pg_stat_activity
         WHERE application_name = '{SECOND}' AND wait_event_type = 'Lock'"
        );
        until(DEADLINE, "the second waits for the lock", async || {
            env.query::<i64>(&there).await == 1
        })
        .await;
        assert!(env.query::<bool>(&end).await, "there is none");
        relay.wait_log("left rows to be marked later").await;
        lock.rollback().await.unwrap();
        let held = started.elapsed();
        env.wait_marked().await;
        let lost = "SELECT count(*) FROM outbox_events WHERE stream_seq IS NULL";
        let lost = env.query::<i64>(lost).await;
        // One statement of the second connection, and two of the first for each 2 s that they waited.
        let most = 10_000 * (held.as_secs() / 2 + 2);
        assert!((1..=most).contains(&lost.cast_unsigned()), "{lost} marks were lost in {held:?}");
        assert_eq!(env.stored_ids().await, ids);
    }
}
