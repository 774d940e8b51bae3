//! The relay's own columns, where the application made them or writes them.

use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use crate::scanner::DOCUMENTED_TABLE;

/// What an application made of a column, and whether doctor and relay are to refuse it.
const COLUMNS: &[(&str, &str)] = &[
    ("seq", "SERIAL"),
    ("seq", "BIGINT GENERATED ALWAYS AS (1) STORED"),
    ("stream_seq", "INT"),
    ("commit_lsn", "TEXT"),
    ("txid", "BIGINT DEFAULT pg_current_xact_id()::text::bigint"),
    ("next_attempt_at", "INTERVAL"),
];

/// The statement of a hint.
fn statement(log: &str) -> String {
    let line = log.lines().rfind(|it| it.contains("run `")).unwrap_or_else(|| panic!("{log}"));
    let (_, rest) = line.split_once("run `").expect("a hint");
    rest.split('`').next().expect("a statement").replace("\\\"", "\"")
}

/// The log has the spaces at its end, and a SELECT as text has not.
#[tokio::test(flavor = "multi_thread")]
async fn a_domain_over_a_padded_type_is_refused_by_name() {
    let env = TestEnv::new().await;
    env.execute("CREATE DOMAIN kind AS char(20); CREATE DOMAIN kinds AS kind").await;
    env.execute(&DOCUMENTED_TABLE.replace("aggregate_type TEXT", "aggregate_type kinds")).await;
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains("column \"aggregate_type\" must be of type text"), "{log}");
    env.execute("ALTER TABLE outbox_events ALTER COLUMN aggregate_type TYPE text").await;
    env.setup().await;
}

/// Set up by an earlier version.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_does_not_start_on_a_column_of_another_type() {
    for mode in ["fenced", "poll"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.setup().await;
        env.execute("ALTER TABLE outbox_events ALTER COLUMN seq TYPE INT").await;
        let relay = env.relay();
        relay.announce("");
        assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
        env.execute(&statement(&relay.log())).await;
        let expected = env.insert(5).await;
        let _relay = env.relay();
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
    }
}

/// What comes of the log is read as before, and what is brought from the table says what is wrong.
// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn a_column_whose_type_is_changed_under_a_relay_loses_nothing() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let mut relay = env.relay();
    relay.announce("");
    let mut expected = env.insert(5).await;
    env.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES (gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', '[]')",
    )
    .await;
    let letters = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "it is parked", async || env.query::<i64>(letters).await == 1).await;
    env.wait_marked().await;
    env.execute("ALTER TABLE outbox_events ALTER COLUMN seq TYPE INT").await;
    expected.extend(env.insert(5).await);
    env.wait_stored(10).await;
    let id: Uuid = env.query("SELECT id FROM outbox_dead_letter").await;
    env.execute("UPDATE outbox_dead_letter SET headers = NULL").await;
    env.ends_with(0, &["outbox", "dlq", "requeue", &id.to_string(), "--direct"]).await;
    expected.push(id);
    assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    let mends = statement(&relay.log());
    assert!(relay.log().contains("column \"seq\"") && mends.contains("bigint"), "{mends}");
    env.execute(&mends).await;
    relay = env.relay();
    expected.extend(env.insert(5).await);
    env.wait_marked().await;
    let mut stored = env.stored_ids().await;
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored, expected, "each once");
    drop(relay);
}

/// Types that are read as well as the documented ones.
#[tokio::test(flavor = "multi_thread")]
async fn times_without_a_zone_and_other_integers_are_taken() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.execute(
        &DOCUMENTED_TABLE
            .replace("published_at TIMESTAMPTZ", "published_at TIMESTAMP")
            .replace("publish_attempts INT", "publish_attempts SMALLINT"),
    )
    .await;
    env.execute(
        "ALTER TABLE outbox_events ADD COLUMN next_attempt_at TIMESTAMP, ADD COLUMN stream VARCHAR",
    )
    .await;
    let mut expected = env.insert(5).await;
    env.setup().await;
    let _relay = env.relay();
    expected.extend(env.insert(5).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    env.ends_with(0, &["doctor"]).await;
    let (told, _) = env.ends_with(0, &["verify"]).await;
    assert!(told.contains("findings       none"), "{told}");
    env.ends_with(0, &["explain", &expected[0].to_string()]).await;
}

