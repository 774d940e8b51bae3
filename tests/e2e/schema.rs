//! The outbox table changes while the relay runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

/// Writes events, each in a transaction of its own, until told to stop; returns their ids.
fn write_until(stop: &Arc<AtomicBool>, client: tokio_postgres::Client) -> Writer {
    let stop = Arc::clone(stop);
    tokio::spawn(async move {
        let sql =
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   VALUES ($1, 'order', 'o-' || $2::INT % 10, 'OrderPlaced', '{\"total\": 1.50}')";
        let mut ids = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let (id, n) = (Uuid::new_v4(), i32::try_from(ids.len()).expect("few"));
            client.execute(sql, &[&id, &n]).await.expect("insert an event");
            ids.push(id);
        }
        ids
    })
}

type Writer = tokio::task::JoinHandle<Vec<Uuid>>;

#[tokio::test(flavor = "multi_thread")]
async fn columns_come_and_go_under_load_and_nothing_is_lost() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms"); // it reads the table's columns as well
    env.setup().await;
    let relay = env.relay();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = write_until(&stop, env.client().await);
    for change in [
        "ADD COLUMN note TEXT",
        // Writes the table anew: those rows are no new events.
        "ADD COLUMN changed_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()",
        "DROP COLUMN note",
        "DROP COLUMN causation_id CASCADE",
        "DROP COLUMN headers CASCADE",
        "ADD COLUMN headers JSONB, ADD COLUMN causation_id UUID",
        "ALTER COLUMN event_version TYPE BIGINT",
    ] {
        let marked = env.stored_count().await;
        env.execute(&format!(
            "DROP VIEW IF EXISTS outbox_status; ALTER TABLE outbox_events {change}"
        ))
        .await;
        env.wait_stored(marked + 30).await; // further events passed in the new shape
    }
    env.execute("ALTER TABLE outbox_events DROP COLUMN causation_id").await;
    stop.store(true, Ordering::Relaxed);
    let mut expected = writer.await.expect("no panic");
    env.wait_stored(expected.len() as u64).await;
    env.wait_marked().await;

    // And with an event that uses what came back.
    let id: Uuid = env
        .query(
            r#"INSERT INTO outbox_events
                   (headers, payload, event_type, aggregate_id, aggregate_type, id, event_version)
               VALUES ('{"tenant": "t-1"}', '{}', 'OrderPlaced', 'o-1', 'order',
                   gen_random_uuid(), 7)
               RETURNING id"#,
        )
        .await;
    expected.push(id);
    env.wait_stored(expected.len() as u64).await;
    let stored = env.stored().await;
    assert_eq!(stored.iter().map(|it| it.id).collect::<Vec<_>>(), expected);
    let last = stored.last().expect("a message");
    assert_eq!((last.header("tenant"), last.header("Event-Version")), (Some("t-1"), Some("7")));
    assert!(stored.iter().all(|it| it.payload.contains("1.50") || it.id == id));
    // Idle, the scanner looks at a table without the column.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(relay.exited().is_none(), "{}", relay.log());
    assert!(!relay.log().contains("starting anew"), "{}", relay.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_column_that_is_missing_stops_the_relay_and_nothing_is_lost() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.announce("the outbox table does not fit");
    relay.announce("error:");
    let mut expected = env.insert(20).await;
    env.wait_marked().await;
    env.execute(
        "BEGIN;
         ALTER TABLE outbox_events RENAME COLUMN payload TO body;
         INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, body)
         VALUES ('00000000-0000-4000-8000-000000000001', 'order', 'o-1', 'OrderPlaced', '{}');
         COMMIT",
    )
    .await;
    let written = env.wal_end().await;
    let status = relay.wait_exit(DEADLINE).await;
    assert_eq!(status.code(), Some(4), "{}", relay.log());
    let log = relay.log();
    assert!(log.contains("column \"payload\" is missing or renamed"), "{log}");
    assert!(log.contains("mend the table, as `tailpost setup --print` shows it"));
    assert!(env.confirmed().await < written, "confirmed what was not published");
    assert_eq!(env.stored_ids().await, expected);

    env.execute("ALTER TABLE outbox_events RENAME COLUMN body TO payload").await;
    expected.push("00000000-0000-4000-8000-000000000001".parse().expect("valid"));
    let mended = env.relay();
    mended.wait_active().await;
    expected.extend(env.insert(20).await);
    env.wait_stored(expected.len() as u64).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    until(DEADLINE, "the relay follows the log", async || mended.log().contains("following")).await;
}

