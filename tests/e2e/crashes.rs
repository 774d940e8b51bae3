//! The relay dies like a crash, wherever it is in its work.

use support::Rig;

/// R-REL-02, R-REL-03, R-REL-06.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_when_idle_goes_on_where_it_was() {
    let rig = Rig::new().await;
    rig.setup().await;
    let relay = rig.relay();
    let mut ids = rig.insert_each(100).await;
    rig.wait_stored(100).await;
    relay.kill9().await;
    ids.extend(rig.insert(100).await);
    let _relay = rig.relay();
    rig.wait_stored(200).await;
    rig.wait_marked().await;
    rig.wait_confirmed().await;
    assert_eq!(rig.stored_ids().await, ids);
}
