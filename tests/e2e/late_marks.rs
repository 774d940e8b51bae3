//! Marks that PostgreSQL writes more slowly than it sends its log.

use rustix::process::{Pid, Signal, kill_process};
use support::{DEADLINE, Rig, until};
use uuid::Uuid;

/// A broker that forgets ids at once, so that a second publication would be stored.
async fn rig() -> Rig {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    rig.setup().await;
    rig
}

/// Stops the backend of the relay's connection for marks while it waits for a statement: stopped in
/// one, it would keep locks of the server, which everybody waits for. Returns the events so far, too.
async fn stop_first(rig: &Rig) -> (Pid, Vec<Uuid>) {
    let name = "tailpost marks";
    // A session opens with statements on this connection, and is idle between them. The relay works
    // once it has marked something.
    let ids = rig.insert(1).await;
    rig.wait_marked().await;
    let idle = format!(
        "SELECT max(pid) FROM pg_stat_activity
         WHERE application_name = '{name}' AND state = 'idle' AND wait_event = 'ClientRead'"
    );
    let mut stopped = None;
    until(DEADLINE, &format!("{name} is stopped while idle"), async || {
        let idle_pid = async || rig.query::<Option<i32>>(&idle).await.and_then(Pid::from_raw);
        let Some(pid) = idle_pid().await else { return false };
        kill_process(pid, Signal::STOP).expect("stop PostgreSQL's process");
        // A statement may have come between the look and the signal.
        stopped = idle_pid().await.filter(|still| *still == pid);
        if stopped.is_none() {
            resume(pid);
        }
        stopped.is_some()
    })
    .await;
    (stopped.expect("a process"), ids)
}

fn resume(backend: Pid) {
    kill_process(backend, Signal::CONT).expect("resume PostgreSQL's process");
}

const SECOND: &str = "tailpost marks 2";

/// R-REL-06
#[tokio::test(flavor = "multi_thread")]
async fn marks_that_are_late_are_written_over_a_second_connection_until_they_are_not() {
    const ROWS: i32 = 40_000;
    let rig = rig().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let (first, mut ids) = stop_first(&rig).await;
    ids.extend(rig.insert(ROWS).await);
    // All but the two statements that wait, and what is not worth a statement.
    until(DEADLINE, "the second one marks", async || rig.unmarked().await <= 15_000).await;
    assert!(rig.unmarked().await > 0, "the first one was not stopped: the test proves nothing");
    relay.wait_log("marks are late").await;
    resume(first);
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    let places = "SELECT count(DISTINCT stream_seq) FROM outbox_events";
    assert_eq!(rig.query::<i64>(places).await, i64::from(ROWS) + 1, "none was left to the sweeper");
    let open = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{SECOND}'");
    until(DEADLINE, "the second is closed", async || rig.query::<i64>(&open).await == 0).await;
}

/// R-REL-06, R-REL-11: more marks wait than may.
// proves: G-MARK-1
#[tokio::test(flavor = "multi_thread")]
async fn marks_for_which_there_is_no_room_are_left_to_the_sweeper_and_nothing_comes_twice() {
    const ROWS: i32 = 230_000;
    let mut rig = rig().await;
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "1h");
    let relay = rig.relay();
    relay.wait_active().await;
    let (first, mut ids) = stop_first(&rig).await;
    ids.extend(rig.insert(ROWS).await);
    let elsewhere = rig.postgres.client("template1").await.expect("connect to PostgreSQL");
    let allow = |allowed: bool| format!("ALTER DATABASE postgres ALLOW_CONNECTIONS {allowed}");
    elsewhere.batch_execute(&allow(false)).await.unwrap(); // no second connection either
    rig.wait_stored(ids.len() as u64).await;
    elsewhere.batch_execute(&allow(true)).await.unwrap();
    resume(first);
    rig.wait_marked().await;
    let trusted = "SELECT count(*) FROM outbox_events WHERE stream_seq IS NULL";
    assert!(rig.query::<i64>(trusted).await >= 10_000, "there was room for all");
    // Twice a watermark, which is when it would be found out that the log did not bring a row.
    let watermark = "SELECT watermark_lsn::text FROM tailpost_state";
    for _ in 0..2 {
        let before = rig.query::<Option<String>>(watermark).await;
        ids.extend(rig.insert(1).await);
        until(DEADLINE, "the next watermark", async || {
            rig.query::<Option<String>>(watermark).await != before
        })
        .await;
    }
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    assert!(relay.peak_memory() < 64 << 20, "{} bytes of memory", relay.peak_memory());
}

