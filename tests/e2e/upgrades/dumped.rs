//! The database is restored from a dump, in a cluster that knows nothing of its transactions.

use lab::{Postgres, PostgresOptions};

use super::{env, stop};

/// Of what the dump has, some is published and not marked, some is not published.
// proves: G-UPGRADE-1
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_restored_into_a_newer_version_is_published_once_and_in_order() {
    let mut env = env(16, &[]).await;
    // So that the new cluster's transactions have lower numbers.
    for _ in 0..200 {
        env.execute("SELECT pg_current_xact_id()").await;
    }
    let relay = env.relay();
    let mut ids = env.insert_each(100).await;
    env.wait_marked().await;
    stop(relay).await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
    let relay = env.relay();
    relay.wait_active().await;
    ids.extend(env.insert_each(50).await);
    env.wait_stored(150).await;
    relay.kill9().await;
    env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
    ids.extend(env.insert_each(20).await);
    assert_eq!(env.unmarked().await, 70, "50 of them are published");

    let restored = PostgresOptions {
        version: Some(17),
        complete: true,
        own_identity: true,
        ..PostgresOptions::default()
    };
    let restored = Postgres::start(restored).await.expect("start PostgreSQL 17");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = file.path().to_str().expect("UTF-8");
    let from = env.postgres.url("postgres");
    let dump = ["--format=custom", "--file", file, from.as_str()];
    restored.run_program("pg_dump", &dump).await.expect("dump");
    let into = restored.url("postgres");
    let restore = ["--exit-on-error", "--dbname", into.as_str(), file];
    restored.run_program("pg_restore", &restore).await.expect("restore");
    let _old = std::mem::replace(&mut env.postgres, restored);
    env.set("DATABASE_URL", &env.postgres.url("postgres"));

    ids.extend(env.insert_each(10).await); // before anybody has run anything
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("created  slot tailpost"), "{told}");
    let relay = env.relay();
    relay.wait_active().await;
    ids.extend(env.insert_each(10).await);
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    env.ends_with(0, &["verify"]).await;
}

/// Only the outbox came along, with transactions that are yet to come here.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_transactions_to_come_are_published_without_any_state() {
    let env = env(17, &[]).await;
    env.ends_with(0, &["slot", "drop"]).await;
    env.execute("DELETE FROM tailpost_state").await;
    env.execute(
        "SET session_replication_role = replica; -- a dump makes the trigger after the rows
         INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, txid, seq)
         SELECT gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', '123456789', 1000 + n
         FROM generate_series(1, 5) AS n;
         RESET session_replication_role",
    )
    .await;
    env.setup().await;
    let _relay = env.relay();
    env.wait_marked().await;
    assert_eq!(env.stored_count().await, 5);
    env.insert(1).await;
    let seq = "SELECT max(seq) FROM outbox_events";
    assert!(env.query::<i64>(seq).await > 1005, "newer rows come after older ones in a scan");
}
