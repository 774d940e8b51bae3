//! Poll mode: a server without logical decoding, nodes side by side.

use std::time::Duration;

use support::{DEADLINE, Load, Rig, RigOptions, until};
use testbed::{NatsOptions, PostgresOptions};

/// A server that writes no more to its log than replication needs.
async fn rig() -> Rig {
    let postgres = PostgresOptions {
        settings: vec![("wal_level".into(), "replica".into())],
        ..PostgresOptions::default()
    };
    let nats = NatsOptions { max_payload: Some(4_096), ..NatsOptions::default() };
    let mut rig = Rig::with(RigOptions { postgres, nats, proxied: true }).await;
    rig.set("TAILPOST_RELAY__MODE", "poll");
    rig.setup().await;
    rig
}

/// The stream has each aggregate's events in the order in which they were inserted.
async fn assert_ordered(rig: &Rig) {
    let ordered = "
        SELECT bool_and(stream_seq > before) FROM (
            SELECT stream_seq, lag(stream_seq, 1, 0::BIGINT)
                OVER (PARTITION BY aggregate_id ORDER BY seq) AS before
            FROM outbox_events) AS it";
    assert!(rig.query::<bool>(ordered).await, "an aggregate is out of order");
}

/// Ends the load; when all is marked, every committed event is stored once, each aggregate's in
/// order, and nothing else.
async fn assert_exact(rig: &Rig, load: Load) {
    let written = load.stop().await;
    rig.wait_marked().await;
    let tally = rig.tally(&written).await;
    tally.assert_exact();
    assert_ordered(rig).await;
    let attempts: i64 =
        rig.query("SELECT coalesce(sum(publish_attempts), 0)::BIGINT FROM outbox_events").await;
    assert_eq!(attempts, 0, "attempts were consumed");
    let parked: i64 = rig.query("SELECT count(*) FROM outbox_dead_letter").await;
    assert_eq!(parked, 0, "events were parked");
}

/// R-REL-08
#[tokio::test(flavor = "multi_thread")]
async fn without_logical_decoding_events_are_published_in_order_and_poison_is_parked() {
    let rig = rig().await;
    let mut expected = rig.insert(500).await;
    let poison = "SELECT outbox_emit('order', 'o-1', 'OrderPlaced',
                      jsonb_build_object('x', repeat('x', 9000)))";
    rig.execute(poison).await;
    expected.extend(rig.insert(100).await);
    // What is there is published, and then it ends.
    rig.ends_with(0, &["relay", "--once"]).await;
    rig.wait_marked().await;
    let mut stored = rig.stored_ids().await;
    assert_eq!(stored.len(), expected.len());
    stored.sort_unstable();
    expected.sort_unstable();
    assert_eq!(stored, expected);
    assert_ordered(&rig).await;
    let parked: i64 = rig.query("SELECT count(*) FROM outbox_dead_letter").await;
    assert_eq!(parked, 1);
    rig.ends_with(0, &["status"]).await;
}

/// R-REL-08: the other modes say what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn without_logical_decoding_the_live_relay_says_what_to_change() {
    let mut rig = rig().await;
    rig.set("TAILPOST_RELAY__MODE", "fenced");
    let setup = rig.spawn(&["setup"]);
    assert!(!setup.wait_exit(DEADLINE).await.success());
    let log = setup.log();
    assert!(log.contains("wal_level = logical") && log.contains("relay.mode = \"poll\""), "{log}");
}

