//! The reference page of the metrics, docs/metrics.md, made of what is declared.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::super::declare::{Declared, Kind, Metric};
use super::super::process_metrics::PROCESS;
use super::super::{inbox_metrics, relay_metrics};

const INTRODUCTION: &str = "\
# Metrics

Generated from the code.

A relay serves `/metrics` at `admin.listen`, an inbox at `admin.inbox_listen`, with `admin.token` if
set ([docker/prometheus.yml](../docker/prometheus.yml)). [docker/grafana](../docker/grafana) has a
dashboard, [alerts.md](alerts.md) the alerts.

- A name with `_total` is a counter, which begins at 0 with the process. Others are gauges.
- All have the label `env` (`metrics.environment`). Those of a relay also have `pipeline` (slot and
  publication), `stream` and, with several shards, `shard`; those of a consumer `consumer`.
- What only a server knows is read every `metrics.interval`. It keeps its value while the server is
  away.
- Histograms have classic buckets from 1 ms to 60 s. With `--enable-feature=native-histograms`
  Prometheus also gets native buckets, 9 % apart.
";

/// The page.
fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let (relay, inbox) = (of_relay(), of_inbox());
    let (both, relay): (Vec<_>, Vec<_>) = relay.into_iter().partition(|it| inbox.contains(it));
    let inbox: Vec<_> = inbox.into_iter().filter(|it| !both.contains(it)).collect();
    section(&mut page, "Relay and inbox", &both);
    section(&mut page, "Relay", &relay);
    section(&mut page, "Inbox", &inbox);
    page
}

fn declared<S>(table: &'static [Metric<S>]) -> impl Iterator<Item = Declared> {
    table.iter().map(|it| it.declared)
}

fn of_relay() -> Vec<Declared> {
    use relay_metrics::{
        LETTERS, LIMITS, PUBLISHING, REPLICATION, RETENTION, REWIND, SAMPLED, SLOTS,
    };
    let publishing = declared(REPLICATION).chain(declared(SLOTS)).chain(declared(PUBLISHING));
    let letters =
        publishing.chain(declared(SAMPLED)).chain(declared(LETTERS)).chain(declared(REWIND));
    let retention = letters.chain(declared(RETENTION));
    retention.chain(declared(LIMITS)).chain(declared(PROCESS)).collect()
}

fn of_inbox() -> Vec<Declared> {
    use inbox_metrics::{CONSUMER, PARTS, RETENTION, SAMPLED};
    let of_consumer = declared(CONSUMER).chain(declared(PARTS)).chain(declared(SAMPLED));
    of_consumer.chain(declared(RETENTION)).chain(declared(PROCESS)).collect()
}

fn section(page: &mut String, title: &str, metrics: &[Declared]) {
    let _ = writeln!(page, "\n## {title}\n");
    for it in metrics {
        let (name, total, help) = (it.name, total(it.kind), it.help);
        let histogram = if it.kind == Kind::Histogram { "Histogram. " } else { "" };
        let labels = it.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>();
        let by = if labels.is_empty() { "" } else { &*format!(" By {}.", labels.join(", ")) };
        let _ = writeln!(page, "- `tailpost_{name}{total}`: {histogram}{help}{by}");
    }
}

fn total(kind: Kind) -> &'static str {
    if kind == Kind::Counter { "_total" } else { "" }
}

/// docs/metrics.md is what the code declares.
// proves: G-MET-1
#[test]
fn the_metrics_page_is_what_is_declared() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(path, page()).expect("docs/metrics.md can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let hint =
        "run `UPDATE_PAGES=1 cargo test -p tailpost metrics_page` and commit docs/metrics.md";
    assert!(found == page(), "docs/metrics.md is not what is declared: {hint}");
}

#[test]
fn names_are_as_prometheus_has_them() {
    for metrics in [of_relay(), of_inbox()] {
        let mut names = BTreeSet::new();
        for Declared { name, kind, help, .. } in metrics {
            assert!(names.insert(name), "{name} is declared twice");
            assert!(help.ends_with('.') && !help.contains("  "), "{name}: {help}");
            assert!(!name.ends_with("_total"), "{name}: counters get their _total by themselves");
            assert!(kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        }
    }
}

/// One help for one name: Prometheus takes either.
#[test]
fn what_relays_and_inboxes_both_export_is_the_same() {
    let inbox = of_inbox();
    for it in of_relay() {
        let other = inbox.iter().find(|other| other.name == it.name);
        assert!(other.is_none_or(|other| *other == it), "{}", it.name);
    }
}
