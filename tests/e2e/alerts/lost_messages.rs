//! The stream comes back without its end.

use support::TestEnv;

use super::watch;
use crate::gone_back::StoreCopy;

pub(super) const FIRES: &[&str] = &["TailpostStreamLostMessages"];

pub(super) const WRITES: &[&str] = &["tailpost_stream_lost_timestamp_seconds"];

// proves: G-ALERT-1, G-MET-2
#[tokio::test(flavor = "multi_thread")]
async fn the_alert_about_lost_messages_fires_and_ends() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let watch = watch(&mut env, false, &[]).await;
    let relay = env.relay();
    relay.announce("the stream has lost acknowledged messages");
    env.insert_each(5).await;
    env.wait_marked().await;
    let copy = StoreCopy::take(&mut env).await;
    env.insert_each(5).await;
    env.wait_marked().await;
    watch.wait_quiet().await;

    copy.put_back(&mut env).await;
    watch.prometheus.wait_firing(FIRES).await;
    watch.wait_written(WRITES).await;
    let (status, _) = env.ends_with(0, &["status"]).await;
    assert!(status.contains("without 5 messages that it had acknowledged: 5 rows"), "{status}");
    watch.wait_quiet().await;
}