/// The relay can do without such columns, but their values are there all the same.
async fn values_that_the_log_leaves_out_are_not_lost(breaks: &str, mends: &str, named: &str) {
    let env = TestEnv::new().await;
    env.setup().await;
    for rows_before in [0, 3] {
        let relay = env.relay();
        relay.wait_active().await;
        let before = env.stored_count().await;
        env.insert(rows_before).await;
        env.wait_stored(before + u64::from(rows_before.cast_unsigned())).await;
        env.execute(breaks).await;
        let headers = if breaks.ends_with("meta") { "meta" } else { "headers" };
        let insert = format!(
            "INSERT INTO outbox_events
                 (id, aggregate_type, aggregate_id, event_type, payload, {headers})
             SELECT gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', '{{}}', '{{\"tenant\": 1}}'
             FROM generate_series(1, 5)"
        );
        env.execute(&insert).await;
        let status = relay.wait_exit(DEADLINE).await;
        assert_eq!(status.code(), Some(4), "{}", relay.log());
        assert!(relay.log().contains(named), "{}", relay.log());
        env.execute(mends).await;
        env.ends_with(0, &["relay", "--once"]).await;
        let stored = env.stored().await;
        let whole = stored.iter().filter(|it| it.header("tenant").is_some()).count();
        assert_eq!((whole, stored.len()), if rows_before == 0 { (5, 5) } else { (10, 13) });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_renamed_while_the_relay_runs_loses_no_value() {
    let rename = |from, to| format!("ALTER TABLE outbox_events RENAME COLUMN {from} TO {to}");
    let (breaks, mends) = (rename("headers", "meta"), rename("meta", "headers"));
    let named = "column \"headers\" is missing or renamed";
    values_that_the_log_leaves_out_are_not_lost(&breaks, &mends, named).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_the_publication_leaves_out_lose_no_value() {
    let mends = "ALTER PUBLICATION tailpost SET TABLE outbox_events";
    let breaks = format!("{mends} (id, aggregate_type, aggregate_id, event_type, payload)");
    let named = "are missing, or not published";
    values_that_the_log_leaves_out_are_not_lost(&breaks, mends, named).await;
}

/// The log keeps rows in the shape in which they were written.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_finds_a_column_missing_when_it_starts_takes_the_rows_from_the_mended_table() {
    let env = TestEnv::new().await;
    env.setup().await;
    env.ends_with(0, &["relay", "--once"]).await;
    env.execute(
        "ALTER TABLE outbox_events RENAME COLUMN payload TO body;
         INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, body)
         VALUES ('00000000-0000-4000-8000-000000000001', 'order', 'o-1', 'OrderPlaced', '{}')",
    )
    .await;
    let (_, log) = env.ends_with(4, &["relay"]).await;
    assert!(log.contains("column \"payload\" is missing or renamed"), "{log}");
    env.execute("ALTER TABLE outbox_events RENAME COLUMN body TO payload").await;
    let _relay = env.relay();
    env.wait_stored(1).await;
    env.wait_marked().await;
}

/// The view keeps the types of its columns from one migration to the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_may_be_a_bigint() {
    let env = TestEnv::new().await;
    env.execute(
        &crate::scanner::DOCUMENTED_TABLE.replace("event_version INT", "event_version BIGINT"),
    )
    .await;
    env.setup().await;
    env.insert(3).await;
    env.ends_with(0, &["relay", "--once"]).await;
    let published =
        "SELECT count(*) FROM outbox_status WHERE status = 'PUBLISHED' AND event_version = 1";
    assert_eq!(env.query::<i64>(published).await, 3);
}
