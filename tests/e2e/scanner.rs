//! Rows that the log does not bring, or brought to a relay that forgot: each published once.

use std::time::Duration;

use support::{DEADLINE, TestEnv, until};

/// The table as an application makes it that knows nothing of the relay.
pub(crate) const DOCUMENTED_TABLE: &str = "
    CREATE TABLE outbox_events (
        id UUID PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
        event_type TEXT NOT NULL, event_version INT DEFAULT 1, payload JSONB NOT NULL,
        occurred_at TIMESTAMPTZ DEFAULT NOW(), correlation_id UUID, causation_id UUID,
        published_at TIMESTAMPTZ, publish_attempts INT DEFAULT 0, publish_error TEXT)";

/// Servers whose broker forgets ids at once: what is published twice is stored twice.
async fn env() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env
}

/// Takes the marks of the newest `n` rows away, as a crash does that loses their commits.
async fn lose_marks(env: &TestEnv, n: i64) {
    env.execute(&format!(
        "UPDATE outbox_events SET published_at = NULL, stream = NULL, stream_seq = NULL,
             commit_lsn = NULL
         WHERE id IN (SELECT id FROM outbox_events ORDER BY seq DESC LIMIT {n})"
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_older_than_the_slot_come_by_the_scanner_once_and_before_newer_rows() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__SCAN_BATCH", "100");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.execute(DOCUMENTED_TABLE).await;
    let mut expected = env.insert(350).await;
    env.setup().await;
    expected.extend(env.insert(50).await);

    let relay = env.relay();
    env.wait_stored(400).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);

    relay.kill9().await;
    drop(relay);
    let _relay = env.relay();
    expected.extend(env.insert(5).await);
    env.wait_stored(405).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

/// However many rows wait, a relay that starts does not look at all of them first.
#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_older_than_the_slot_the_log_waits_for_no_scan() {
    let env = env().await;
    env.execute(DOCUMENTED_TABLE).await;
    let mut expected = env.insert(10).await;
    env.setup().await;
    let relay = env.relay();
    env.wait_marked().await;
    let filled = "SELECT gap_filled_at IS NOT NULL FROM tailpost_state";
    until(DEADLINE, "the gap is filled", async || env.query::<bool>(filled).await).await;
    // A row that only a scan finds.
    lose_marks(&env, 1).await;
    relay.kill9().await;
    expected.extend(env.insert(5).await);
    let relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(!relay.log().contains("following the log"), "it scanned first");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scanner_leaves_rows_alone_that_a_lagging_log_still_brings() {
    const LOGGED: i32 = 4_000;
    let mut env = env().await;
    // Marks come late, the scanner looks often, and the log is far behind what is committed.
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1s");
    env.set("TAILPOST_RELAY__MARK_BATCH", "100000");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.set("TAILPOST_RELAY__WINDOW_EVENTS", "50");
    env.execute(DOCUMENTED_TABLE).await;
    let mut expected = env.insert(100).await;
    env.setup().await;
    expected.extend(env.insert(LOGGED).await);

    let _relay = env.relay();
    env.wait_stored(500).await;
    assert!(env.unmarked().await > 0, "the log is not behind: the test proves nothing");
    env.nats.pause().expect("pause NATS");
    // Longer than the scanner's interval, with rows in flight.
    tokio::time::sleep(Duration::from_millis(500)).await;
    env.nats.resume().expect("resume NATS");
    expected.extend(env.insert_each(50).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

/// What a scan says that gets no connection.
const UNCONNECTED: &str = "cannot connect to scan for unpublished rows";

/// Whose relay logs in as a role that is no superuser.
async fn as_courier() -> TestEnv {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.setup().await;
    env.execute(
        "CREATE ROLE courier LOGIN REPLICATION;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO courier",
    )
    .await;
    env.set("DATABASE_URL", &env.postgres.url("postgres").replace("postgres@", "courier@"));
    env
}

/// What a session has it keeps: without it the relay might get nothing back.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_gets_no_connection_waits_and_the_log_goes_on() {
    for (refuse, admit, told) in [
        ("CONNECTION LIMIT 1", "CONNECTION LIMIT -1", "too many connections for role"),
        ("NOLOGIN", "LOGIN", "is not permitted to log in"),
    ] {
        let env = as_courier().await;
        let relay = env.relay();
        env.insert(5).await;
        env.wait_marked().await;
        env.execute(&format!("ALTER ROLE courier {refuse}")).await;
        until(DEADLINE, "it is said", async || {
            relay.log().contains(UNCONNECTED) || relay.log().contains("starting anew")
        })
        .await;
        env.insert(5).await;
        env.wait_stored(10).await;
        env.wait_marked().await;
        assert!(relay.log().contains(told), "{}", relay.log());
        lose_marks(&env, 1).await;
        env.insert(5).await;
        env.wait_stored(15).await;
        env.execute(&format!("ALTER ROLE courier {admit}")).await;
        env.wait_marked().await;
        assert_eq!(relay.log().matches(UNCONNECTED).count(), 1, "{}", relay.log());
        assert!(!relay.log().contains("starting anew"), "{}", relay.log());
        assert_eq!(env.stored_count().await, 15);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_waits_for_a_first_scan_that_gets_no_connection_and_it_is_said() {
    let mut env = as_courier().await;
    env.set("TAILPOST_RELAY__ON_PARK", "block_key");
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE outbox_dead_letter IN SHARE MODE").await.expect("lock");
    let relay = env.relay();
    let held = "cannot scan for unpublished rows";
    until(DEADLINE, "the first scan waits", async || relay.log().contains(held)).await;
    env.execute("ALTER ROLE courier NOLOGIN").await;
    lock.rollback().await.expect("let go");
    let expected = env.insert(5).await;
    until(DEADLINE, "it is said", async || {
        relay.log().contains(UNCONNECTED) || relay.log().contains("starting anew")
    })
    .await;
    assert!(relay.log().contains("for a session's first scan"), "{}", relay.log());
    assert_eq!(env.stored_count().await, 0, "the log does not wait");
    env.execute("ALTER ROLE courier LOGIN").await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
}

/// The slot disappears while no relay runs, rows are written, and the old rows' marks are gone too:
/// of more rows than any scan looks for in the stream's tail.
async fn lose_slot_and_marks(forget: &str) {
    const BEFORE: i32 = 4_000;
    let mut env = env().await;
    env.set("TAILPOST_RELAY__SCAN_BATCH", "100");
    env.set("TAILPOST_RELAY__WINDOW_EVENTS", "500");
    env.setup().await;
    let relay = env.relay();
    let mut expected = env.insert(BEFORE).await;
    expected.extend(env.insert_each(20).await);
    env.wait_marked().await;
    let covered = "SELECT bool_and(pg_visible_in_snapshot(txid, watermark_snapshot))
                   FROM outbox_events, tailpost_state";
    until(DEADLINE, "a watermark covers all", async || {
        env.query::<Option<bool>>(covered).await == Some(true)
    })
    .await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    drop(relay);

    lose_marks(&env, i64::from(BEFORE)).await;
    env.drop_slot("tailpost").await;
    env.execute(forget).await;
    expected.extend(env.insert_each(40).await);
    let relay = env.relay();
    relay.wait_active().await;
    expected.extend(env.insert_each(10).await);
    env.wait_stored(expected.len() as u64).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_written_while_the_slot_was_gone_are_recovered_and_nothing_comes_twice() {
    lose_slot_and_marks("").await;
}

// proves: G-MARK-1
#[tokio::test(flavor = "multi_thread")]
async fn marks_lost_in_a_crash_are_swept_and_nothing_is_published_again() {
    let env = env().await;
    env.setup().await;
    let relay = env.relay();
    let expected = env.insert_each(200).await;
    env.wait_marked().await;
    relay.kill9().await;
    drop(relay);
    lose_marks(&env, 50).await;
    assert_eq!(env.unmarked().await, 50);

    let relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(!relay.log().contains("the scanner found rows"), "not the scanner's:\n{}", relay.log());
    let told = "SELECT count(*) FROM outbox_events WHERE stream = 'OUTBOX'";
    assert_eq!(env.query::<i64>(told).await, 200);
}

/// More than the sweeper takes at a time.
async fn lose_many_marks(is_indexed: bool) {
    const MANY: i32 = 12_000;
    let env = env().await;
    env.setup().await;
    if is_indexed {
        let by_hand = "CREATE INDEX idx_outbox_txid ON outbox_events (txid); DROP INDEX idx_outbox_unpublished";
        env.execute(by_hand).await;
    }
    let expected = env.insert(MANY).await;
    // No mark is written, and so nothing is swept, before the relay is gone.
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE outbox_events IN SHARE ROW EXCLUSIVE MODE").await.expect("lock");
    let relay = env.relay();
    env.wait_stored(expected.len() as u64).await;
    env.wait_confirmed().await; // the log brings none of them again
    relay.kill9().await;
    drop(relay);
    // What waits for the lock would write its marks all the same.
    let others = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tailpost%'";
    let end = format!("SELECT count(pg_terminate_backend(pid)) FROM ({others}) AS o");
    let gone = format!("SELECT NOT EXISTS ({others})");
    env.query::<i64>(&end).await;
    until(DEADLINE, "the relay's sessions end", async || env.query::<bool>(&gone).await).await;
    lock.rollback().await.expect("roll back");
    assert_eq!(env.unmarked().await, i64::from(MANY));

    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    let places = "SELECT count(DISTINCT stream_seq) FROM outbox_events";
    assert_eq!(env.query::<i64>(places).await, i64::from(MANY), "the stream told where they are");
}

mod long {
    use super::*;

    /// What the scanner published and could not mark is found in the stream's tail,
    /// as long as the next session looks there before it follows a long log.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_later_scan_published_unmarked_is_not_published_again_behind_a_long_log() {
        const LOGGED: i32 = 40_000;
        let mut env = env().await;
        env.set("TAILPOST_RELAY__SCAN_BATCH", "10");
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
        env.execute(DOCUMENTED_TABLE).await;
        let mut expected = env.insert(10).await;
        env.setup().await;
        env.ends_with(0, &["relay", "--once"]).await;
        // A row that the stream lacks, and that nobody can mark for now.
        env.purge().await;
        let last = expected.split_off(9);
        lose_marks(&env, 1).await;
        let mut client = env.client().await;
        let locking = client.transaction().await.unwrap();
        locking
            .execute("SELECT FROM outbox_events WHERE id = $1 FOR UPDATE", &[&last[0]])
            .await
            .unwrap();
        let relay = env.relay();
        env.wait_stored(1).await;
        let waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let count = format!("SELECT count(*) {waiting}");
        until(DEADLINE, "the mark waits", async || env.query::<i64>(&count).await == 1).await;
        relay.kill9().await;
        // The server would carry it out although nobody waits for it any more.
        env.execute(&format!("SELECT pg_terminate_backend(pid) {waiting}")).await;
        locking.rollback().await.unwrap();
        assert_eq!(env.unmarked().await, 1, "it was marked: the test proves nothing");

        let logged = env.insert(LOGGED).await;
        // So long that the log has been worked through by then.
        env.set("TAILPOST_RELAY__SCAN_INTERVAL", "5s");
        let _relay = env.relay();
        env.wait_stored(1 + logged.len() as u64).await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, [last, logged].concat());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_watermark_the_streams_tail_tells_what_was_published() {
        let forget = "UPDATE tailpost_state SET watermark_snapshot = NULL, watermark_lsn = NULL";
        lose_slot_and_marks(forget).await;
    }

    // proves: G-MARK-1
    #[tokio::test(flavor = "multi_thread")]
    async fn however_many_marks_were_lost_all_are_swept() {
        lose_many_marks(false).await;
    }

    // proves: G-MARK-1
    #[tokio::test(flavor = "multi_thread")]
    async fn however_many_marks_were_lost_all_are_swept_by_transaction() {
        lose_many_marks(true).await;
    }
}
