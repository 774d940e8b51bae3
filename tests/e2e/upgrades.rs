//! PostgreSQL and Tailpost are upgraded, as docs/upgrading.md says.

mod blue_green;
mod dumped;
mod major;
mod prepare;
mod schemas;

use lab::PostgresOptions;
use support::{DEADLINE, Relay, TestEnv, TestEnvOptions};

/// Servers of which the one forgets ids at once and the other has all programs.
async fn env(version: u32, settings: &[(&str, &str)]) -> TestEnv {
    let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let postgres = PostgresOptions {
        version: Some(version),
        complete: true,
        settings: settings.collect(),
        own_identity: true,
        ..PostgresOptions::default()
    };
    let mut env = TestEnv::with(TestEnvOptions { postgres, ..TestEnvOptions::default() }).await;
    env.set("TAILPOST_STREAM__DUPLICATE_WINDOW", "100ms");
    env.setup().await;
    env
}

async fn stop(relay: Relay) {
    relay.sigterm();
    assert!(relay.wait_exit(DEADLINE).await.success());
}

/// What `slot prepare-upgrade` says, with the exit code that it is to have.
async fn prepared(env: &TestEnv, code: i32, timeout: &str) -> serde_json::Value {
    let args = ["slot", "prepare-upgrade", "--timeout", timeout, "--json"];
    let (json, _) = env.ends_with(code, &args).await;
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(report["ready"], code == 0, "{report}");
    report
}
