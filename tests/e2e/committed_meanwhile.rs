//! The broker is away, and comes back with a stream that lost its end.

use lab::Port;
use support::{DEADLINE, TestEnv, get, until};

use crate::gone_back::StoreCopy;

async fn is_committed_while_the_broker_is_away(mode: &str) {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_RELAY__MODE", mode);
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    let mut ids = env.insert_each(20).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    ids.extend(env.insert_each(20).await);
    env.wait_marked().await;
    env.nats.kill().await.expect("kill the broker");
    let metrics = async || get(admin.addr(), "/metrics").await.unwrap_or_default();
    until(DEADLINE, "the connection is gone", async || {
        metrics()
            .await
            .lines()
            .any(|it| it.starts_with("tailpost_jetstream_connected") && it.ends_with(" 0.0"))
    })
    .await;
    ids.extend(env.insert_each(20).await);
    copy.restore(&mut env).await;
    until(DEADLINE, "each event is stored", async || env.stored_count().await >= 60).await;
    env.wait_marked().await;
    assert_eq!(env.stored_ids().await, ids, "one aggregate, in order");
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_while_the_broker_is_away_comes_behind_what_the_stream_has_lost() {
    is_committed_while_the_broker_is_away("keyed").await;
}

// proves: G-LOSS-6
#[tokio::test(flavor = "multi_thread")]
async fn in_poll_mode_what_is_committed_while_the_broker_is_away_comes_behind_what_is_lost() {
    is_committed_while_the_broker_is_away("poll").await;
}
