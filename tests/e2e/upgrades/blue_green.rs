//! Logical replication carries every table to a cluster of another version, which then takes over.

use std::collections::HashSet;

use lab::{Postgres, PostgresOptions};
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

use super::{env, prepared, stop};

/// A cluster of version 17 with the tables, which begins to follow.
async fn follow(env: &TestEnv) -> Postgres {
    let options = PostgresOptions {
        version: Some(17),
        complete: true,
        own_identity: true,
        ..PostgresOptions::default()
    };
    let green = Postgres::start(options).await.expect("start PostgreSQL 17");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = file.path().to_str().expect("UTF-8");
    let (from, into) = (env.postgres.url("postgres"), green.url("postgres"));
    let dump = ["--schema-only", "--no-subscriptions", "--file", file, from.as_str()];
    green.run_program("pg_dump", &dump).await.expect("dump");
    let restore = ["-q", "-v", "ON_ERROR_STOP=1", "-d", into.as_str(), "-f", file];
    green.run_program("psql", &restore).await.expect("restore");
    env.execute("CREATE PUBLICATION blue FOR ALL TABLES").await;
    let client = green.client("postgres").await.expect("connect");
    let subscribe = format!(
        "CREATE SUBSCRIPTION green CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=postgres'
         PUBLICATION blue",
        env.postgres.port()
    );
    client.batch_execute(&subscribe).await.expect("subscribe");
    let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    until(DEADLINE, "the tables are copied", async || {
        client.query_one(copied, &[]).await.expect("look").get::<_, i64>(0) == 0
    })
    .await;
    green
}

/// Ends the replication when everything has arrived, and takes over.
async fn switch(env: &mut TestEnv, green: Postgres) -> Postgres {
    let end = env.wal_end().await;
    let arrived = format!(
        "SELECT confirmed_flush_lsn - '0/0' >= {end} FROM pg_replication_slots
         WHERE slot_name = 'green'"
    );
    until(DEADLINE, "everything has arrived", async || env.query::<bool>(&arrived).await).await;
    let blue = std::mem::replace(&mut env.postgres, green);
    env.set("DATABASE_URL", &env.postgres.url("postgres"));
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("warning: subscription green"), "{told}");
    env.execute("DROP SUBSCRIPTION green").await;
    env.ends_with(0, &["slot", "drop"]).await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("created  slot tailpost") && !told.contains("subscription"), "{told}");
    blue
}

/// As the relay writes them, numbered by a sequence that replication does not copy.
const DECISIONS: &str = "INSERT INTO outbox_dead_letter_audit
        (action, event_id, aggregate_type, aggregate_id, event_type, actor, via)
    SELECT 'discard', gen_random_uuid(), 'order', 'o-1', 'OrderPlaced', 'ada', 'cli'
    FROM generate_series(1, 10)";

async fn switched(mark: &str) {
    let mut env = env(16, &[]).await;
    env.set("TAILPOST_RELAY__MARK", mark);
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    let mut ids = env.insert_each(100).await;
    env.wait_stored(100).await;
    env.execute(DECISIONS).await;
    let green = follow(&env).await;
    ids.extend(env.insert_each(100).await);
    prepared(&env, 0, "30s").await;
    // Retention writes to tables of its own, which are published now like all others.
    env.ends_with(0, &["maintain"]).await;
    stop(relay).await;
    // No relay publishes these in the old cluster.
    ids.extend(env.insert_each(20).await);
    let _blue = switch(&mut env, green).await;

    ids.extend(env.insert_each(10).await);
    let ordered = "SELECT seq FROM outbox_events WHERE id = $1";
    let client = env.client().await;
    let mut seqs = Vec::new();
    for id in &ids[200..] {
        seqs.push(client.query_one(ordered, &[id]).await.expect("a row").get::<_, i64>(0));
    }
    assert!(seqs.is_sorted(), "a scan would find newer rows before older ones: {seqs:?}");
    let relay = env.relay();
    relay.wait_active().await;
    ids.extend(env.insert_each(10).await);
    env.wait_stored(240).await;
    prepared(&env, 0, "30s").await;
    let stored = env.stored_ids().await;
    assert_eq!(stored.iter().collect::<HashSet<&Uuid>>().len(), stored.len(), "each once");
    assert_eq!(stored, ids);
    // Numbers go on where the old cluster was.
    env.execute(DECISIONS).await;
    env.ends_with(0, &["maintain"]).await;
    env.ends_with(0, &["verify"]).await;
}

mod long {
    use super::*;

    // proves: G-UPGRADE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_logical_switch_over_costs_no_event() {
        switched("row").await;
    }

    // proves: G-UPGRADE-1
    #[tokio::test(flavor = "multi_thread")]
    async fn a_logical_switch_over_costs_no_event_where_watermarks_mark() {
        switched("lean").await;
    }
}
