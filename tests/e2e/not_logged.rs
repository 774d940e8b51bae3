//! What a SELECT shows of the outbox and the log does not bring: children, generated columns.

use std::collections::BTreeMap;

use lab::PostgresOptions;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions};
use uuid::Uuid;

use crate::scanner::DOCUMENTED_TABLE;

async fn env(version: u32) -> TestEnv {
    let postgres = PostgresOptions { version: Some(version), ..PostgresOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env
}

/// The statement of the hint in what a command wrote.
fn statement(log: &str) -> String {
    let line = log.lines().rfind(|it| it.contains("run `")).unwrap_or_else(|| panic!("{log}"));
    let (_, rest) = line.split_once("run `").expect("a hint");
    rest.split('`').next().expect("a statement").replace("\\\"", "\"")
}

/// Set-up and doctor refuse it alike. Returns the statement that mends it.
async fn is_refused(env: &TestEnv, names: &str) -> String {
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains(names), "{log}");
    let (report, _) = env.ends_with(1, &["doctor"]).await;
    assert!(report.contains(names), "{report}");
    statement(&log)
}

pub(crate) async fn ends(relay: &Relay, names: &str) -> String {
    assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(4), "{}", relay.log());
    assert!(relay.log().contains(names), "{}", relay.log());
    statement(&relay.log())
}

async fn assert_stored(env: &TestEnv, mut expected: Vec<Uuid>) {
    let mut stored = env.stored_ids().await;
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored, expected);
}

const INTO_CHILD: &str =
    "INSERT INTO child (id, aggregate_type, aggregate_id, event_type, payload, seq)
     SELECT gen_random_uuid(), 'other', 'o-1', 'Placed', '{}',
         nextval(pg_get_serial_sequence('outbox_events', 'seq')) FROM generate_series(1, 5)
     RETURNING id";

async fn insert_into_child(env: &TestEnv) -> Vec<Uuid> {
    let rows = env.client().await.query(INTO_CHILD, &[]).await.expect("insert");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn a_child_stops_the_relay_until_it_is_none(mark: &str) {
    let mut env = env(15).await;
    env.set("TAILPOST_RELAY__MARK", mark);
    env.setup().await;
    let relay = env.relay();
    let mut expected = env.insert(5).await;
    env.wait_stored(5).await;
    env.execute("CREATE TABLE child () INHERITS (outbox_events)").await;
    relay.announce("");
    expected.extend(insert_into_child(&env).await);
    expected.extend(env.insert(5).await);
    let mends = ends(&relay, "public.child").await;
    assert_eq!(is_refused(&env, "public.child").await, mends);
    let relay = env.relay();
    relay.announce("");
    ends(&relay, "public.child").await;
    let published: i64 = env
        .query(
            "SELECT count(*) FROM outbox_status s JOIN child USING (id)
                   WHERE s.status = 'PUBLISHED'",
        )
        .await;
    assert_eq!(published, 0, "none is called published that the stream lacks");

    env.execute(&mends).await;
    let _relay = env.relay();
    expected.extend(env.insert(5).await);
    env.wait_stored(20).await;
    env.wait_confirmed().await;
    assert_stored(&env, expected).await;
}

// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_the_outbox_stops_the_relay_and_is_named() {
    a_child_stops_the_relay_until_it_is_none("row").await;
}

// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn without_marks_a_child_of_the_outbox_stops_the_relay_and_is_named() {
    a_child_stops_the_relay_until_it_is_none("lean").await;
}

