//! What is built in, as `deny.toml` says; cargo-deny itself need not be installed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::{read, root};

/// `name = "value"`, or `crate = "value"` within a line.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(&format!("{key} = \""))?.1.split('"').next()
}

/// The versions of every package in Cargo.lock.
fn locked() -> BTreeMap<String, Vec<String>> {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in read(&root().join("Cargo.lock")).split("[[package]]").skip(1) {
        let (name, version) = (value(package, "name"), value(package, "version"));
        let version = version.expect("a package has a version").to_owned();
        versions.entry(name.expect("a package has a name").to_owned()).or_default().push(version);
    }
    versions
}

/// The part of a version that tells incompatible ones apart: `0.8`, or `2`.
fn series(version: &str) -> String {
    let parts: Vec<_> = version.split('.').take(2).collect();
    if parts[0] == "0" { parts.join(".") } else { parts[0].to_owned() }
}

fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['+', '-']).next().unwrap_or_default();
    release.split('.').map(|it| it.parse().unwrap_or(0)).collect()
}

#[test]
fn a_package_that_is_built_in_two_versions_has_a_reason() {
    let mut found = BTreeSet::new();
    for (name, mut versions) in locked() {
        versions.sort_by_key(|it| numbers(it));
        versions.pop();
        found.extend(versions.iter().map(|it| format!("{name}@{}", series(it))));
    }
    let deny = read(&root().join("deny.toml"));
    let (_, skip) = deny.split_once("\nskip = [").expect("a list of exceptions");
    let skip = skip.split("\n]").next().unwrap_or_default();
    let mut known = BTreeSet::new();
    for line in skip.lines().filter(|it| it.contains("crate = ")) {
        let reason = value(line, "reason").unwrap_or_default();
        assert!(!reason.is_empty(), "deny.toml: give a reason: {line}");
        known.insert(value(line, "crate").expect("a package").to_owned());
    }
    let unknown: Vec<_> = found.difference(&known).collect();
    assert!(unknown.is_empty(), "avoid these, or say in deny.toml who wants them: {unknown:?}");
    let stale: Vec<_> = known.difference(&found).collect();
    assert!(stale.is_empty(), "deny.toml: gone from Cargo.lock: {stale:?}");
}

/// What turns on rustls' defaults builds a second library of cryptography.
#[test]
fn only_the_replication_client_asks_for_a_second_crypto_library() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--workspace", "--edges", "normal,features"])
        .args(["--invert", "rustls", "--depth", "2", "--prefix", "depth"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo prints text");
    let mut lines = tree.lines().skip_while(|it| *it != "1rustls feature \"default\"").skip(1);
    let wants = lines.by_ref().take_while(|it| !it.starts_with('1'));
    let wants: BTreeSet<_> =
        wants.map(|it| it[1..].split(' ').next().unwrap_or_default()).collect();
    assert!(
        wants.iter().all(|it| *it == "pgwire-replication"),
        "turn off the default features of rustls: {wants:?}"
    );
}
