//! Attempts at an event are counted in its row, whoever makes them.

use lab::NatsOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions, until};

/// How often an event is tried.
const MAX: i32 = 8;

const ATTEMPTS: &str = "SELECT coalesce(max(publish_attempts), 0) FROM outbox_events";

/// The relay may not publish invoices.
async fn env(mode: &str) -> TestEnv {
    let users = "authorization { users: [
        { user: relay, password: relay, permissions: { publish: { deny: \"outbox.invoice.>\" } } }
        { user: test } ] }";
    let config = vec![users.into(), "no_auth_user: test".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_RELAY__MODE", mode);
    env.set("TAILPOST_RELAY__MAX_ATTEMPTS", &MAX.to_string());
    env.set("TAILPOST_RELAY__SCAN_INTERVAL", "200ms");
    env.setup().await;
    env.set("NATS_URL", &env.nats.url().replace("://", "://relay:relay@"));
    env
}

async fn counts_across_sessions(mode: &str) {
    let env = env(mode).await;
    env.execute("SELECT outbox_emit('invoice', 'i-1', 'Sent', '{}')").await;
    let mut tried = 0;
    for _ in 0..2 {
        let relay = env.relay();
        let what = "two more attempts";
        until(DEADLINE, what, async || env.query::<i32>(ATTEMPTS).await >= tried + 2).await;
        relay.kill9().await;
        tried = env.query(ATTEMPTS).await;
    }
    assert!(tried < MAX, "the test proves nothing");
    let relay = env.relay();
    let parked = "SELECT count(*) FROM outbox_dead_letter";
    until(DEADLINE, "it is parked", async || env.query::<i64>(parked).await == 1).await;
    let counted: i32 = env.query("SELECT publish_attempts FROM outbox_dead_letter").await;
    assert_eq!(counted, MAX);
    let later = relay.log().matches("trying again in").count();
    assert!(later < usize::try_from(MAX - tried).expect("positive"), "{later} more attempts");
}

// proves: G-DEAD-6
#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_across_sessions() {
    counts_across_sessions("fenced").await;
}

// proves: G-DEAD-6
#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_across_sessions_that_poll() {
    counts_across_sessions("poll").await;
}

/// When an event is due is in its row, too, and no later than any pause is long. A row that
/// says that it was tried often gets one more attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_with_the_attempts_that_the_table_has() {
    let env = env("fenced").await;
    env.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload,
             publish_attempts, next_attempt_at)
         VALUES (gen_random_uuid(), 'invoice', 'i-1', 'Sent', '{}', 2147483647, 'infinity'),
             (gen_random_uuid(), 'order', 'o-1', 'Placed', '{}', -1, '-infinity')",
    )
    .await;
    let _relay = env.relay();
    env.wait_stored(1).await;
    env.wait_confirmed().await;
    let counted: i32 = env.query("SELECT publish_attempts FROM outbox_dead_letter").await;
    assert_eq!(counted, i32::MAX);
}