/// What the outbox gets is somewhere else, or never marked. Where a rule does something besides UPDATE or
/// DELETE, PostgreSQL takes no mark.
// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_stops_the_relay_and_is_named() {
    let env = env(15).await;
    env.setup().await;
    env.execute(
        "CREATE TABLE copies (LIKE outbox_events);
         CREATE RULE also AS ON INSERT TO outbox_events DO ALSO INSERT INTO copies SELECT NEW.*",
    )
    .await;
    let mut relay = env.relay();
    let mut expected = env.insert(5).await;
    env.wait_marked().await;
    for (event, action) in [
        ("UPDATE", "INSTEAD NOTHING"),
        ("INSERT", "INSTEAD INSERT INTO copies SELECT NEW.*"),
        ("DELETE", "INSTEAD NOTHING"),
        ("UPDATE", "ALSO INSERT INTO copies SELECT NEW.*"),
        ("DELETE", "ALSO INSERT INTO copies SELECT OLD.*"),
    ] {
        relay.announce("");
        let rule = format!("CREATE RULE \"Else\" AS ON {event} TO outbox_events DO {action}");
        env.execute(&rule).await;
        let mends = ends(&relay, event).await;
        assert_eq!(is_refused(&env, "Else").await, mends);
        env.execute(&mends).await;
        relay = env.relay();
        expected.extend(env.insert(5).await);
        env.wait_marked().await;
    }
    env.wait_confirmed().await;
    assert_stored(&env, expected).await;
}

/// Another tool's publication brings updates: PostgreSQL refuses each mark of a table that does not say
/// which row was which.
// proves: G-MARK-2
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_an_identity_beside_a_publication_of_updates_stops_the_relay_and_is_named()
{
    let mut env = env(15).await;
    env.setup().await;
    env.execute("CREATE PUBLICATION theirs FOR ALL TABLES").await;
    let mut relay = env.relay();
    let mut expected = env.insert(5).await;
    env.wait_marked().await;
    for (mark, loses) in [
        ("row", "ALTER TABLE outbox_events REPLICA IDENTITY NOTHING"),
        ("delete", "ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey"),
        ("lean", "ALTER TABLE outbox_events REPLICA IDENTITY NOTHING"),
    ] {
        relay.announce("");
        env.execute(loses).await;
        expected.extend(env.insert(5).await);
        let names = "public.outbox_events, which has no replica identity while publication";
        let mends = ends(&relay, names).await;
        assert_eq!(is_refused(&env, names).await, mends);
        let (told, _) = env.ends_with(0, &["status"]).await;
        assert!(told.contains(&mends), "{told}");
        relay = env.relay();
        relay.announce("");
        assert_eq!(ends(&relay, "theirs").await, mends, "{mark}");
        env.execute(&mends).await;
        env.set("TAILPOST_RELAY__MARK", mark);
        env.setup().await;
        relay = env.relay();
        env.wait_stored(expected.len() as u64).await;
    }
    env.wait_confirmed().await;
    assert_stored(&env, expected).await;
}

/// Marks are refused as well where no log is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_refused_by_name_where_rows_are_polled() {
    let mut env = env(15).await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    let expected = env.insert(5).await;
    env.execute(
        "CREATE TABLE copies (LIKE outbox_events);
         CREATE RULE \"Else\" AS ON UPDATE TO outbox_events DO ALSO
             INSERT INTO copies SELECT NEW.*",
    )
    .await;
    let mends = is_refused(&env, "Else").await;
    env.ends_with(4, &["relay", "--once"]).await;
    env.execute(&mends).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_stored(&env, expected).await;
}

// proves: G-MARK-2
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_an_identity_is_refused_by_name_where_rows_are_polled() {
    let mut env = env(15).await;
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    env.execute("CREATE PUBLICATION theirs FOR ALL TABLES").await;
    let relay = env.relay();
    let mut expected = env.insert(5).await;
    env.wait_marked().await;
    env.execute("ALTER TABLE outbox_events REPLICA IDENTITY NOTHING").await;
    relay.announce("");
    expected.extend(env.insert(5).await);
    let names = "public.outbox_events, which has no replica identity while publication";
    let mends = ends(&relay, names).await;
    assert_eq!(is_refused(&env, names).await, mends);
    let (told, _) = env.ends_with(0, &["status"]).await;
    assert!(told.contains(&mends), "{told}");
    env.ends_with(4, &["relay", "--once"]).await;
    env.execute(&mends).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.unmarked().await, 0);
    assert_stored(&env, expected).await;
}

