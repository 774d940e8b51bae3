//! What somebody else drops of the schema is named, and `tailpost setup` brings it back.

use support::{DEADLINE, TestEnv};
use uuid::Uuid;

/// What is dropped, how it is named, and whether a relay cannot do without it.
const DROPPED: &[(&str, &str, bool)] = &[
    ("ALTER TABLE outbox_events DROP COLUMN stream_seq CASCADE", "column stream_seq of ", true),
    (
        "ALTER TABLE outbox_events DROP COLUMN txid CASCADE, DROP COLUMN seq CASCADE,
             DROP COLUMN published_at CASCADE, DROP COLUMN event_version CASCADE",
        "column seq of ",
        true,
    ),
    ("DROP TABLE tailpost_owed", "table \"public\".tailpost_owed", true),
    ("DROP TABLE tailpost_published, outbox_dead_letter CASCADE", ".outbox_dead_letter", true),
    ("ALTER TABLE tailpost_state DROP COLUMN wal_prefix", "column wal_prefix of ", true),
    ("ALTER TABLE outbox_dead_letter DROP COLUMN payload", "column payload of ", true),
    ("ALTER TABLE tailpost_replays DROP COLUMN subject_prefix", "column subject_prefix of ", true),
    ("DROP FUNCTION tailpost_jsonb", "function \"public\".tailpost_jsonb", true),
    ("DROP VIEW outbox_status", "view \"public\".outbox_status", false),
    ("DROP INDEX idx_outbox_dead_letter_blocked", "idx_outbox_dead_letter_blocked", false),
    (
        "DROP TABLE tailpost_migrations, tailpost_replays, tailpost_replay_events, tailpost_epochs,
             tailpost_rewind, tailpost_rewind_marks, tailpost_retention",
        "table \"public\".tailpost_epochs",
        true,
    ),
];

/// Types are an operator's to change, and rows that lack a value too.
// proves: G-SETUP-2
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_brought_back_is_refused_with_what_mends_it() {
    let env = TestEnv::new().await;
    env.setup().await;
    for command in ["setup", "relay"] {
        env.execute("ALTER TABLE tailpost_state ALTER COLUMN epoch TYPE int").await;
        let (_, log) = env.ends_with(4, &[command]).await;
        let (_, statement) = log.split_once("run `").expect("a statement");
        env.execute(statement.split('`').next().expect("its end")).await;
    }
    env.setup().await;

    env.insert(1).await;
    let relay = env.relay();
    env.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    env.execute("ALTER TABLE tailpost_state DROP COLUMN timeline").await;
    let (_, log) = env.ends_with(4, &["setup"]).await;
    assert!(log.contains("ADD COLUMN timeline ") && log.contains("backup"), "{log}");
    env.execute("DELETE FROM tailpost_state").await;
    let (_, log) = env.ends_with(4, &["setup"]).await;
    let (_, statement) = log.split_once("drop it with `").expect("a statement");
    env.execute(statement.split('`').next().expect("its end")).await;
    env.setup().await;
    let _relay = env.relay();
    env.insert(1).await;
    env.wait_stored(2).await;
}

/// Tables that somebody has made for something else, or with other names for the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_the_columns_of_marks_is_adopted() {
    for table in [
        "id UUID PRIMARY KEY, aggregate_type TEXT, aggregate_id TEXT, event_type TEXT, payload JSONB",
        "id UUID PRIMARY KEY, aggregate_type TEXT, aggregate_id TEXT, event_type TEXT, payload JSONB,
         created_at TIMESTAMPTZ DEFAULT now(), processed BOOLEAN DEFAULT false",
    ] {
        let env = TestEnv::new().await;
        env.execute(&format!("CREATE TABLE outbox_events ({table})")).await;
        let mut expected = env.insert(5).await;
        env.ends_with(0, &["doctor", "--pre"]).await;
        env.setup().await;
        env.ends_with(0, &["doctor"]).await;
        let _relay = env.relay();
        expected.extend(env.insert(5).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected);
    }
}

/// Of one aggregate, and not in the log. Attempts have moved the first ones to the end of their page.
// proves: G-SETUP-2, G-ORDER-2
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_order_is_dropped_come_in_that_of_their_transactions() {
    let tried = "UPDATE outbox_events SET publish_attempts = 1 WHERE seq <= 10";
    let both = "ALTER TABLE outbox_events DROP COLUMN seq CASCADE, DROP COLUMN txid CASCADE";
    let order = "ALTER TABLE outbox_events DROP COLUMN seq CASCADE";
    for (mode, changes) in
        [("poll", [tried, order]), ("fenced", [tried, order]), ("fenced", [both, ""])]
    {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.setup().await;
        if mode == "fenced" {
            env.drop_slot("tailpost").await;
        }
        let mut expected = env.insert_each(60).await;
        for change in changes {
            env.execute(change).await;
        }
        expected.extend(env.insert_each(5).await);
        env.setup().await;
        expected.extend(env.insert_each(5).await);
        let _relay = env.relay();
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, expected, "{mode}: {changes:?}");
        let are_new: bool = env.query("SELECT min(seq) > 65 FROM outbox_events").await;
        assert!(are_new, "a dead letter may have the number of a row");
    }
}

