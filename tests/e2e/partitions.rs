//! A partitioned outbox does what any other does.

use lab::Shape;
use support::{DEADLINE, TestEnv, until};
use uuid::Uuid;

async fn env(on_park: &str) -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__ON_PARK", on_park);
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.execute(Shape::Partitioned.create()).await;
    env.setup().await;
    env
}

async fn emit(env: &TestEnv, headers: &str) -> Uuid {
    env.query(&format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES (gen_random_uuid(), 'order', 'o-1', 'Placed', '{{}}', {headers}) RETURNING id"
    ))
    .await
}

/// Parked, its followers behind it, mended, and all come in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_of_a_partitioned_outbox_blocks_its_aggregate_and_is_requeued() {
    let env = env("block_key").await;
    let _relay = env.relay();
    let mut ids = vec![emit(&env, "'[]'").await];
    ids.push(emit(&env, "NULL").await);
    let dead = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "both are parked", async || env.query::<i64>(dead).await == 2).await;
    env.execute("UPDATE outbox_dead_letter SET headers = NULL").await;
    let id = ids[0].to_string();
    let args = ["outbox", "dlq", "requeue", &id, "--wait", "20s", "--direct"];
    env.ends_with(0, &args).await;
    env.wait_stored(2).await;
    ids.push(emit(&env, "NULL").await);
    env.wait_stored(3).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    assert_eq!(env.query::<i64>(dead).await, 0);
}

/// PostgreSQL decodes an UPDATE that moves a row to another partition as an INSERT.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_moves_to_another_partition_is_not_published_again() {
    let mut env = env("skip").await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    let _relay = env.relay();
    let mut ids = vec![emit(&env, "NULL").await];
    env.wait_stored(1).await;
    env.wait_marked().await;
    env.execute("UPDATE outbox_events SET occurred_at = '1999-12-31'").await;
    ids.push(emit(&env, "NULL").await);
    env.wait_stored(2).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
}
