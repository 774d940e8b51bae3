//! While no relay runs, somebody changes what the log brings: no event is taken for published.

use support::{DEADLINE, Rig};

/// Has published ten events, and stopped cleanly.
async fn rig() -> (Rig, Vec<uuid::Uuid>) {
    let mut rig = Rig::new().await;
    rig.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    rig.setup().await;
    let relay = rig.relay();
    relay.wait_active().await;
    let ids = rig.insert(10).await;
    rig.wait_marked().await;
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
    (rig, ids)
}

/// R-REL-01, R-REL-07
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_lacked_the_table_for_a_while_costs_no_event() {
    let (rig, mut expected) = rig().await;
    rig.execute("ALTER PUBLICATION tailpost DROP TABLE outbox_events").await;
    expected.extend(rig.insert_each(10).await);
    rig.execute("ALTER PUBLICATION tailpost ADD TABLE outbox_events").await;
    expected.extend(rig.insert_each(10).await);

    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, expected);
}

/// R-REL-01, R-REL-07: faster than the relay looks at it.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_changed_and_changed_back_beside_a_relay_costs_no_event() {
    let (rig, mut expected) = rig().await;
    let relay = rig.relay();
    relay.wait_active().await;
    relay.pause();
    rig.execute("ALTER PUBLICATION tailpost SET (publish = '')").await;
    expected.extend(rig.insert_each(10).await);
    rig.execute("ALTER PUBLICATION tailpost SET (publish = 'insert')").await;
    relay.resume();
    expected.extend(rig.insert_each(10).await);
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, expected);
}

/// R-REL-01, R-REL-07: before PostgreSQL 17 nothing tells one slot from another.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_replaced_by_hand_costs_no_event() {
    let (rig, mut expected) = rig().await;
    if rig.postgres.version() < 17 {
        return;
    }
    expected.extend(rig.insert_each(10).await);
    rig.execute("SELECT pg_drop_replication_slot('tailpost')").await;
    rig.execute("SELECT pg_create_logical_replication_slot('tailpost', 'pgoutput')").await;
    expected.extend(rig.insert_each(10).await);

    let _relay = rig.relay();
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, expected);
}

/// R-OUT-01: slots are the cluster's, outboxes are the databases'.
#[tokio::test(flavor = "multi_thread")]
async fn the_slot_of_another_database_is_not_stood_by_for() {
    let (mut rig, _) = rig().await;
    let relay = rig.relay();
    relay.wait_active().await;
    rig.postgres.create_database("second").await.expect("create a database");
    rig.set("DATABASE_URL", &rig.postgres.url("second"));
    let setup = rig.spawn(&["setup"]);
    setup.announce("error: ");
    assert_eq!(setup.wait_exit(DEADLINE).await.code(), Some(4), "{}", setup.log());
    assert!(setup.log().contains("postgres.slot"), "{}", setup.log());
}
