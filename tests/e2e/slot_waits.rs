//! PostgreSQL makes a new slot wait for every older transaction of the cluster: events flow meanwhile.

use std::net::SocketAddr;

use lab::Port;
use support::{DEADLINE, Relay, TestEnv, get, until};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::poll::{committing_late, events_have_rows_after_a_crash};

/// A broker that forgets ids at once, and a relay that may ask for a slot, which there was before or not.
async fn env(is_first: bool) -> (TestEnv, Port) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.set("TAILPOST_RELAY__SCAN_BATCH", "100");
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    if is_first {
        env.execute("SELECT pg_drop_replication_slot('tailpost'); DELETE FROM tailpost_state")
            .await;
    }
    (env, admin)
}

/// A transaction in another database, and its process.
async fn old_transaction(env: &TestEnv) -> (Client, i32) {
    env.postgres.create_database("elsewhere").await.expect("create a database");
    let old = env.postgres.client("elsewhere").await.expect("connect");
    let begin = "SET application_name = 'month end'; BEGIN; SELECT pg_current_xact_id()";
    old.batch_execute(begin).await.expect("begin");
    let pid = old.query_one("SELECT pg_backend_pid()", &[]).await.expect("ask").get(0);
    (old, pid)
}

async fn end(transaction: Client) {
    transaction.batch_execute("COMMIT").await.expect("commit");
}

async fn wait_ready(address: SocketAddr, words: &str) {
    until(DEADLINE, &format!("/readyz is 200 with `{words}`"), async || {
        let told = get(address, "/readyz").await.unwrap_or_default();
        told.starts_with("HTTP/1.1 200 ") && told.contains(words)
    })
    .await;
}

async fn slot_waits(env: &TestEnv) -> bool {
    let waits = "SELECT count(*) FROM pg_replication_slots
                 WHERE slot_name = 'tailpost' AND active AND confirmed_flush_lsn IS NULL";
    env.query::<i64>(waits).await == 1
}

async fn wait_slot(env: &TestEnv) {
    let is_there = "SELECT count(*) FROM pg_replication_slots
                    WHERE slot_name = 'tailpost' AND active AND confirmed_flush_lsn IS NOT NULL";
    until(DEADLINE, "the slot is read", async || env.query::<i64>(is_there).await == 1).await;
}

/// What was committed is stored and marked, and the slot still waits.
async fn flows(env: &TestEnv, expected: &[Uuid]) {
    env.wait_stored(expected.len() as u64).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, expected);
    assert!(slot_waits(env).await, "the slot is there");
}

// proves: G-SLOT-3
#[tokio::test(flavor = "multi_thread")]
async fn while_the_first_slot_waits_events_flow_from_the_table_and_none_twice_from_the_log() {
    let (env, admin) = env(true).await;
    let mut expected = env.insert_each(350).await;
    let (_old, pid) = old_transaction(&env).await;
    let _relay = env.relay();
    flows(&env, &expected).await;
    // Its row is older than those that follow, and nobody sees it before it ends.
    let open = env.client().await;
    open.batch_execute("BEGIN; SELECT outbox_emit('order', 'open', 'Early', '{}')")
        .await
        .expect("insert an event");
    for _ in 0..3 {
        expected.extend(env.insert_each(20).await);
        flows(&env, &expected).await;
    }
    wait_ready(admin.addr(), "the slot waits").await;
    let who = format!("process {pid} (month end), whose transaction is ");
    let status = get(admin.addr(), "/api/v1/status").await.expect("an answer");
    assert!(status.contains(&format!("to create the replication slot: for {who}")), "{status}");
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains(&format!("makes the slot wait for {who}")), "{status}");
    let (doctor, _) = env.ends_with(0, &["doctor", "--only", "slot-exists"]).await;
    let remedy = format!("SELECT pg_terminate_backend({pid})");
    assert!(doctor.contains(&who) && doctor.contains(&remedy), "{doctor}");
    env.execute(&remedy).await;
    let is_over = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    until(DEADLINE, "it is over", async || env.query::<i64>(&is_over).await == 0).await;
    assert!(slot_waits(&env).await, "it waits for the other one");
    expected.extend(env.insert_each(20).await);
    flows(&env, &expected).await;
    end(open).await;
    wait_slot(&env).await;
    expected.extend(env.insert_each(20).await);
    env.wait_stored(expected.len() as u64 + 1).await;
    env.wait_marked().await;
    let stored = env.stored_ids().await;
    let (early, others): (Vec<Uuid>, _) = stored.iter().partition(|id| !expected.contains(id));
    assert_eq!((early.len(), others), (1, expected), "each once, in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_leaves_a_slot_that_waits_to_the_relay() {
    let env = TestEnv::new().await;
    let (old, _) = old_transaction(&env).await;
    let (told, _) = env.ends_with(0, &["setup"]).await;
    assert!(told.contains("slot tailpost is not there"), "{told}");
    let _relay = env.relay();
    let mut expected = env.insert_each(10).await;
    flows(&env, &expected).await;
    // It is the relay's by now.
    env.setup().await;
    end(old).await;
    wait_slot(&env).await;
    expected.extend(env.insert_each(10).await);
    env.wait_stored(20).await;
    assert_eq!(env.stored_ids().await, expected);
}

// proves: G-LOSS-7
#[tokio::test(flavor = "multi_thread")]
async fn while_the_slot_waits_events_are_on_the_disk_before_they_are_published() {
    let mut env = committing_late("logical").await;
    let (_old, _) = old_transaction(&env).await;
    env.setup().await;
    let _relay = env.relay();
    // PostgreSQL makes the slot from what is on the disk: by now it waits for the old transaction.
    let first = env.insert_each(1).await;
    flows(&env, &first).await;
    events_have_rows_after_a_crash(&mut env).await;
}

mod long {
    use super::*;

    /// Marks lag when the slot is lost, relays are killed, and one stands by.
    // proves: G-SLOT-3
    #[tokio::test(flavor = "multi_thread")]
    async fn while_a_lost_slot_waits_events_flow_whoever_is_killed_and_none_comes_twice() {
        let (mut env, admin) = env(false).await;
        env.set("TAILPOST_ADMIN__LISTEN", "off");
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "1h");
        let former = env.relay();
        former.wait_active().await;
        let load = env.load(23, 300.0).await;
        load.wait_committed(300).await;
        let (old, _) = old_transaction(&env).await;
        former.kill9().await;
        env.set("TAILPOST_RELAY__MARK_INTERVAL", "50ms");
        env.drop_slot("tailpost").await;
        let mut relay: Option<Relay> = None;
        for _ in 0..3 {
            if let Some(relay) = relay.take() {
                relay.kill9().await;
            }
            relay = Some(env.relay());
            let stored = env.stored_count().await;
            until(DEADLINE, "events flow", async || env.stored_count().await > stored + 100).await;
            assert!(slot_waits(&env).await, "the slot is there");
        }
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        let _standby = env.relay();
        wait_ready(admin.addr(), "standby").await;
        relay.take().expect("it runs").kill9().await;
        let stored = env.stored_count().await;
        until(DEADLINE, "the standby publishes", async || env.stored_count().await > stored + 100)
            .await;
        end(old).await;
        wait_slot(&env).await;
        load.wait_committed(100).await;
        let written = load.stop().await;
        env.wait_marked().await;
        let tally = env.tally(&written).await;
        assert_eq!((tally.lost, tally.duplicates, tally.phantoms), (0, 0, 0), "{tally}");
    }
}
