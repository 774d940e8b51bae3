//! The demo: exact figures, and nothing left behind, however it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use support::{DEADLINE, Relay, until};
use tempfile::TempDir;

/// Runs the demo with a folder of its own for everything temporary.
fn demo(args: &[&str]) -> (Relay, TempDir) {
    let temp = tempfile::tempdir().expect("make a folder");
    // PostgreSQL runs as another user if this is root.
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).expect("open the folder");
    let servers = ["TAILPOST_PG_BIN", "TAILPOST_NATS_SERVER"];
    let servers =
        servers.iter().filter_map(|name| Some(((*name).into(), std::env::var(name).ok()?)));
    let mut env: Vec<(String, String)> = servers.collect();
    env.push(("TMPDIR".into(), temp.path().display().to_string()));
    // A configuration for other servers is none of the demo's business.
    env.push(("DATABASE_URL".into(), "postgres://127.0.0.1:1/elsewhere".into()));
    (Relay::spawn(&[&["demo"], args].concat(), &env), temp)
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("read the folder").next().is_none()
}

fn figures(demo: &Relay) -> Value {
    let stdout = demo.stdout();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).expect("one JSON object")
}

fn assert_exact(figures: &Value) {
    for zero in ["lost", "duplicates", "out_of_order", "phantoms", "effects_twice"] {
        assert_eq!(figures[zero], 0, "{figures}");
    }
    assert_eq!(figures["stored"], figures["committed"], "{figures}");
    assert_eq!(figures["marked"], figures["committed"], "{figures}");
    assert_eq!(figures["effects"], figures["stored"], "{figures}");
}

#[tokio::test]
async fn the_demo_ends_with_zeros_and_leaves_nothing() {
    let (demo, temp) = demo(&["--for", "3s", "--rate", "200", "--json"]);
    let status = demo.wait_exit(DEADLINE).await;
    assert!(status.success(), "{status}\n{}", demo.log());
    let figures = figures(&demo);
    assert_exact(&figures);
    assert!(figures["committed"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["rolled_back"].as_u64().unwrap() > 0, "{figures}");
    let latency = |name| figures["commit_to_consumer_ms"][name].as_f64().unwrap();
    assert!(0.0 < latency("p50") && latency("p50") <= latency("p99"), "{figures}");
    assert!(latency("p99") <= latency("max") && latency("max") < 10_000.0, "{figures}");
    assert!(is_empty(temp.path()));
}

#[tokio::test]
async fn a_demo_that_is_told_to_stop_checks_what_it_did_and_leaves_nothing() {
    let (demo, temp) = demo(&["--for", "10m"]);
    demo.wait_log("at the consumer").await;
    demo.sigterm();
    let status = demo.wait_exit(DEADLINE).await;
    assert!(status.success(), "{status}\n{}", demo.log());
    assert_exact(&figures(&demo));
    assert!(is_empty(temp.path()));
}

mod long {
    use super::*;

    #[tokio::test]
    async fn a_demo_that_is_killed_leaves_nothing() {
        let (demo, temp) = demo(&["--for", "10m"]);
        demo.wait_log("at the consumer").await;
        assert!(!is_empty(temp.path()), "the servers live in the temporary folder");
        demo.kill9().await;
        until(DEADLINE, "the servers' folders are gone", async || is_empty(temp.path())).await;
    }
}
