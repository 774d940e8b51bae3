//! The outbox's indexes: which ones `relay.mark` brings, and that a relay with few of them does all that
//! it does with more.

use std::time::Duration;

use support::{DEADLINE, Relay, TestEnv, until};
use uuid::Uuid;

const INDEXES: &str = "SELECT string_agg(indexname::TEXT, ' ' ORDER BY indexname::TEXT)
    FROM pg_indexes WHERE tablename = 'outbox_events'";

const MARKED: &str = "idx_outbox_unpublished outbox_events_pkey";

const LEAN: &str = "idx_outbox_occurred_at idx_outbox_txid outbox_events_pkey";

async fn env(mark: &str) -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "100ms");
    env.set("TAILPOST_RELAY__MARK", mark);
    env.ends_with(0, &["setup"]).await;
    env
}

async fn fillfactor(env: &TestEnv) -> String {
    let sql =
        "SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE relname = 'outbox_events'";
    env.query(sql).await
}

/// A table that an application has made, with a column of another name.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_an_application_is_made_lean() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.set("TAILPOST_OUTBOX__COLUMNS__OCCURRED_AT", "at");
    env.execute(
        "CREATE TABLE outbox_events (
             id UUID PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
             event_type TEXT NOT NULL, payload JSONB NOT NULL, at TIMESTAMPTZ DEFAULT now()
         ) WITH (fillfactor = 70)",
    )
    .await;
    let old = env.insert(10).await;
    env.ends_with(0, &["setup"]).await;
    assert_eq!(env.query::<String>(INDEXES).await, LEAN);
    assert_eq!(fillfactor(&env).await, "fillfactor=70", "what its owner has set stays");
    let _relay = env.relay();
    let new = env.insert(10).await;
    env.wait_stored(20).await;
    assert_eq!(env.stored_ids().await, [old, new].concat());
}

/// PostgreSQL logs such an update as an insert of the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_a_mark_that_would_move_to_another_partition_is_not_published_again() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    env.execute(
        "CREATE TABLE outbox_events (
             id UUID, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL,
             event_type TEXT NOT NULL, payload JSONB NOT NULL, note TEXT,
             archived BOOLEAN DEFAULT false, PRIMARY KEY (id, archived, aggregate_type)
         ) PARTITION BY LIST (archived);
         CREATE TABLE live PARTITION OF outbox_events FOR VALUES IN (false)
             PARTITION BY LIST (aggregate_type);
         CREATE TABLE orders PARTITION OF live FOR VALUES IN ('order');
         CREATE TABLE others PARTITION OF live DEFAULT;
         CREATE TABLE archive PARTITION OF outbox_events FOR VALUES IN (true)",
    )
    .await;
    env.setup().await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(!told.contains("tailpost_stay"), "made anew: {told}");
    let _relay = env.relay();
    let ids = env.insert(5).await;
    env.wait_stored(5).await;
    env.execute("UPDATE outbox_events SET note = 'kept', archived = false").await;
    let client = env.client().await;
    for moves in ["archived = true", "aggregate_type = 'user'"] {
        let moving = client.execute(&format!("UPDATE outbox_events SET {moves}"), &[]).await;
        let refused = moving.expect_err("it is refused");
        let refused = refused.as_db_error().expect("by PostgreSQL").message();
        assert!(refused.contains("partition key of an event without a mark"), "{refused}");
    }
    let more = env.insert(5).await;
    env.wait_stored(10).await;
    assert_eq!(env.stored_ids().await, [ids, more].concat());
}

/// As an administrator would.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_plan_of_a_lean_table_runs_twice() {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MARK", "lean");
    let (plan, _) = env.ends_with(0, &["setup", "--print"]).await;
    let (migrations, _) = plan.split_once("CREATE PUBLICATION").expect("a publication");
    for _ in 0..2 {
        env.execute(migrations).await;
        assert_eq!(env.query::<String>(INDEXES).await, LEAN);
    }
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(!told.contains("index idx_outbox_txid"), "made anew: {told}");
}

async fn requeue(env: &TestEnv) -> Uuid {
    let id = Uuid::new_v4();
    env.execute(&format!(
        "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type, payload, reason)
         VALUES ('{id}', 'order', 'o-1', 'OrderPlaced', '{{}}', 'a test')"
    ))
    .await;
    env.ends_with(0, &["outbox", "dlq", "requeue", &id.to_string(), "--wait", "10s", "--direct"])
        .await;
    id
}

/// As somebody may change a table by hand: without an index of unmarked rows.
async fn by_hand(env: &TestEnv) {
    env.execute(
        "CREATE INDEX idx_outbox_txid ON outbox_events (txid); DROP INDEX idx_outbox_unpublished",
    )
    .await;
}

