//! Somebody locks a row or a table, for as long as they like: everybody else's events go on.

use std::time::Duration;

use lab::Port;
use support::{DEADLINE, TestEnv, get, until};

use crate::scanner::DOCUMENTED_TABLE;

/// The relay's own statements that wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE application_name LIKE 'tailpost%' AND wait_event_type = 'Lock'";

/// Those that have waited for longer than any may.
const WAITING_LONG: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE application_name LIKE 'tailpost%' AND wait_event_type = 'Lock'
      AND clock_timestamp() - state_change > '10s'";

/// More than may be published while rows of a scan are not marked.
const MANY: i32 = 9_000;

/// What a connection of the relay waits for at most, and a sweep or two.
const LOCKED_FOR: Duration = Duration::from_secs(12);

async fn env() -> TestEnv {
    let mut env = TestEnv::proxied().await;
    // A second publication of an event would be stored.
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env
}

/// Rows of the log's are locked when their marks are due, one of them when it is to
/// be parked. The watermark passes them.
// proves: G-LOCK-1
#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_of_the_log_delay_no_other_mark_and_no_watermark() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "2s");
    env.setup().await;
    let ids = env.insert(10).await;
    env.execute("SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')").await;
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    let sql = "SELECT FROM outbox_events WHERE headers IS NOT NULL OR id = $1 FOR UPDATE";
    lock.execute(sql, &[&ids[4]]).await.expect("lock rows");
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = env.relay();
    relay.announce("");
    let more = env.insert(10).await;
    until(DEADLINE, "all but the locked are marked", async || env.unmarked().await == 2).await;
    let owed = async |rows: u64| {
        let json = format!("\"owed_rows\":{rows},");
        let status = get(admin.addr(), "/api/v1/status").await.unwrap_or_default();
        let metrics = get(admin.addr(), "/metrics").await.unwrap_or_default();
        let metric = |it: &str| it.starts_with("tailpost_outbox_owed_rows{");
        let metric = metrics
            .lines()
            .find(|it| metric(it))
            .is_some_and(|it| it.ends_with(&format!(" {rows}.0")));
        metric && status.replace(' ', "").contains(&json)
    };
    until(DEADLINE, "the locked rows are counted", async || owed(2).await).await;
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains("2 rows of published or parked events wait for a lock"), "{status}");
    let parked = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "the poison is parked", async || env.query::<i64>(parked).await == 1).await;
    let end = env.wal_end().await;
    let swept = "SELECT coalesce((swept_lsn - '0/0')::BIGINT, 0) FROM tailpost_state";
    let what = "the watermark passes the locked rows";
    until(DEADLINE, what, async || env.query::<i64>(swept).await.cast_unsigned() > end).await;
    relay.kill9().await;
    drop(relay);
    let relay = env.relay();
    env.wait_confirmed().await;
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
    lock.rollback().await.expect("let go");
    env.wait_marked().await;
    until(DEADLINE, "no locked row is left", async || owed(0).await).await;
    assert_eq!(env.stored_ids().await, [ids, more].concat());
    assert_eq!(env.query::<i64>(parked).await, 1);
}

/// Nor one that the broker keeps waiting a little, again and again.
// proves: G-LOCK-2
#[tokio::test(flavor = "multi_thread")]
async fn a_table_can_be_altered_while_a_scan_goes_on_slowly() {
    let mut env = env().await;
    env.set("TAILPOST_RELAY__SCAN_BATCH", "10");
    env.execute(DOCUMENTED_TABLE).await;
    let expected = env.insert(5_000).await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_log("the scanner found rows").await;
    env.to_nats().set_delay(Duration::from_millis(300));
    env.wait_stored(env.stored_count().await + 100).await;
    let alter = "SET lock_timeout = '10s'; ALTER TABLE outbox_events ADD COLUMN another INT";
    env.execute(alter).await;
    assert!(env.unmarked().await > 100, "the scan was over before: the test proves nothing");
    env.to_nats().set_delay(Duration::ZERO);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
}

