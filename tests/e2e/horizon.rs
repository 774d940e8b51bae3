//! Somebody keeps old versions of rows: the relay goes on, and who it is is named.

use lab::{Postgres, PostgresOptions};
use serde_json::Value;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

async fn env() -> TestEnv {
    let settings = vec![("max_prepared_transactions".to_owned(), "2".to_owned())];
    let postgres = PostgresOptions { settings, ..PostgresOptions::default() };
    TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await
}

/// As many transactions as pass on a busy server before anybody is old.
pub(crate) async fn pass_transactions(env: &TestEnv) {
    let pass = "DO $$ BEGIN
        FOR n IN 1..1000001 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    env.client().await.batch_execute(pass).await.expect("pass transactions");
}

/// Whether VACUUM leaves dead versions of rows.
async fn keeps_rows(env: &TestEnv) -> bool {
    env.execute("VACUUM outbox_events").await;
    env.execute("SELECT pg_stat_clear_snapshot()").await;
    let dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox_events'";
    env.query::<i64>(dead).await > 0
}

/// A standby whose queries need old rows; and the slot that it had before, which keeps them, too.
async fn standby(env: &TestEnv) -> (Postgres, tokio_postgres::Client) {
    let standby = Postgres::start_standby_of(&env.postgres, "replica_1", false).await;
    let standby = standby.expect("start a standby");
    let client = standby.client("postgres").await.expect("connect");
    for sql in [
        "ALTER SYSTEM SET hot_standby_feedback = on",
        "ALTER SYSTEM SET wal_receiver_status_interval = '1s'",
        "SELECT pg_reload_conf()",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_events",
    ] {
        client.batch_execute(sql).await.expect(sql);
    }
    let has_xmin = "SELECT xmin IS NOT NULL FROM pg_replication_slots
                    WHERE slot_name = 'replica_1'";
    until(DEADLINE, "the slot has an xmin", async || env.query(has_xmin).await).await;
    let other = standby.client("postgres").await.expect("connect");
    for sql in ["ALTER SYSTEM SET primary_slot_name = ''", "SELECT pg_reload_conf()"] {
        other.batch_execute(sql).await.expect(sql);
    }
    let has_xmin = "SELECT EXISTS (SELECT FROM pg_stat_replication
                    WHERE application_name = 'replica_1' AND backend_xmin IS NOT NULL)";
    until(DEADLINE, "the standby sends its xmin", async || env.query(has_xmin).await).await;
    (standby, client)
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn who_keeps_old_rows_is_named_until_it_is_ended() {
        let env = env().await;
        env.setup().await;
        let _relay = env.relay();
        let mut ids = env.insert(5).await;
        env.wait_marked().await;
        let reader = env.client().await;
        let begin = "SET application_name = 'report';
                     BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_events";
        reader.batch_execute(begin).await.expect("begin");
        env.execute("CREATE TABLE stock (n int)").await;
        env.execute("BEGIN; INSERT INTO stock VALUES (1); PREPARE TRANSACTION 'order 7'").await;
        let (_standby, query) = standby(&env).await;
        ids.extend(env.insert(50).await);
        env.wait_marked().await;
        assert!(keeps_rows(&env).await);
        let only = ["doctor", "--only", "postgres-old-transactions"];
        env.ends_with(0, &only).await;
        pass_transactions(&env).await;
        // It goes on meanwhile.
        ids.extend(env.insert(50).await);
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
        let mut query = Some(query);
        let mut named = String::new();
        for _ in 0..2 {
            let (status, _) = env.ends_with(0, &["status"]).await;
            let (found, _) = env.ends_with(0, &[&only[..], &["--json"]].concat()).await;
            let found: Value = serde_json::from_str(&found).expect("JSON");
            let found = &found["checks"][0];
            assert_eq!(found["severity"], "warning", "{found:#}");
            for remedy in found["remedies"].as_array().expect("remedies") {
                let text = remedy["text"].as_str().expect("a text");
                assert!(status.contains(text), "not `{text}`:\n{status}");
                match remedy["kind"].as_str() {
                    Some("sql") => env.execute(text).await,
                    _ => query = None,
                }
            }
            named += found["evidence"].as_str().expect("evidence");
        }
        for who in [
            "(report) has a transaction open",
            "transaction order 7 is prepared",
            "replication slot replica_1, which nobody reads",
            "standby replica_1 (process ",
        ] {
            assert!(named.contains(who), "not `{who}`:\n{named}");
        }
        assert!(query.is_none(), "{named}");
        until(DEADLINE, "nobody keeps rows", async || !keeps_rows(&env).await).await;
        let (found, _) = env.ends_with(0, &only).await;
        assert!(found.contains("0 warnings"), "{found}");
        let (status, _) = env.ends_with(0, &["status"]).await;
        assert!(!status.contains("transactions ago"), "{status}");
    }
}