/// The log has nothing of it, as of a foreign table.
// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn an_unlogged_partition_is_refused_by_name() {
    let mut env = env(15).await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.execute(
        "CREATE TABLE outbox_events (id UUID NOT NULL, aggregate_type TEXT NOT NULL,
             aggregate_id TEXT NOT NULL, event_type TEXT NOT NULL, payload JSONB NOT NULL,
             seq BIGSERIAL)
         PARTITION BY LIST (aggregate_type);
         CREATE TABLE orders PARTITION OF outbox_events FOR VALUES IN ('order');
         CREATE UNLOGGED TABLE child PARTITION OF outbox_events DEFAULT",
    )
    .await;
    let mends = is_refused(&env, "public.child").await;
    env.execute(&mends).await;
    env.setup().await;
    let _relay = env.relay();
    let mut expected = env.insert(5).await;
    expected.extend(insert_into_child(&env).await);
    env.wait_stored(10).await;
    assert_stored(&env, expected).await;
}

/// The versions of the events in the stream.
async fn versions(env: &TestEnv) -> BTreeMap<Uuid, String> {
    let stored = env.stored().await.into_iter();
    stored
        .map(|it| (it.id, it.headers.get("Event-Version").expect("a version").to_string()))
        .collect()
}

/// A column that producers leave to the table.
fn generated(name: &str, kind: &str) -> String {
    let column = format!("{name} INT GENERATED ALWAYS AS ((payload->>'n')::int * 0 + 7) {kind}");
    DOCUMENTED_TABLE.replace("event_version INT DEFAULT 1", &column)
}

const RENAMED: (&str, &str) = ("TAILPOST_OUTBOX__COLUMNS__EVENT_VERSION", "version");

// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_generated_column_of_the_event_is_refused_by_name() {
    let mut env = env(15).await;
    env.set(RENAMED.0, RENAMED.1);
    env.execute(&generated("version", "STORED")).await;
    let before = env.insert(5).await;
    let mends = is_refused(&env, "column \"version\"").await;
    // Without the log every column is there.
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.setup().await;
    let relay = env.spawn(&["relay", "--once"]);
    assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
    env.set("TAILPOST_RELAY__MODE", "fenced");

    env.execute(&mends).await;
    env.setup().await;
    let relay = env.relay();
    env.insert(5).await;
    env.wait_stored(10).await;
    let versions = versions(&env).await;
    let counted = |version| versions.values().filter(|it| *it == version).count();
    assert_eq!((counted("7"), counted("1")), (5, 5), "{versions:?}");
    assert!(before.iter().all(|id| versions[id] == "7"));

    // It comes while the relay runs.
    relay.announce("");
    env.execute(BECOMES_GENERATED).await;
    assert_eq!(ends(&relay, "column \"version\"").await, mends);
}

const BECOMES_GENERATED: &str = "
    DROP VIEW outbox_status; ALTER TABLE outbox_events DROP COLUMN version,
        ADD COLUMN version INT GENERATED ALWAYS AS (7) STORED";