/// A request about dead letters does not wait for ever for who has their table locked.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_of_dead_letters_holds_no_request_for_long() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let relay = env.relay();
    relay.wait_active().await;
    let client = env.client().await;
    client.batch_execute("BEGIN; LOCK TABLE outbox_dead_letter").await.expect("lock the table");
    let told = get(admin.addr(), "/api/v1/outbox/dead-letter").await.expect("an answer");
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    assert!(told.contains("the database took longer than 3s"), "{told}");
    client.batch_execute("COMMIT").await.expect("unlock the table");
    let told = get(admin.addr(), "/api/v1/outbox/dead-letter").await.expect("an answer");
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
}

/// Where parking blocks an aggregate, the log waits for each look at the dead letters;
/// but not for who has them locked.
#[tokio::test(flavor = "multi_thread")]
async fn locked_dead_letters_hold_up_no_event_of_other_aggregates() {
    const HELD_UP: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name = 'tailpost scanner' AND wait_event_type = 'Lock'
          AND clock_timestamp() - state_change > '1s'";
    let mut env = env().await;
    env.set("TAILPOST_RELAY__ON_PARK", "block_key");
    env.setup().await;
    let relay = env.relay();
    relay.announce("");
    env.execute("SELECT outbox_emit('other', 'x', 'Placed', '{}', headers => '[]')").await;
    let parked = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "the poison is parked", async || env.query::<i64>(parked).await == 1).await;
    let mut client = env.client().await;
    let lock = client.transaction().await.expect("begin");
    lock.batch_execute("LOCK TABLE outbox_dead_letter").await.expect("lock the dead letters");
    let mut expected = Vec::new();
    let said = "cannot scan for unpublished rows";
    while relay.log().matches(said).count() < 3 {
        expected.extend(env.insert(10).await);
        until(DEADLINE, "others are stored", async || {
            assert_eq!(env.query::<i64>(HELD_UP).await, 0, "the log waits for a lock");
            env.stored_count().await == expected.len() as u64
        })
        .await;
    }
    lock.rollback().await.expect("let go");
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
}

mod long {
    use super::*;

    /// The row is older than the slot. Killed and started again meanwhile,
    /// the relay knows that it has published it.
    // proves: G-LOCK-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_locked_row_older_than_the_slot_holds_nobody_up_and_is_not_published_twice() {
        let env = env().await;
        env.execute(DOCUMENTED_TABLE).await;
        let old = env.insert(20).await;
        env.setup().await;
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        let sql = "SELECT FROM outbox_events WHERE id = $1 FOR UPDATE";
        lock.execute(sql, &[&old[3]]).await.expect("lock a row");