/// Afterwards an attempt, or anybody, gives a row another version, which says that the log has it.
// proves: G-SETUP-2
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_transactions_are_dropped_are_not_taken_for_the_logs() {
    for mark in ["lean", "row"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MARK", mark);
        env.setup().await;
        env.drop_slot("tailpost").await;
        let expected = env.insert_each(5).await;
        env.execute("ALTER TABLE outbox_events DROP COLUMN txid CASCADE").await;
        env.setup().await;
        env.execute("UPDATE outbox_events SET publish_attempts = 1").await;
        let _relay = env.relay();
        env.wait_covered().await;
        assert_eq!(env.stored_ids().await, expected, "{mark}");
    }
}

/// PostgreSQL adds no identity to a table that has partitions, before 17.
// proves: G-SETUP-2, G-ORDER-2
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_outbox_gets_back_its_order() {
    let order = "DROP COLUMN seq CASCADE";
    let both = "DROP COLUMN seq CASCADE, DROP COLUMN txid CASCADE";
    for (mode, drop) in [("poll", order), ("fenced", order), ("fenced", both)] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.ends_with(0, &["setup", "--partitioned"]).await;
        if mode == "fenced" {
            env.drop_slot("tailpost").await;
        }
        let mut expected = env.insert_each(60).await;
        env.execute(&format!("ALTER TABLE outbox_events {drop}")).await;
        expected.extend(env.insert_each(5).await);
        let (told, _) = env.ends_with(1, &["doctor"]).await;
        assert!(told.contains("column seq of "), "{told}");
        env.setup().await;
        env.execute(DROP_LAST_PARTITION).await;
        let (told, _) = env.ends_with(0, &["setup"]).await;
        assert!(told.contains("created  partitions"), "one more is made and attached: {told}");
        env.ends_with(0, &["doctor"]).await;
        comes_in_order(&env, expected, &format!("{mode}: {drop}")).await;
    }
}

const DROP_LAST_PARTITION: &str = "DO $$ BEGIN
    EXECUTE (SELECT format('DROP TABLE %s', inhrelid::regclass) FROM pg_inherits
             WHERE inhparent = 'outbox_events'::regclass ORDER BY inhrelid DESC LIMIT 1);
END $$";

/// Its rows lie in their partitions, whose order says nothing.
// proves: G-ORDER-2
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_table_without_an_order_is_adopted() {
    for mode in ["poll", "fenced"] {
        let mut env = TestEnv::new().await;
        env.set("TAILPOST_RELAY__MODE", mode);
        env.execute(
            "CREATE TABLE outbox_events (id UUID PRIMARY KEY, aggregate_type TEXT,
                 aggregate_id TEXT, event_type TEXT, payload JSONB) PARTITION BY HASH (id);
             CREATE TABLE hashed0 PARTITION OF outbox_events FOR VALUES WITH (MODULUS 2, REMAINDER 0);
             CREATE TABLE hashed1 PARTITION OF outbox_events FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        )
        .await;
        let expected = env.insert_each(60).await;
        env.setup().await;
        comes_in_order(&env, expected, mode).await;
        let (told, _) = env.ends_with(0, &["setup"]).await;
        assert!(!told.contains("created"), "{told}");
    }
}

/// What waits, what is inserted now, and what a producer inserts that has the documented grants.
async fn comes_in_order(env: &TestEnv, mut expected: Vec<Uuid>, case: &str) {
    expected.extend(env.insert_each(5).await);
    env.execute(
        "CREATE ROLE producer; GRANT INSERT ON outbox_events TO producer; SET ROLE producer;
         INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'o-1', 'Placed', '{}')",
    )
    .await;
    expected.push(Uuid::max());
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected, "{case}");
}

mod long {
    use super::*;

    // proves: G-SETUP-2
    #[tokio::test(flavor = "multi_thread")]
    async fn what_others_drop_is_named_and_brought_back_by_setup() {
        let env = TestEnv::new().await;
        env.setup().await;
        let mut expected = env.insert(20).await;
        for (drop, name, is_needed) in DROPPED {
            env.execute(drop).await;
            expected.extend(env.insert(1).await);
            let (told, _) = env.ends_with(1, &["doctor"]).await;
            assert!(told.contains(name) && told.contains("tailpost setup"), "{drop}:\n{told}");
            if *is_needed {
                let (_, log) = env.ends_with(3, &["relay"]).await;
                assert!(log.contains(name) && log.contains("tailpost setup"), "{drop}:\n{log}");
            }
            let (told, _) = env.ends_with(0, &["setup"]).await;
            assert!(told.contains("created  migration"), "{drop}:\n{told}");
            env.ends_with(0, &["doctor"]).await;
        }
        let relay = env.relay();
        expected.extend(env.insert(5).await);
        env.wait_marked().await;
        env.wait_confirmed().await;
        let mut stored = env.stored_ids().await;
        stored.sort_unstable();
        expected.sort_unstable();
        assert_eq!(stored, expected);
        relay.sigterm();
        assert!(relay.wait_exit(DEADLINE).await.success());
        let (told, _) = env.ends_with(0, &["setup"]).await;
        assert!(!told.contains("created"), "{told}");
    }
}
