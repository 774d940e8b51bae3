//! The shipped alert rules and the dashboard against a real Prometheus: each alert is seen to fire
//! by its cause, and to end when that is mended.
//!
//! The rules are `docker/alerts.yml` with shorter times. Each scene also names the metrics that
//! what happens in it writes; together they are all that is declared.

mod broker_away;
mod consumers;
mod gone_servers;
mod lost_messages;
mod native_histograms;
mod neglected;
mod odd_rows;
mod panels;
mod rules;
mod went_back;

use std::path::Path;

use lab::Port;
use support::{DEADLINE, Prometheus, TestEnv, until};

/// A file of the repository.
fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The shipped rules: what has to hold for a time has to for a second, what looks back over minutes
/// looks over seconds, and a GiB is a MiB.
pub(crate) fn rules() -> String {
    let shortened = |line: &str| {
        let indented = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("for: ") {
            return format!("{}for: 1s", &line[..indented]);
        }
        let line = line.replace("5368709120", "5242880");
        let line = line.replace("sample_age_seconds > 300", "sample_age_seconds > 15");
        let line = line.replace("stalled_seconds) > 300", "stalled_seconds) > 8");
        let line = line.replace(" < 900", " < 30");
        ["[5m]", "[10m]", "[15m]"].iter().fold(line, |line, range| line.replace(range, "[8s]"))
    };
    let text = file("docker/alerts.yml");
    text.lines().map(|line| shortened(line) + "\n").collect()
}

/// The names of the shipped alerts.
pub(crate) fn names() -> Vec<String> {
    let text = file("docker/alerts.yml");
    let names = text.lines().filter_map(|it| it.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

/// Who watches: where relay and inbox listen, and a Prometheus that scrapes both.
struct Watch {
    _relay: Port,
    inbox: Option<Port>,
    prometheus: Prometheus,
}

/// Watches what `env` starts from now on. Without an inbox nothing is said about one.
async fn watch(env: &mut TestEnv, has_inbox: bool, flags: &[&str]) -> Watch {
    let relay = Port::reserve().expect("a free port");
    let inbox = has_inbox.then(|| Port::reserve().expect("a free port"));
    env.set("TAILPOST_ADMIN__LISTEN", &relay.addr().to_string());
    env.set("TAILPOST_METRICS__INTERVAL", "300ms");
    let mut jobs = vec![("tailpost-relay", relay.addr())];
    if let Some(inbox) = &inbox {
        env.set("TAILPOST_ADMIN__INBOX_LISTEN", &inbox.addr().to_string());
        jobs.push(("tailpost-inbox", inbox.addr()));
    }
    let prometheus = Prometheus::start(&jobs, &rules(), flags).await;
    Watch { _relay: relay, inbox, prometheus }
}

impl Watch {
    /// Waits until everything is scraped and nothing fires: what fires later has its cause later.
    async fn wait_quiet(&self) {
        until(DEADLINE, "all is well", async || {
            let up = self.prometheus.query("min(up)").await;
            let samples = self.prometheus.query("tailpost_outbox_backlog == 0").await;
            let firing = self.prometheus.names_firing().await;
            if !firing.is_empty() {
                eprintln!("firing: {firing:?}");
            }
            up.first().is_some_and(|(_, up)| *up == 1.0) && !samples.is_empty() && firing.is_empty()
        })
        .await;
    }

    /// Waits until each of these metrics had another value than 0 at some time.
    async fn wait_written(&self, metrics: &[&str]) {
        let mut missing = Vec::new();
        until(DEADLINE, "all metrics are written", async || {
            let mut now = Vec::new();
            for name in metrics {
                let written = format!(
                    "max(max_over_time({name}[15m])) > 0 or max(max_over_time({name}_count[15m])) > 0"
                );
                if self.prometheus.query(&written).await.is_empty() {
                    now.push(*name);
                }
            }
            if now != missing {
                eprintln!("not written: {now:?}");
                missing = now;
            }
            missing.is_empty()
        })
        .await;
    }
}