        let relay = env.relay();
        let load = env.load(21, 1_500.0).await;
        env.insert(MANY).await;
        env.wait_stored(20 + u64::try_from(MANY).expect("positive") + 1_000).await;
        load.wait_committed(1_500).await;
        until(DEADLINE, "but for the locked row all are marked", async || {
            env.unmarked().await < 500
        })
        .await;
        assert!(env.query::<i64>(WAITING).await <= 2, "statements pile up");
        assert_eq!(env.query::<i64>(WAITING_LONG).await, 0);
        relay.kill9().await;
        drop(relay);
        let relay = env.relay();
        env.insert(MANY).await;
        load.wait_committed(1_500).await;
        let written = load.stop().await;
        until(DEADLINE, "but for the locked row all are marked", async || {
            env.unmarked().await == 1
        })
        .await;
        assert_eq!(env.query::<i64>(WAITING_LONG).await, 0);
        assert!(!relay.log().contains("starting anew"), "{}", relay.log());
        lock.rollback().await.expect("let go");
        env.assert_exact(&written).await;
    }

    /// Nobody's events wait for what the relay writes beside them, and nothing waits for long on
    /// the server.
    // proves: G-LOCK-1
    #[tokio::test(flavor = "multi_thread")]
    async fn locked_tables_stop_no_event_and_no_session() {
        let mut env = env().await;
        env.setup().await;
        let relay = env.relay();
        let mut expected = env.insert(10).await;
        env.wait_marked().await;
        let mut client = env.client().await;
        env.execute("SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')").await;
        for tables in
            ["tailpost_state", "outbox_dead_letter, outbox_dead_letter_audit, tailpost_published"]
        {
            let dead = "SELECT count(*) FROM outbox_dead_letter";
            until(DEADLINE, "it is parked", async || env.query::<i64>(dead).await > 0).await;
            // The sequence that is written down is void by then.
            env.wait_confirmed().await;
            let lock = client.transaction().await.expect("begin");
            let locked = format!("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE");
            lock.batch_execute(&locked).await.expect("lock tables");
            let started = std::time::Instant::now();
            if tables != "tailpost_state" {
                env.execute("SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')")
                    .await;
            }
            while started.elapsed() < LOCKED_FOR {
                expected.extend(env.insert(10).await);
                env.wait_stored(expected.len() as u64).await;
            }
            assert_eq!(env.query::<i64>(WAITING_LONG).await, 0);
            lock.rollback().await.expect("let go");
            env.wait_marked().await;
        }
        assert_eq!(env.query::<i64>("SELECT count(*) FROM outbox_dead_letter").await, 2);

        // The outbox itself: nobody can write to it, but what is in the log comes.
        env.to_nats().cut().await;
        expected.extend(env.insert(1_000).await);
        let lock = client.transaction().await.expect("begin");
        let outbox = "LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE";
        lock.batch_execute(outbox).await.expect("lock the outbox");
        env.to_nats().restore().await.expect("restore the network");
        env.wait_stored(expected.len() as u64).await;
        tokio::time::sleep(LOCKED_FOR).await; // marks and sweeps give up meanwhile
        assert_eq!(env.query::<i64>(WAITING_LONG).await, 0);
        lock.rollback().await.expect("let go");
        expected.extend(env.insert(10).await);
        env.wait_marked().await;
        env.wait_confirmed().await;
        assert_eq!(env.stored_ids().await, expected);
        assert!(!relay.log().contains("starting anew"), "{}", relay.log());
    }

    /// A scan that waits for the broker keeps nobody from the table.
    // proves: G-LOCK-2
    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_can_be_altered_while_a_scan_waits_for_the_broker() {
        let mut env = env().await;
        env.set("TAILPOST_RELAY__SCAN_BATCH", "10");
        env.execute(DOCUMENTED_TABLE).await;
        let mut expected = env.insert(5_000).await;
        env.setup().await;
        let relay = env.relay();
        relay.wait_log("the scanner found rows").await;
        env.to_nats().cut().await;
        let alter = "SET lock_timeout = '20s'; ALTER TABLE outbox_events ADD COLUMN another INT";
        env.execute(alter).await;
        expected.extend(env.insert(10).await);
        let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tailpost%'
                        AND backend_xmin IS NOT NULL AND backend_type = 'client backend'";
        until(DEADLINE, "vacuum may go on", async || env.query::<i64>(open).await == 0).await;
        assert!(env.unmarked().await > 10, "the scan was over before: the test proves nothing");
        env.to_nats().restore().await.expect("restore the network");
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
    }

    /// Many at once: one of them waits for the lock. Nor does a session that opens.
    // proves: G-LOCK-1
    #[tokio::test(flavor = "multi_thread")]
    async fn locked_dead_letters_hold_up_no_session_however_many_are_to_be_parked() {
        let env = env().await;
        env.setup().await;
        let relay = env.relay();
        relay.wait_active().await;
        let mut client = env.client().await;
        let lock = client.transaction().await.expect("begin");
        lock.batch_execute("LOCK TABLE outbox_dead_letter").await.expect("lock the dead letters");
        let poison = "SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')
                      FROM generate_series(1, 60)";
        env.execute(poison).await;
        let mut expected = env.insert(10).await;
        env.wait_stored(10).await;
        let said = "cannot park, trying again";
        until(DEADLINE, "parking is tried", async || relay.log().matches(said).count() >= 3).await;
        assert_eq!(env.query::<i64>(WAITING_LONG).await, 0);
        relay.kill9().await;
        drop(relay);
        let relay = env.relay();
        expected.extend(env.insert(10).await);
        env.wait_stored(20).await;
        until(DEADLINE, "parking is tried", async || relay.log().contains(said)).await;
        lock.rollback().await.expect("let go");
        let parked = "SELECT count(*) FROM outbox_dead_letter";
        until(DEADLINE, "all are parked", async || env.query::<i64>(parked).await == 60).await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
        assert!(!relay.log().contains("starting anew"), "{}", relay.log());
    }
}
