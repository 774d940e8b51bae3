//! Rows of the partitioned records are locked while others change them.

use lab::PostgresOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

use super::service::Service;

/// With run-time pruning 18.4 crashes here: a server whose backend does ends every session, also one
/// that does nothing.
// proves: G-EFFECT-1
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_postgresql_18_survives_events_that_end_while_their_leases_are_extended() {
    let postgres = PostgresOptions { version: Some(18), ..PostgresOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1");
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let idle = env.client().await;
    let relay = env.relay();
    relay.wait_active().await;
    let service = Service::start().await;
    service.answer(422);
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.announce("");
    let events =
        "SELECT outbox_emit('order', 'o-' || n, 'Placed', '{}') FROM generate_series(1, 1000) n";
    env.execute(events).await;
    let dead = "SELECT count(*) FROM inbox_dead_letter";
    until(DEADLINE, "all are dead letters", async || env.query::<i64>(dead).await == 1000).await;
    idle.simple_query("SELECT 1").await.expect("the session is there");
}
