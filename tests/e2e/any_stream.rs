//! Whatever a stream's configuration does to events is said by name, or costs nothing.

mod account_limits;
mod generated;
mod markers;
mod removals;
mod transforms;

use async_nats::jetstream::stream::Config;
use serde_json::Value;
use support::TestEnv;

/// Changes the configuration of the stream.
pub(crate) async fn edit(env: &TestEnv, change: impl FnOnce(&mut Config)) {
    let mut config = env.stream().await.cached_info().config.clone();
    change(&mut config);
    let jetstream = env.nats.jetstream().await.expect("connect to NATS");
    jetstream.update_stream(config).await.expect("change the stream");
}

/// The check with this id, as `tailpost doctor` prints it.
async fn check(env: &TestEnv, id: &str) -> Value {
    let process = env.spawn(&["doctor", "--json", "--only", id]);
    process.announce("");
    process.wait_exit(support::DEADLINE).await;
    let report: Value = serde_json::from_str(&process.stdout()).expect("one JSON object");
    report["checks"][0].clone()
}
