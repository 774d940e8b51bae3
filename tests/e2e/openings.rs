//! Opening a session: what is silent is left, what is waited for is said.

use std::net::SocketAddr;

use lab::{After, Direction, Port};
use support::{DEADLINE, Relay, TestEnv, get, until};

/// Waits until `/readyz` answers with this code and these words.
async fn wait_ready(address: SocketAddr, code: u16, words: &str) {
    until(DEADLINE, &format!("/readyz answers {code} with `{words}`"), async || {
        let told = get(address, "/readyz").await.unwrap_or_default();
        told.starts_with(&format!("HTTP/1.1 {code} ")) && told.contains(words)
    })
    .await;
}

async fn env() -> (TestEnv, SocketAddr, Port) {
    let mut env = TestEnv::proxied().await;
    let url =
        format!("postgres://postgres@{}/postgres?connect_timeout=2", env.to_postgres().addr());
    env.set("DATABASE_URL", &url);
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    (env, admin.addr(), admin)
}

/// How often the relay gave an opening up so far.
fn attempts(relay: &Relay) -> usize {
    relay.log().matches("starting anew").count()
}

/// PostgreSQL waits for every transaction that is running, however long that takes: nobody but the
/// one that holds it up can say what it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_waits_for_an_old_transaction_says_so_and_a_silent_server_is_left_meanwhile() {
    let (mut env, admin, _port) = env().await;
    env.drop_slot("tailpost").await;
    let old = env.client().await;
    old.batch_execute("SET application_name = 'month end'; BEGIN; SELECT pg_current_xact_id()")
        .await
        .expect("begin a transaction");
    let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.expect("ask").get(0);

    let relay = env.relay();
    // What it waits for is not for everybody.
    wait_ready(admin, 200, "the slot waits; events come from the table").await;
    let status = get(admin, "/api/v1/status").await.expect("an answer");
    let evidence = format!("to create the replication slot: for process {pid} (month end)");
    assert!(status.contains(&evidence), "{status}");
    assert!(status.contains("whose transaction is "), "{status}");
    assert_eq!(attempts(&relay), 0, "it waits as long as there is something to wait for");

    // The server goes on waiting, and the answer would never come.
    env.to_postgres().blackhole(Direction::Both);
    until(DEADLINE, "the relay gives up", async || attempts(&relay) > 0).await;
    wait_ready(admin, 503, "starting").await;
    env.to_postgres().restore().await.expect("restore the network");
    old.batch_execute("COMMIT").await.expect("commit");
    let ids = env.insert(10).await;
    env.wait_marked().await;
    wait_ready(admin, 200, "active").await;
    assert_eq!(env.stored_ids().await, ids);
}

/// The same for the broker, from the start of the process on.
// proves: G-LOSS-5
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_falls_silent_at_any_step_of_opening_is_left_and_come_back_to() {
    let (mut env, admin, _port) = env().await;
    let mut ids = Vec::new();
    for messages in [0, 2, 8] {
        env.to_nats().after(messages, After::Silence);
        let relay = env.relay();
        until(DEADLINE, "the relay gives up", async || attempts(&relay) > 0).await;
        wait_ready(admin, 503, "starting").await;
        env.to_nats().restore().await.expect("restore the network");
        ids.extend(env.insert(5).await);
        env.wait_marked().await;
        wait_ready(admin, 200, "active").await;
        relay.kill9().await;
    }
    assert_eq!(env.stored_ids().await, ids);
}

/// A standby looks at the slot all the time: a server that falls silent then is noticed as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_whose_server_fell_silent_is_not_ready_until_it_is_back() {
    let (mut env, admin, _port) = env().await;
    let through =
        format!("postgres://postgres@{}/postgres?connect_timeout=2", env.to_postgres().addr());
    env.set("DATABASE_URL", &env.postgres.url("postgres"));
    env.set("TAILPOST_ADMIN__LISTEN", "off");
    let active = env.relay();
    active.wait_active().await;
    env.set("DATABASE_URL", &through);
    env.set("TAILPOST_ADMIN__LISTEN", &admin.to_string());
    let _standby = env.relay();
    wait_ready(admin, 200, "standby").await;
    env.to_postgres().blackhole(Direction::Both);
    wait_ready(admin, 503, "starting").await;
    env.to_postgres().restore().await.expect("restore the network");
    wait_ready(admin, 200, "standby").await;
}

mod long {
    use super::*;

    /// Each connection falls silent after so many messages: in the greeting, while settings are made,
    /// while the slot is looked at and started.
    // proves: G-LOSS-5
    #[tokio::test(flavor = "multi_thread")]
    async fn a_postgres_that_falls_silent_at_any_step_of_opening_is_left_and_come_back_to() {
        let (mut env, admin, _port) = env().await;
        let mut ids = Vec::new();
        let relay = env.relay();
        wait_ready(admin, 200, "active").await;
        for messages in [0, 2, 20, 30, 45] {
            let before = attempts(&relay);
            env.to_postgres().cut().await;
            env.to_postgres().restore().await.expect("restore the network");
            env.to_postgres().after(messages, After::Silence);
            let silent = env.to_postgres().limited();
            until(DEADLINE, "a connection falls silent and is given up", async || {
                env.to_postgres().limited() > silent && attempts(&relay) > before + 1
            })
            .await;
            wait_ready(admin, 503, "starting").await;
            env.to_postgres().restore().await.expect("restore the network");
            ids.extend(env.insert(5).await);
            env.wait_marked().await;
            wait_ready(admin, 200, "active").await;
        }
        assert_eq!(env.stored_ids().await, ids);
    }
}
