//! A partitioned outbox does what any other does.

use support::{DEADLINE, Rig, until};
use testbed::Shape;
use uuid::Uuid;

async fn rig(on_park: &str) -> Rig {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_RELAY__ON_PARK", on_park);
    rig.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    rig.execute(Shape::Partitioned.create()).await;
    rig.setup().await;
    rig
}

async fn emit(rig: &Rig, headers: &str) -> Uuid {
    rig.query(&format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES (gen_random_uuid(), 'order', 'o-1', 'Placed', '{{}}', {headers}) RETURNING id"
    ))
    .await
}

/// R-DLQ-02, R-DLQ-03: parked, its followers behind it, mended, and all come in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_of_a_partitioned_outbox_blocks_its_aggregate_and_is_requeued() {
    let rig = rig("block_key").await;
    let _relay = rig.relay();
    let mut ids = vec![emit(&rig, "'[]'").await];
    ids.push(emit(&rig, "NULL").await);
    let dead = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "both are parked", async || rig.query::<i64>(dead).await == 2).await;
    rig.execute("UPDATE outbox_dead_letter SET headers = NULL").await;
    let id = ids[0].to_string();
    let args = ["outbox", "dlq", "requeue", &id, "--wait", "20s", "--direct"];
    rig.ends_with(0, &args).await;
    rig.wait_stored(2).await;
    ids.push(emit(&rig, "NULL").await);
    rig.wait_stored(3).await;
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
    assert_eq!(rig.query::<i64>(dead).await, 0);
}

/// R-REL-06: PostgreSQL decodes an UPDATE that moves a row to another partition as an INSERT.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_moves_to_another_partition_is_not_published_again() {
    let mut rig = rig("skip").await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    let _relay = rig.relay();
    let mut ids = vec![emit(&rig, "NULL").await];
    rig.wait_stored(1).await;
    rig.wait_marked().await;
    rig.execute("UPDATE outbox_events SET occurred_at = '1999-12-31'").await;
    ids.push(emit(&rig, "NULL").await);
    rig.wait_stored(2).await;
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
}