/// Looks at the table and marks for as long as it takes to look many times, by what the server counts.
async fn reads_no_whole_table(env: &TestEnv, _relay: &Relay) {
    env.execute("VACUUM ANALYZE outbox_events").await;
    let scans = "SELECT coalesce(sum(idx_scan), 0)::BIGINT FROM pg_stat_user_indexes
                 WHERE indexrelname = 'idx_outbox_txid'";
    let whole = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
    // Until then most of the table is looked at in any case.
    let recent = "SELECT count(*) FROM outbox_events, tailpost_state
                  WHERE NOT pg_visible_in_snapshot(txid, swept_snapshot)";
    until(DEADLINE, "all but the last is swept", async || {
        env.insert(1).await;
        env.query::<i64>(recent).await < 1_000
    })
    .await;
    let looked = async |more: i64| {
        let before: i64 = env.query(scans).await;
        until(DEADLINE, "it has looked", async || env.query::<i64>(scans).await > before + more)
            .await;
    };
    looked(5).await;
    let before: i64 = env.query(whole).await;
    env.insert_each(20).await;
    looked(30).await;
    assert_eq!(env.query::<i64>(whole).await, before, "the relay read the whole table");
    let (json, _) = env.ends_with(0, &["status", "--json"]).await;
    assert!(json.contains("unpublished"), "{json}");
    assert_eq!(env.query::<i64>(whole).await, before, "the whole table was read");
}

mod long {
    use super::*;

    /// Everything that looks for rows finds them.
    #[tokio::test(flavor = "multi_thread")]
    async fn by_transaction_alone_nothing_is_lost_or_doubled_when_marks_and_the_slot_are() {
        let mut env = env("row").await;
        by_hand(&env).await;
        let old = env.relay();
        let mut ids = env.insert_each(50).await;
        env.wait_marked().await;
        old.kill9().await;

        // Marks are lost.
        env.set("TAILPOST_RELAY__MARK_BATCH", "100000");
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
        let relay = env.relay();
        relay.wait_active().await;
        ids.extend(env.insert_each(6_000).await);
        env.wait_stored(6_050).await;
        relay.kill9().await;
        assert_eq!(env.unmarked().await, 6_000);
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
        let relay = env.relay();
        env.wait_marked().await;
        let unplaced = "SELECT count(*) FROM outbox_events WHERE stream_seq IS NULL";
        assert_eq!(env.query::<i64>(unplaced).await, 0);
        assert_eq!(env.stored_ids().await, ids);
        ids.push(requeue(&env).await);

        // The slot is, with a row that is not marked and one that was not read.
        relay.kill9().await;
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
        let relay = env.relay();
        relay.wait_active().await;
        ids.extend(env.insert(1).await);
        env.wait_stored(ids.len() as u64).await;
        relay.kill9().await;
        env.drop_slot("tailpost").await;
        ids.extend(env.insert(1).await);
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
        let relay = env.relay();
        relay.wait_log("the scanner is done").await;
        ids.extend(env.insert(1).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        let (json, _) = env.ends_with(0, &["status", "--json"]).await;
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["outbox"]["unpublished"], 0, "{json}");
        assert!(!relay.log().contains("without passing the log"), "{}", relay.log());
    }

    /// A look every few seconds must not read a table of millions of rows.
    #[tokio::test(flavor = "multi_thread")]
    async fn without_an_index_of_unmarked_rows_the_table_is_not_read_again_and_again() {
        for mark in ["row", "lean"] {
            let env = env(mark).await;
            if mark == "row" {
                by_hand(&env).await;
            }
            let relay = env.relay();
            relay.wait_active().await;
            env.insert(20_000).await;
            env.wait_stored(20_000).await;
            let pending = "SELECT count(*) FROM outbox_status WHERE status = 'PENDING'";
            until(DEADLINE, "all are published", async || env.query::<i64>(pending).await == 0)
                .await;
            tokio::time::timeout(Duration::from_secs(60), reads_no_whole_table(&env, &relay))
                .await
                .expect("in time");
        }
    }

    /// `setup` makes the indexes that `relay.mark` needs, also of a table that was made
    /// for another word, and names the statement that drops what has no use any more.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_gets_the_indexes_that_its_mark_needs() {
        for partitioned in [false, true] {
            let mut env = TestEnv::new().await;
            let args: &[&str] = if partitioned { &["setup", "--partitioned"] } else { &["setup"] };
            env.ends_with(0, args).await;
            assert_eq!(env.query::<String>(INDEXES).await, MARKED);
            env.insert(100).await;
            env.set("TAILPOST_RELAY__MARK", "lean");
            let (told, _) = env.ends_with(1, &["doctor", "--json"]).await;
            assert!(told.contains("idx_outbox_txid"), "{told}");
            let (told, said) = env.ends_with(0, &["setup"]).await;
            assert!(told.contains("created  index idx_outbox_txid"), "{told}");
            let how = if partitioned { "" } else { "CONCURRENTLY " };
            let drop = format!("DROP INDEX {how}\"public\".\"idx_outbox_unpublished\"");
            assert!(format!("{told}{said}").contains(&drop), "{told}{said}");
            env.execute(&drop).await;
            assert_eq!(env.query::<String>(INDEXES).await, LEAN);
            env.ends_with(0, &["relay", "--once"]).await;
            env.set("TAILPOST_RELAY__MARK", "row");
            let (told, said) = env.ends_with(0, &["setup"]).await;
            assert!(told.contains("created  index idx_outbox_unpublished"), "{told}");
            assert!(
                !format!("{told}{said}").contains("DROP INDEX"),
                "rows have no marks yet: {told}{said}"
            );
            env.ends_with(0, &["relay", "--once"]).await;
            assert_eq!(env.stored_count().await, 100);
        }
    }
}
