//! Users of the broker who hear nothing but their own answers.

use lab::NatsOptions;
use support::{TestEnv, TestEnvOptions};

/// Permissions as `doctor` prints them, for another prefix.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_hears_only_its_own_answers_needs_the_prefix() {
    let users = "authorization { users: [
        { user: relay, password: relay, permissions: {
            publish: [\"outbox.>\", \"$JS.API.>\", \"$SYS.REQ.USER.INFO\"], subscribe: \"_INBOX_relay.>\" } }
        { user: test } ] }";
    let config = vec![users.into(), "no_auth_user: test".into()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    env.setup().await;
    env.set("NATS_URL", &env.nats.url().replace("://", "://relay:relay@"));
    let (told, _) = env.ends_with(0, &["doctor", "--only", "nats-permissions"]).await;
    assert!(told.contains("under _INBOX.>"), "{told}");
    env.set("TAILPOST_NATS__INBOX_PREFIX", "_INBOX_relay");
    env.ends_with(0, &["doctor", "--only", "nats-permissions"]).await;
    env.insert(20).await;
    env.ends_with(0, &["relay", "--once"]).await;
    assert_eq!((env.stored_count().await, env.unmarked().await), (20, 0));
}
