//! The relay's database is put back to an earlier state, and the stream is not.

use lab::Port;
use support::{DEADLINE, TestEnv, until};

use crate::inbox::database_gone_back::DatabaseCopy;

/// The stream has events of which the database knows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn status_warns_of_a_database_that_went_back() {
    let mut env = TestEnv::new().await;
    let admin = Port::reserve().expect("a free port");
    env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
    env.setup().await;
    let relay = env.relay();
    env.insert(5).await;
    env.wait_marked().await;
    relay.kill9().await;
    let copied = DatabaseCopy::take(&mut env).await;
    let relay = env.relay();
    relay.announce("the database went back");
    env.insert(1_000).await;
    env.wait_stored(1_005).await;
    copied.put_back(&mut env).await;
    until(DEADLINE, "status warns of it, and the relay is at work", async || {
        let told = env.spawn(&["status", "--json"]);
        told.announce("");
        told.wait_exit(DEADLINE).await;
        let told: serde_json::Value = serde_json::from_str(&told.stdout()).unwrap_or_default();
        let warnings = told["warnings"].to_string();
        warnings.contains("the database went back, by a restore or a failover")
    })
    .await;
    env.insert(5).await;
    env.wait_marked().await;
    let (text, _) = env.ends_with(0, &["status"]).await;
    assert!(text.contains("went back"), "{text}");
}
