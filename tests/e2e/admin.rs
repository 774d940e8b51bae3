//! What an orchestrator is told of a relay.

use std::net::SocketAddr;

use lab::{Direction, Port};
use support::{DEADLINE, TestEnv, get, until};

/// Waits until `/readyz` answers with this code; returns what it says.
async fn wait_ready(address: SocketAddr, code: u16) -> String {
    let mut told = String::new();
    until(DEADLINE, &format!("/readyz answers {code}"), async || {
        told = get(address, "/readyz").await.unwrap_or_default();
        told.starts_with(&format!("HTTP/1.1 {code} "))
    })
    .await;
    told
}

/// A second relay on the same machine has the same default.
// proves: G-TAKE-2
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_admin_port_is_taken_publishes_and_listens_once_it_is_free() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let first = env.relay();
    first.wait_active().await;
    wait_ready(admin.addr(), 200).await;

    let second = env.relay();
    second.wait_log("another process listens there").await;
    let hint = format!("ss -ltnp 'sport = :{}'", admin.addr().port());
    assert!(second.log().contains(&hint), "{}", second.log());
    let process = |relay: &support::Relay| format!("\"process_id\":{}", relay.pid());
    let told = get(admin.addr(), "/api/v1/status").await.expect("an answer");
    assert!(told.contains(&process(&first)), "the status says whose it is: {told}");

    first.kill9().await;
    second.wait_active().await;
    let ids = env.insert(10).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids);
    until(DEADLINE, "the second listens", async || {
        let told = get(admin.addr(), "/api/v1/status").await.unwrap_or_default();
        told.contains(&process(&second))
    })
    .await;
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains(&format!("process {}", second.pid())), "{status}");
    second.sigterm();
    assert!(second.wait_exit(DEADLINE).await.success());
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains(&format!("none answers at {}", admin.addr())), "{status}");
}

/// The inbox has a port of its own, with the same rule: nobody is asked, and it still handles.
// proves: G-TAKE-2
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_whose_admin_port_is_taken_runs_and_stops_on_request() {
    let mut env = TestEnv::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &address);
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let inbox = env.spawn(&["inbox", "run", "--consumer", "c", "--handler", "http://127.0.0.1:1"]);
    inbox.wait_log("another process listens there").await;
    inbox.wait_log("the consumer is ours").await;
    inbox.sigterm();
    assert!(inbox.wait_exit(DEADLINE).await.success());
}

mod long {
    use super::*;

    /// DESIGN 11: judged by progress. The connection looks alive all the time.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_whose_broker_is_frozen_is_not_ready_until_it_gets_on_again() {
        let mut env = TestEnv::proxied().await;
        env.setup().await;
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        let _relay = env.relay();
        let mut ids = env.insert(10).await;
        env.wait_marked().await;
        wait_ready(admin.addr(), 200).await;

        env.to_nats().blackhole(Direction::Both);
        ids.extend(env.insert(10).await);
        let told = wait_ready(admin.addr(), 503).await;
        assert!(told.contains("no progress for ") && told.contains(" events in flight"), "{told}");
        let alive = get(admin.addr(), "/livez").await.expect("an answer");
        assert!(alive.starts_with("HTTP/1.1 200 "), "a restart would mend nothing: {alive}");

        env.to_nats().restore().await.expect("restore the network");
        wait_ready(admin.addr(), 200).await;
        env.wait_marked().await;
        assert_eq!(env.stored_ids().await, ids);
    }
}
