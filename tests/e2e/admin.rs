//! What an orchestrator is told of a relay.

use std::net::SocketAddr;

use support::{DEADLINE, Rig, get, until};
use testbed::{Direction, Port};

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

/// DESIGN 11: judged by progress. The connection looks alive all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_broker_is_frozen_is_not_ready_until_it_gets_on_again() {
    let mut rig = Rig::proxied().await;
    rig.setup().await;
    let admin = Port::reserve().expect("a free port");
    rig.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    let _relay = rig.relay();
    let mut ids = rig.insert(10).await;
    rig.wait_marked().await;
    wait_ready(admin.addr(), 200).await;

    rig.to_nats().blackhole(Direction::Both);
    ids.extend(rig.insert(10).await);
    let told = wait_ready(admin.addr(), 503).await;
    assert!(told.contains("no progress for ") && told.contains(" events in flight"), "{told}");
    let alive = get(admin.addr(), "/livez").await.expect("an answer");
    assert!(alive.starts_with("HTTP/1.1 200 "), "a restart would mend nothing: {alive}");

    rig.to_nats().restore().await.expect("restore the network");
    wait_ready(admin.addr(), 200).await;
    rig.wait_marked().await;
    assert_eq!(rig.stored_ids().await, ids);
}
