//! What `slot prepare-upgrade` waits for, and what it finds.

use support::{DEADLINE, TestEnv, TestEnvOptions, until};

use super::{prepared, stop};

fn open(report: &serde_json::Value) -> String {
    report["open"].to_string()
}

/// Exit codes 0, 3, 4 and 6.
// proves: G-UPGRADE-2
#[tokio::test(flavor = "multi_thread")]
async fn prepare_upgrade_says_what_is_open_and_is_content_when_nothing_is() {
    let mut options = TestEnvOptions::default();
    options.postgres.settings = vec![("max_prepared_transactions".into(), "2".into())];
    let mut env = TestEnv::with(options).await;
    env.ends_with(3, &["slot", "prepare-upgrade"]).await;
    env.setup().await;
    prepared(&env, 0, "30s").await; // with no relay, and nothing to publish

    env.insert(3).await;
    let report = prepared(&env, 4, "30s").await;
    assert!(open(&report).contains("3 events are not published, and no relay reads"), "{report}");
    env.ends_with(0, &["relay", "--once"]).await;
    let report = prepared(&env, 0, "30s").await;
    assert_eq!(report["slots"][0]["unpublished"], 0, "{report}");

    let relay = env.relay();
    relay.wait_active().await;
    env.nats.pause().expect("pause NATS");
    env.insert(2).await;
    let report = prepared(&env, 6, "300ms").await;
    assert!(open(&report).contains("2 events are not published"), "{report}");
    env.nats.resume().expect("resume NATS");
    let report = prepared(&env, 0, "30s").await;
    assert_eq!(report["slots"][0]["is_confirmed"], true, "{report}");
    assert_eq!(report["slots"][0]["active"], true, "{report}");

    let prepare = "BEGIN; CREATE TABLE later (); PREPARE TRANSACTION 'undecided'";
    env.execute(prepare).await;
    let report = prepared(&env, 4, "30s").await;
    assert!(open(&report).contains("undecided"), "{report}");
    env.execute("ROLLBACK PREPARED 'undecided'").await;
    stop(relay).await;
    env.insert(1).await;
    env.set("TAILPOST_RELAY__WAL_MESSAGES", "true");
    let report = prepared(&env, 4, "30s").await;
    assert!(report["notes"].to_string().contains("outbox_emit_wal"), "{report}");
}

/// A replay would not find its positions again.
// proves: G-UPGRADE-2
#[tokio::test(flavor = "multi_thread")]
async fn prepare_upgrade_names_a_replay_that_has_not_ended_and_what_ends_it() {
    let env = TestEnv::new().await;
    env.setup().await;
    let relay = env.relay();
    relay.wait_active().await;
    env.insert(200).await;
    env.wait_marked().await;
    let asked =
        ["replay", "--since", "1h", "--rate", "10", "--execute", "--detach", "--why", "test"];
    env.ends_with(0, &asked).await;
    let replay = "SELECT count(*) FROM tailpost_replays WHERE status = 'running'";
    until(DEADLINE, "the replay runs", async || env.query::<i64>(replay).await == 1).await;
    let report = prepared(&env, 4, "30s").await;
    assert!(open(&report).contains("tailpost replays cancel"), "{report}");
    env.execute("UPDATE tailpost_replays SET status = 'cancelled'").await;
    prepared(&env, 0, "30s").await;
    // Nothing was changed.
    assert_eq!(env.epochs().await, 1);
}