/// R-REL-06: when the table was analysed last, no row waited. (Asked plainly, PostgreSQL then looks at
/// all that wait for each row that is to be marked.)
#[tokio::test(flavor = "multi_thread")]
async fn marks_are_quick_also_where_the_planner_expects_no_backlog() {
    let rig = rig().await;
    let relay = rig.relay();
    let mut ids = rig.insert(10_000).await;
    rig.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    rig.execute("VACUUM ANALYZE outbox_events").await;
    ids.extend(rig.insert(40_000).await);
    let relay = rig.relay();
    rig.wait_stored(50_000).await;
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    let places = "SELECT count(DISTINCT stream_seq) FROM outbox_events";
    assert_eq!(rig.query::<i64>(places).await, 50_000, "none was left to the sweeper");
    assert!(!relay.log().contains("left rows to be marked later"), "{}", relay.log());
}

/// R-REL-06: what is lost with the second connection is what was on its way over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_that_breaks_takes_few_marks_with_it() {
    const ROWS: i32 = 60_000;
    let rig = rig().await;
    let ids = rig.insert(ROWS).await;
    let mut client = rig.client().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE outbox_events IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
    let relay = rig.relay();
    rig.wait_stored(ids.len() as u64).await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{SECOND}'"
    );
    let there = format!(
        "SELECT count(*) FROM pg_stat_activity
         WHERE application_name = '{SECOND}' AND wait_event_type = 'Lock'"
    );
    until(DEADLINE, "the second waits for the lock", async || rig.query::<i64>(&there).await == 1)
        .await;
    assert!(rig.query::<bool>(&end).await, "there is none");
    relay.wait_log("left rows to be marked later").await;
    lock.rollback().await.unwrap();
    rig.wait_marked().await;
    let lost = "SELECT count(*) FROM outbox_events WHERE stream_seq IS NULL";
    let lost = rig.query::<i64>(lost).await;
    // One statement of the second connection, and two of the first if they waited too long.
    assert!((1..=15_000).contains(&lost), "{lost} marks were lost");
    assert_eq!(rig.stored_ids().await, ids);
}

/// R-REL-06, R-REL-07: rows that nobody should have left unmarked are looked for once an hour, whoever
/// does it and however often relays are started.
#[tokio::test(flavor = "multi_thread")]
async fn the_whole_table_is_looked_at_when_that_is_due_and_not_when_the_relay_was_started() {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    rig.execute(crate::scanner::DOCUMENTED_TABLE).await;
    let old = rig.insert(3).await;
    rig.ends_with(0, &["setup"]).await;
    rig.execute("CREATE INDEX idx_outbox_txid ON outbox_events (txid)").await;
    let relay = rig.relay();
    let new = rig.insert(3).await;
    rig.wait_marked().await;
    let fresh = "SELECT count(*) FROM tailpost_state WHERE gap_filled_at IS NOT NULL
                     AND swept_lsn > start_lsn
                     AND least(scanned_at, whole_swept_at) > now() - interval '30 minutes'";
    until(DEADLINE, "both looks are noted", async || rig.query::<i64>(fresh).await == 1).await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    // Their marks are taken away, and an hour passes.
    rig.execute(
        "UPDATE outbox_events SET published_at = NULL;
         UPDATE tailpost_state SET scanned_at = now() - interval '61 minutes',
             whole_swept_at = now() - interval '61 minutes'",
    )
    .await;
    let _relay = rig.relay();
    rig.wait_marked().await;
    until(DEADLINE, "both looks are noted", async || rig.query::<i64>(fresh).await == 1).await;
    let ids = rig.stored_ids().await;
    assert_eq!(ids, [old, new].concat(), "the stream had them");
}
