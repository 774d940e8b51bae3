//! Rules, their unit tests, their pages and their scenes name each other.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use support::promtool;

use super::{
    broker_away, consumers, file, gone_servers, lost_messages, names, neglected, odd_rows, panels,
    went_back,
};

/// Each rule is silent, fires and ends where it should, by its own times.
// proves: G-ALERT-1
#[test]
fn the_rules_pass_their_unit_tests() {
    let docker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker");
    for args in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]] {
        let output = Command::new(promtool()).args(args).current_dir(&docker).output();
        let output = output.expect("promtool runs");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

// proves: G-ALERT-1
#[test]
fn each_alert_has_a_unit_test_a_section_and_a_scene() {
    let (tests, page) = (file("docker/alerts.test.yml"), file("docs/alerts.md"));
    let rules = file("docker/alerts.yml");
    let scenes = [
        broker_away::FIRES,
        gone_servers::FIRES,
        odd_rows::FIRES,
        lost_messages::FIRES,
        neglected::FIRES,
        consumers::FIRES,
        went_back::FIRES,
    ];
    let scenes: BTreeSet<&str> = scenes.concat().into_iter().collect();
    let names = names();
    for name in &names {
        assert!(tests.contains(&format!("  - name: {name}\n")), "{name} has no unit test");
        assert!(page.contains(&format!("\n### {name}\n")), "docs/alerts.md does not have {name}");
        assert!(scenes.contains(&**name), "nothing causes {name}");
        let url = format!("runbook_url: docs/alerts.md#{}\n", name.to_lowercase());
        assert!(rules.contains(&url), "{name} lacks its page");
    }
    let known = |it: &&str| names.iter().any(|name| name == it);
    let sections = page.lines().filter_map(|it| it.strip_prefix("### "));
    let unknown: Vec<_> = sections.chain(scenes).filter(|it| !known(it)).collect();
    assert!(unknown.is_empty(), "there are no such alerts: {unknown:?}");
}

/// Each metric that is declared is written by something that happens in a scene.
// proves: G-MET-2
#[test]
fn each_declared_metric_is_written_in_a_scene() {
    let page = file("docs/metrics.md");
    let declared = page.lines().filter_map(|it| it.strip_prefix("- `tailpost_")?.split('`').next());
    let declared: BTreeSet<String> = declared.map(|it| format!("tailpost_{it}")).collect();
    let scenes = [
        broker_away::WRITES,
        gone_servers::WRITES,
        odd_rows::WRITES,
        lost_messages::WRITES,
        neglected::WRITES,
        consumers::WRITES,
        went_back::WRITES,
        panels::WRITES,
        crate::traces::WRITES,
        crate::unread_log::WRITES,
    ];
    let written: BTreeSet<String> = scenes.concat().into_iter().map(str::to_owned).collect();
    let unwritten: Vec<_> = declared.difference(&written).collect();
    assert!(unwritten.is_empty(), "nothing is known to write {unwritten:#?}");
    let undeclared: Vec<_> = written.difference(&declared).collect();
    assert!(undeclared.is_empty(), "docs/metrics.md does not have {undeclared:#?}");
}
