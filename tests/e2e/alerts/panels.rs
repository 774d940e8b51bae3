//! Every query of the dashboard gives a value.

use std::collections::BTreeMap;

use serde_json::Value;
use support::{DEADLINE, TestEnv, until};

use super::{file, watch};
use crate::inbox::service::Service;

pub(super) const WRITES: &[&str] = &[
    "tailpost_replication_connected",
    "tailpost_jetstream_connected",
    "tailpost_replication_received_lsn_bytes",
    "tailpost_replication_resolved_lsn_bytes",
    "tailpost_replication_confirmed_flush_lsn_bytes",
    "tailpost_replication_slot_wal_headroom_seconds",
    "tailpost_outbox_published_total",
    "tailpost_outbox_commit_to_ack_seconds",
    "tailpost_outbox_publish_duration_seconds",
    "tailpost_outbox_dropped_total",
    "tailpost_outbox_rows_marked_total",
    "tailpost_outbox_batches_total",
    "tailpost_outbox_inflight_limit",
    "tailpost_build_info",
];

/// Where each query stands, as it is with all of everything chosen.
fn queries() -> BTreeMap<String, String> {
    let dashboard: Value =
        serde_json::from_str(&file("docker/grafana/tailpost.json")).expect("JSON");
    let mut queries = BTreeMap::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (title, letter) = (&panel["title"], &target["refId"]);
            let query = target["expr"].as_str().expect("a query").replace("$__rate_interval", "5s");
            let query = ["$env", "$pipeline", "$consumer"]
                .iter()
                .fold(query, |query, variable| query.replace(variable, ".*"));
            assert!(!query.contains('$'), "{query}");
            queries.insert(format!("{title} {letter}"), query);
        }
    }
    queries
}

/// Neither the dashboard nor a rule reads anything else.
// proves: G-MET-1
#[test]
fn the_dashboard_reads_only_what_is_declared() {
    let page = file("docs/metrics.md");
    let dashboard = file("docker/grafana/tailpost.json") + &file("docker/alerts.yml");
    for (at, _) in dashboard.match_indices("tailpost_") {
        let rest = &dashboard[at..];
        let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let name = rest[..end.unwrap_or(rest.len())].trim_end_matches("_bucket");
        assert!(page.contains(&format!("- `{name}`: ")), "docs/metrics.md does not have {name}");
    }
}

/// With an outbox by day, a limit of the log, a rewind slot, a replay and a consumer.
// proves: G-ALERT-2, G-MET-2
#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_gives_a_value() {
    let mut env = TestEnv::new().await;
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("tailpost.toml");
    let routes = "[[route]]\nevent_type = \"Secret\"\ndrop = true\n";
    std::fs::write(&settings, routes).expect("write the settings");
    env.set("TAILPOST_CONFIG", &settings.display().to_string());
    env.set("TAILPOST_RELAY__WAL_LIMIT", "4GiB");
    env.set("TAILPOST_REWIND__RETAIN", "1GiB");
    env.set("TAILPOST_RETENTION__INTERVAL", "500ms");
    env.ends_with(0, &["setup", "--partitioned"]).await;
    env.ends_with(0, &["inbox", "setup"]).await;
    let watch = watch(&mut env, true, &[]).await;
    let relay = env.relay();
    relay.announce("");
    let service = Service::start().await;
    let inbox = env.spawn(&service.args().each_ref().map(String::as_str));
    inbox.announce("");

    let (mut left, mut is_held) = (queries(), false);
    until(DEADLINE, "every query has given a value", async || {
        env.insert(20).await;
        env.execute("SELECT outbox_emit('order', 'o-1', 'Secret', '{}')").await;
        env.execute("SELECT pg_logical_emit_message(false, 'other', repeat('x', 100000))").await;
        let count = left.len();
        let mut still = BTreeMap::new();
        for (place, query) in std::mem::take(&mut left) {
            let found = watch.prometheus.query(&query).await;
            if !found.iter().any(|(_, value)| value.is_finite()) {
                still.insert(place, query);
            }
        }
        left = still;
        // The log has a time to last only while nothing is confirmed.
        if !is_held && left.keys().all(|it| it.contains("Headroom, time")) {
            env.nats.pause().expect("pause NATS");
            is_held = true;
        }
        if left.len() != count {
            eprintln!("without a value: {left:#?}");
        }
        left.is_empty()
    })
    .await;
    env.nats.resume().expect("resume NATS");
    watch.wait_written(WRITES).await;
}