/// R-REL-08: also with claims in small pieces, so that nodes meet at the same aggregates.
// proves: G-ORDER-2
#[tokio::test(flavor = "multi_thread")]
async fn nodes_side_by_side_double_nothing_and_keep_order_when_one_is_killed() {
    let mut rig = rig().await;
    rig.set("TAILPOST_OUTBOX_BATCH_SIZE", "5");
    rig.set("TAILPOST_OUTBOX_WORKERS", "4");
    rig.set("TAILPOST_OUTBOX_POLL_MS", "10");
    // Of ten aggregates, so that every claim meets all of them.
    rig.insert(3_000).await;
    let load = rig.load(7, 1000.0).await;
    let stays = rig.relay();
    for round in 1..=4 {
        let dies = rig.relay();
        dies.wait_log("polling the outbox").await;
        load.wait_committed(200).await;
        if round % 2 == 0 {
            rig.to_nats().set_delay(Duration::from_millis(30));
        }
        load.wait_committed(100).await;
        dies.kill9().await;
        rig.to_nats().set_delay(Duration::ZERO);
    }
    stays.wait_log("polling the outbox").await;
    assert_exact(&rig, load).await;
}

/// R-REL-08, R-REL-09
// proves: G-DEAD-2
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_outage_consumes_no_attempts_and_costs_nothing() {
    let mut rig = rig().await;
    let load = rig.load(8, 500.0).await;
    let (_one, _other) = (rig.relay(), rig.relay());
    load.wait_committed(200).await;
    rig.to_nats().cut().await;
    load.wait_committed(500).await;
    rig.to_nats().restore().await.expect("restore the network");
    load.wait_committed(200).await;
    rig.nats.kill().await.expect("kill NATS");
    load.wait_committed(200).await;
    rig.nats.start_again().await.expect("start NATS again");
    load.wait_committed(200).await;
    assert_exact(&rig, load).await;
}

/// R-REL-08: the server goes away with all claims.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_restart_costs_nothing() {
    let mut rig = rig().await;
    let load = rig.load(9, 500.0).await;
    let relay = rig.relay();
    load.wait_committed(300).await;
    rig.postgres.kill().await.expect("kill PostgreSQL");
    rig.postgres.start_again().await.expect("start PostgreSQL again");
    relay.wait_log("starting anew").await;
    load.wait_committed(300).await;
    until(DEADLINE, "the relay polls again", async || {
        relay.log().matches("polling the outbox").count() > 1
    })
    .await;
    assert_exact(&rig, load).await;
}

/// R-REL-08: claims that wait for the broker keep nobody from the table, and vacuum neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_can_be_altered_while_claims_wait_for_the_broker() {
    let mut rig = rig().await;
    let load = rig.load(10, 300.0).await;
    let (_one, _other) = (rig.relay(), rig.relay());
    load.wait_committed(200).await;
    rig.to_nats().cut().await;
    load.wait_committed(300).await;
    let alter = "SET lock_timeout = '10s'; ALTER TABLE outbox_events ADD COLUMN another INT";
    rig.execute(alter).await;
    load.wait_committed(100).await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tailpost%'
                    AND state = 'idle in transaction'";
    assert_eq!(rig.query::<i64>(open).await, 0, "something is held open");
    rig.to_nats().restore().await.expect("restore the network");
    assert_exact(&rig, load).await;
}

/// R-REL-08: a locked row holds up its aggregate's later events, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_stops_no_poll() {
    let rig = rig().await;
    let ids = rig.insert(40).await;
    let mut client = rig.client().await;
    let lock = client.transaction().await.expect("begin");
    let sql = "SELECT FROM outbox_events WHERE id = $1 FOR UPDATE";
    lock.execute(sql, &[&ids[3]]).await.expect("lock a row");
    let relay = rig.relay();
    until(DEADLINE, "all but the locked are marked", async || rig.unmarked().await == 1).await;
    rig.insert(1_000).await;
    until(DEADLINE, "all but the locked are marked", async || rig.unmarked().await == 1).await;
    relay.kill9().await;
    let _relay = rig.relay();
    rig.insert(10).await;
    until(DEADLINE, "all but the locked are marked", async || rig.unmarked().await == 1).await;
    lock.rollback().await.expect("let go");
    rig.wait_marked().await;
    assert_eq!(rig.stored_count().await, 1_050);
    assert_ordered(&rig).await;
}
