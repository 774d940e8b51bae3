//! What an account may have.

use async_nats::jetstream::consumer::pull;
use lab::NatsOptions;
use support::{DEADLINE, TestEnv, TestEnvOptions};

use crate::inbox::http::configure;

const LIMITS: &str = "accounts { A: {
    users: [{ user: a, password: a }]
    jetstream: { max_mem: 0, max_file: 50M, max_streams: 1, max_consumers: 1, max_bytes_required: true }
} }
no_auth_user: a";

// proves: G-STREAM-1
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_an_account_are_named_with_what_mends_them() {
    let config = vec![LIMITS.to_owned()];
    let nats = NatsOptions { config, ..NatsOptions::default() };
    let mut env = TestEnv::with(TestEnvOptions { nats, ..TestEnvOptions::default() }).await;
    let process = env.spawn(&["setup"]);
    process.announce("");
    assert!(!process.wait_exit(DEADLINE).await.success(), "{}", process.log());
    assert!(process.log().contains("stream.max_bytes"), "{}", process.log());
    env.set("TAILPOST_STREAM__MAX_BYTES", "60 MiB");
    let process = env.spawn(&["setup"]);
    process.announce("");
    assert!(!process.wait_exit(DEADLINE).await.success(), "{}", process.log());
    assert!(process.log().contains("stream.max_bytes"), "{}", process.log());
    env.set("TAILPOST_STREAM__MAX_BYTES", "10 MiB");
    env.setup().await;
    let _relay = env.relay();
    env.insert_each(5).await;
    env.wait_marked().await;
    // The relay's own account has room for one consumer.
    let _folder = configure(&mut env);
    env.ends_with(0, &["inbox", "setup"]).await;
    env.stream().await.delete_consumer("billing").await.expect("delete a consumer");
    let config = pull::Config { durable_name: Some("other".into()), ..pull::Config::default() };
    env.stream().await.create_consumer(config).await.expect("make a consumer");
    let process = env.spawn(&["inbox", "setup"]);
    process.announce("");
    assert!(!process.wait_exit(DEADLINE).await.success(), "{}", process.log());
    assert!(process.log().contains("maximum consumers"), "{}", process.log());
}