/// As an ORM that writes every column does it, in a savepoint.
const NULLS: &str = "
    BEGIN; SAVEPOINT nested;
    INSERT INTO outbox_events
        (id, aggregate_type, aggregate_id, event_type, payload, txid, occurred_at)
    SELECT gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', NULL, NULL
    FROM generate_series(1, 5);
    RELEASE nested; COMMIT";

async fn rows_with_nulls(mark: &str, mode: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", mark);
    env.set("TAILPOST_RELAY__MODE", mode);
    if mode != "poll" {
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    }
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let relay = env.relay();
    env.execute(NULLS).await;
    env.wait_stored(5).await;
    env.wait_covered().await;
    relay.kill9().await;
    if mode == "fenced" {
        env.drop_slot("tailpost").await;
    }
    env.execute(NULLS).await;
    let _relay = env.relay();
    env.execute(NULLS).await;
    env.wait_covered().await;
    env.wait_stored(15).await;
    let stored = env.stored().await;
    assert_eq!(stored.len(), 15, "each once");
    for it in stored {
        let sql = format!("SELECT occurred_at FROM outbox_events WHERE id = '{}'", it.id);
        let at: jiff::Timestamp = env.query(&sql).await;
        assert_eq!(it.event().occurred_at, at, "the message has the time of its row");
    }
    let strange = "SELECT count(*) FROM outbox_events WHERE txid IS NULL OR seq IS NULL";
    assert_eq!(env.query::<i64>(strange).await, 0);
}

// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn nulls_in_the_relays_columns_are_filled() {
    rows_with_nulls("row", "fenced").await;
}

// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn without_marks_nulls_in_the_relays_columns_are_filled() {
    rows_with_nulls("lean", "fenced").await;
}

// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn where_rows_are_polled_nulls_in_the_relays_columns_are_filled() {
    rows_with_nulls("row", "poll").await;
}

/// Copies of rows have the transaction of the original: one that is older than the slot, or that never ran
/// here.
async fn copied_rows(mark: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", mark);
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    let relay = env.relay();
    let copy = NULLS
        .replace("NULL, NULL", "(CASE g % 2 WHEN 0 THEN '700' ELSE '99000000' END)::xid8, now()");
    let copy = copy.replace("generate_series(1, 5)", "generate_series(1, 6) g");
    env.execute(&copy).await;
    env.wait_stored(6).await;
    env.wait_covered().await;
    relay.kill9().await;
    let _relay = env.relay();
    env.execute(&copy).await;
    env.wait_stored(12).await;
    env.wait_covered().await;
    assert_eq!(env.stored().await.len(), 12, "each once");
    let foreign = "SELECT count(*) FROM outbox_events
                   WHERE txid < '701' OR txid >= pg_snapshot_xmax(pg_current_snapshot())";
    assert_eq!(env.query::<i64>(foreign).await, 0, "a row has its own transaction");
}

// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn copies_of_rows_belong_to_the_transaction_that_inserts_them() {
    copied_rows("row").await;
}

// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn without_marks_copies_of_rows_belong_to_the_transaction_that_inserts_them() {
    copied_rows("lean").await;
}