/// While no relay runs. Each start is refused before anything is done to the slot.
// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_started_on_a_generated_column_leaves_the_slot_as_it_is() {
    const SLOT: &str = "SELECT coalesce(string_agg(
            concat_ws(' ', slot_name, restart_lsn, confirmed_flush_lsn, epoch, epoch_at), ','), '')
        FROM pg_replication_slots LEFT JOIN tailpost_state ON slot = slot_name";
    for has_slot in [true, false] {
        let mut env = env(15).await;
        env.set(RENAMED.0, RENAMED.1);
        let plain = DOCUMENTED_TABLE.replace("event_version", "version");
        env.execute(&plain).await;
        env.setup().await;
        let relay = env.relay();
        let mut expected = env.insert(5).await;
        env.wait_marked().await;
        env.wait_confirmed().await;
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success(), "{}", relay.log());
        env.execute(BECOMES_GENERATED).await;
        expected.extend(env.insert(5).await);
        if !has_slot {
            env.drop_slot("tailpost").await;
        }
        let slot: String = env.query(SLOT).await;
        assert_eq!(slot.is_empty(), !has_slot);
        let mut mends = String::new();
        for _ in 0..2 {
            let relay = env.relay();
            relay.announce("");
            mends = ends(&relay, "column \"version\"").await;
            assert_eq!(env.query::<String>(SLOT).await, slot);
            assert_eq!(env.stored_count().await, 5);
        }
        env.execute(&mends).await;
        let _relay = env.relay();
        expected.extend(env.insert(5).await);
        env.wait_marked().await;
        assert_stored(&env, expected).await;
        assert!(versions(&env).await.values().any(|it| it == "7"));
    }
}

/// PostgreSQL 18 publishes what it stores, if it is told to.
// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_generated_column_is_published_where_the_publication_takes_it() {
    let mut env = env(18).await;
    env.set(RENAMED.0, RENAMED.1);
    env.execute(&generated("version", "STORED")).await;
    let before = env.insert(5).await;
    env.execute(&is_refused(&env, "column \"version\"").await).await;
    env.setup().await;
    let _relay = env.relay();
    let live = env.insert(5).await;
    env.wait_stored(10).await;
    let versions = versions(&env).await;
    assert_eq!(versions.len(), before.len() + live.len());
    assert!(versions.values().all(|it| it == "7"), "{versions:?}");
}

/// No publication brings them, and `outbox_emit` writes every column.
// proves: G-TABLE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_column_and_one_of_the_documented_name_become_plain_columns() {
    for kind in ["VIRTUAL", "STORED"] {
        let env = env(18).await;
        env.execute(&generated("event_version", kind)).await;
        env.insert(5).await;
        env.execute(&is_refused(&env, "column \"event_version\"").await).await;
        env.setup().await;
        let _relay = env.relay();
        env.insert(5).await;
        env.wait_stored(10).await;
        let versions = versions(&env).await;
        let counted = |version| versions.values().filter(|it| *it == version).count();
        assert_eq!((counted("7"), counted("1")), (5, 5), "{versions:?}");
    }
}

/// A dead letter goes back to a table that makes a part of the event itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_goes_back_where_a_column_is_generated() {
    let mut env = env(15).await;
    env.set(RENAMED.0, RENAMED.1);
    env.set("TAILPOST_RELAY__MODE", "poll");
    env.execute(&generated("version", "STORED")).await;
    env.setup().await;
    env.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES (gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', '[]')",
    )
    .await;
    env.ends_with(0, &["relay", "--once"]).await;
    env.execute("UPDATE outbox_dead_letter SET headers = NULL").await;
    let id: Uuid = env.query("SELECT id FROM outbox_dead_letter").await;
    env.ends_with(0, &["outbox", "dlq", "requeue", &id.to_string(), "--direct"]).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!(env.stored_ids().await, [id]);
}

/// What is generated beside the event is nobody's affair.
#[tokio::test(flavor = "multi_thread")]
async fn a_generated_column_beside_the_event_changes_nothing() {
    let env = env(15).await;
    env.execute(DOCUMENTED_TABLE).await;
    env.execute("ALTER TABLE outbox_events ADD COLUMN size INT GENERATED ALWAYS AS (octet_length(payload::text)) STORED").await;
    let mut expected = env.insert(5).await;
    env.setup().await;
    let _relay = env.relay();
    expected.extend(env.insert(5).await);
    env.wait_marked().await;
    assert_stored(&env, expected).await;
    env.ends_with(0, &["doctor"]).await;
}
