//! The chaos command: its ledger, its exit codes, and nothing left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{DEADLINE, Relay, until};
use tempfile::TempDir;

/// Runs `tailpost chaos` with a folder of its own for everything temporary.
fn chaos(args: &[&str]) -> (Relay, TempDir) {
    let temp = tempfile::tempdir().expect("make a folder");
    // PostgreSQL runs as another user if this is root.
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).expect("open the folder");
    let servers = ["TAILPOST_PG_BIN", "TAILPOST_NATS_SERVER"];
    let servers =
        servers.iter().filter_map(|name| Some(((*name).into(), std::env::var(name).ok()?)));
    let mut env: Vec<(String, String)> = servers.collect();
    env.push(("TMPDIR".into(), temp.path().display().to_string()));
    // Neither its relays nor it may look at a configuration for other servers.
    env.push(("DATABASE_URL".into(), "postgres://127.0.0.1:1/elsewhere".into()));
    env.push(("TAILPOST_RELAY__MODE".into(), "nonsense".into()));
    (Relay::spawn(&[&["chaos"], args].concat(), &env), temp)
}

/// Servers and relays all have a folder in there while they run.
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("read the folder").next().is_none()
}

/// Whether a process was started from that folder and still runs.
fn any_process_in(folder: &Path) -> bool {
    let processes = Command::new("ps").args(["-eo", "args"]).output().expect("list processes");
    String::from_utf8_lossy(&processes.stdout).contains(&folder.display().to_string())
}

async fn assert_passes(scenario: &str) -> Value {
    let (process, temp) = chaos(&[scenario, "--json", "--seed", "1"]);
    // It runs a load by the clock, and then all of that has to pass, on a machine that may be busy.
    let status = process.wait_exit(2 * DEADLINE).await;
    assert!(status.success(), "{status}\n{}", process.log());
    let stdout = process.stdout();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let ledger: Value = serde_json::from_str(&stdout).expect("one JSON object");
    assert_eq!(ledger["scenario"], scenario);
    for zero in ["lost", "duplicated", "reordered", "phantoms"] {
        assert_eq!(ledger[zero], 0, "{ledger}");
    }
    let count = |name| ledger[name].as_u64().expect("a count");
    assert_eq!(count("stored") + count("parked"), count("committed"), "{ledger}");
    assert!(count("committed") >= 500 && count("rolled_back") > 0, "{ledger}");
    assert!(is_empty(temp.path()) && !any_process_in(temp.path()));
    ledger
}

#[tokio::test]
async fn chaos_ends_with_a_ledger_and_leaves_nothing() {
    let ledger = assert_passes("crash-between-ack-and-mark").await;
    assert_eq!(ledger["parked"], 0, "{ledger}");
}

async fn assert_has_effects(scenario: &str, twice_on_purpose: u64) {
    assert_each_has_one(&assert_passes(scenario).await, twice_on_purpose);
}

fn assert_each_has_one(ledger: &Value, twice_on_purpose: u64) {
    assert_eq!(ledger["effects"], ledger["stored"], "{ledger}");
    assert_eq!(ledger["effects_twice"], 0, "{ledger}");
    assert_eq!(ledger["twice_on_purpose"], twice_on_purpose, "{ledger}");
    assert_eq!(ledger["effects_reordered"], 0, "{ledger}");
    assert_eq!(ledger["orders_with_effects"], ledger["orders"], "{ledger}");
}

#[tokio::test]
async fn chaos_knows_its_scenarios() {
    let (process, _temp) = chaos(&["paused"]);
    assert_eq!(process.wait_exit(DEADLINE).await.code(), Some(2), "{}", process.log());
    assert!(process.log().contains("'paused-relay'"), "{}", process.log());
    let (process, _temp) = chaos(&["paused-relay", "--for", "1m"]);
    assert_eq!(process.wait_exit(DEADLINE).await.code(), Some(2), "{}", process.log());
    let (process, _temp) = chaos(&["paused-relay", "--only", "locks"]);
    assert_eq!(process.wait_exit(DEADLINE).await.code(), Some(2), "{}", process.log());
    let (process, _temp) = chaos(&["soak", "--only", "rows,lock"]);
    assert_eq!(process.wait_exit(DEADLINE).await.code(), Some(2), "{}", process.log());
    assert!(process.log().contains("'locks'"), "{}", process.log());
    let (process, _temp) = chaos(&["--list"]);
    assert!(process.wait_exit(DEADLINE).await.success());
    let listed = process.stdout();
    assert_eq!(listed.lines().count(), 13, "{listed}");
    for name in ["slot-invalidated", "stuck-claim", "manual-fix", "history"] {
        assert!(listed.contains(name), "{listed}");
    }
}

mod long {
    use super::*;

    #[tokio::test]
    async fn chaos_with_poison_in_the_backlog_counts_what_was_parked() {
        let ledger = assert_passes("poison-in-backlog").await;
        assert_eq!(ledger["parked"], 30, "{ledger}");
    }

    #[tokio::test]
    async fn chaos_with_a_stuck_claim_counts_the_effects() {
        assert_has_effects("stuck-claim", 0).await;
    }

    #[tokio::test]
    async fn chaos_with_a_manual_fix_counts_the_effects() {
        assert_has_effects("manual-fix", 1).await;
    }

    #[tokio::test]
    async fn chaos_that_is_killed_leaves_no_server_and_no_relay() {
        let (process, temp) = chaos(&["soak", "--for", "10m", "--seed", "1", "--only", "crashes"]);
        process.wait_log("recovered after").await;
        assert!(!is_empty(temp.path()), "servers and relays live in the temporary folder");
        process.kill9().await;
        until(DEADLINE, "servers and relays are gone", async || {
            is_empty(temp.path()) && !any_process_in(temp.path())
        })
        .await;
    }

    #[tokio::test]
    async fn chaos_that_is_told_to_stop_checks_what_it_did_and_leaves_nothing() {
        let (process, temp) = chaos(&["soak", "--for", "10m", "--json", "--only", "crashes"]);
        process.wait_log("recovered after").await;
        process.sigterm();
        let status = process.wait_exit(DEADLINE).await;
        assert!(status.success(), "{status}\n{}", process.log());
        // What is killed on the way costs calls, not effects.
        assert_each_has_one(&serde_json::from_str(&process.stdout()).expect("one JSON object"), 0);
        assert!(is_empty(temp.path()) && !any_process_in(temp.path()));
    }
}