/// Rows from before there was a trigger, or that passed it.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_have_no_transaction_all_the_same_are_published_and_not_pending() {
    for mark in ["row", "lean"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MARK", mark);
        env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
        env.setup().await;
        env.execute("ALTER TABLE outbox_events DISABLE TRIGGER tailpost_fill").await;
        env.execute(NULLS).await;
        let _relay = env.relay();
        env.execute(NULLS).await;
        env.wait_covered().await;
        let stored = env.stored().await;
        assert_eq!(stored.len(), 10, "each once");
        // The log tells a time that the table has not: both have none.
        let times: Vec<_> = stored.iter().map(|it| it.header("Occurred-At")).collect();
        assert!(times.iter().all(|it| *it == Some("1970-01-01T00:00:00Z")), "{times:?}");
    }
}

/// It is taken for UTC, whatever the producer's session has.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_without_a_zone_is_filled_in_utc() {
    let env = TestEnv::new().await;
    env.execute("ALTER DATABASE postgres SET timezone = 'Asia/Tokyo'").await;
    let table = DOCUMENTED_TABLE.replace("occurred_at TIMESTAMPTZ", "occurred_at TIMESTAMP");
    env.execute(&table).await;
    env.setup().await;
    env.execute(NULLS).await;
    let near = "SELECT bool_and(abs(extract(epoch FROM occurred_at - timezone('UTC', now()))) < 60)
                FROM outbox_events";
    assert!(env.query::<bool>(near).await);
}

/// Each row would count as published, and nobody would find anything wrong.
// proves: G-TABLE-2
#[tokio::test(flavor = "multi_thread")]
async fn a_default_that_marks_each_row_is_refused_by_name() {
    let named = "column \"published_at\"";
    for mode in ["fenced", "poll"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        let table = |it: &str| DOCUMENTED_TABLE.replace("published_at TIMESTAMPTZ", it);
        env.execute(&table("published_at TIMESTAMPTZ DEFAULT now()")).await;
        let (report, _) = env.ends_with(1, &["doctor", "--pre"]).await;
        assert!(report.contains(named), "{report}");
        let (_, log) = env.ends_with(4, &["setup"]).await;
        assert!(log.contains(named), "{log}");
        env.execute(&statement(&log)).await;
        env.setup().await;
        let mut expected = env.insert(5).await;
        env.execute("ALTER TABLE outbox_events ALTER COLUMN published_at SET DEFAULT now()").await;
        let (report, _) = env.ends_with(1, &["doctor"]).await;
        assert!(report.contains(named), "{report}");
        let (_, log) = env.ends_with(4, &["relay"]).await;
        assert!(log.contains(named), "{log}");
        env.execute(&statement(&log)).await;
        let relay = env.relay();
        expected.extend(env.insert(5).await);
        env.wait_marked().await;
        if mode == "fenced" {
            // It comes while the relay runs.
            relay.announce("");
            env.execute("ALTER TABLE outbox_events ALTER COLUMN published_at SET DEFAULT now()")
                .await;
            assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
            assert!(relay.log().contains(named), "{}", relay.log());
            env.execute(&statement(&relay.log())).await;
            let _relay = env.relay();
            expected.extend(env.insert(5).await);
            env.wait_marked().await;
        }
        assert_eq!(env.stored_ids().await, expected);
    }
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_column_of_the_relays_with_another_type_is_refused_by_name() {
        for (name, kind) in COLUMNS {
            let mut env = TestEnv::new().await;
            env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
            env.execute(DOCUMENTED_TABLE).await;
            env.execute(&format!("ALTER TABLE outbox_events ADD COLUMN {name} {kind}")).await;
            let mut expected = env.insert(5).await;
            let named = format!("column \"{name}\"");
            let (_, log) = env.ends_with(4, &["setup"]).await;
            assert!(log.contains(&named), "{name} {kind}: {log}");
            let (report, _) = env.ends_with(1, &["doctor", "--pre"]).await;
            assert!(report.contains(&named), "{name} {kind}: {report}");
            env.execute(&statement(&log)).await;
            env.setup().await;
            let _relay = env.relay();
            expected.extend(env.insert(5).await);
            env.wait_marked().await;
            assert_eq!(env.stored_ids().await, expected, "{name} {kind}");
        }
    }
}
