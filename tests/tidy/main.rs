//! The repository's own rules. Each failure says what to do.

mod book;
mod budget;
mod dependencies;
mod first_steps;
mod guarantees;
mod layout;
mod packaging;
mod pages;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file is a room.
const RUST_LINES_MAX: usize = 500;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every file of the repository that ends in `suffix`, build output aside.
fn files(suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("readable folder") {
            let path = entry.expect("readable entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name, "target" | ".git" | ".github") {
                    folders.push(path);
                }
            } else if name.ends_with(suffix) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no {suffix} files below {}", root().display());
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn no_file_is_longer_than_a_room() {
    let long: Vec<_> = files(".rs")
        .into_iter()
        .map(|path| (read(&path).lines().count(), path))
        .filter(|(lines, _)| *lines > RUST_LINES_MAX)
        .collect();
    assert!(long.is_empty(), "split these at a seam, over {RUST_LINES_MAX} lines: {long:#?}");
}

#[test]
fn the_pages_can_be_read_in_one_sitting() {
    for (page, lines_max) in [("README.md", 150), ("ARCHITECTURE.md", 340)] {
        let lines = read(&root().join(page)).lines().count();
        assert!(lines <= lines_max, "{page} has {lines} lines, at most {lines_max}: move or cut");
    }
}

#[test]
fn modules_are_named_after_what_they_hold() {
    let vague = ["common", "utils", "util", "helpers", "misc", "types"];
    let named_so: Vec<_> = files(".rs")
        .into_iter()
        .filter(|path| {
            let parts = path.iter().filter_map(|part| part.to_str());
            parts.map(|part| part.trim_end_matches(".rs")).any(|part| vague.contains(&part))
        })
        .collect();
    assert!(named_so.is_empty(), "name these after the thing they hold: {named_so:#?}");
}

#[test]
fn nothing_is_left_for_later() {
    let marks = ["TODO", "FIXME", "todo!(", "unimplemented!("];
    for path in files(".rs").into_iter().filter(|path| !path.ends_with("tidy/main.rs")) {
        let text = read(&path);
        let found = marks.iter().find(|mark| text.contains(**mark));
        assert!(found.is_none(), "{}: do it, or open an issue: {found:?}", path.display());
    }
}

/// The binary knows the lab, the lab what operators do, that knows the engines, the engines how to
/// reach the servers, all the contract; nobody knows the binary.
#[test]
fn dependencies_point_one_way() {
    for (package, allowed) in [
        ("tailpost-pgoutput", &[][..]),
        ("tailpost-console", &[]),
        ("tailpost-outbox", &[]),
        ("tailpost-servers", &["tailpost-outbox"]),
        ("tailpost-relay", &["tailpost-outbox", "tailpost-pgoutput", "tailpost-servers"]),
        (
            "tailpost-operate",
            &[
                "tailpost-inbox",
                "tailpost-outbox",
                "tailpost-pgoutput",
                "tailpost-relay",
                "tailpost-servers",
            ],
        ),
        ("tailpost-inbox", &["tailpost-outbox", "tailpost-servers"]),
        (
            "tailpost-lab",
            &[
                "tailpost-inbox",
                "tailpost-operate",
                "tailpost-outbox",
                "tailpost-pgoutput",
                "tailpost-relay",
                "tailpost-servers",
            ],
        ),
        (
            "tailpost",
            &[
                "tailpost-console",
                "tailpost-inbox",
                "tailpost-lab",
                "tailpost-operate",
                "tailpost-outbox",
                "tailpost-pgoutput",
                "tailpost-relay",
                "tailpost-servers",
            ],
        ),
    ] {
        let tree = tree(package, &[]);
        let ours = tree.iter().filter(|name| name.starts_with("tailpost") && *name != package);
        let unexpected: Vec<_> = ours.filter(|name| !allowed.contains(&name.as_str())).collect();
        assert!(unexpected.is_empty(), "{package} must not depend on {unexpected:?}");
    }
}

/// What an image holds that does not start servers can start none.
#[test]
fn the_image_is_built_without_the_lab() {
    let image = tree("tailpost", &["--no-default-features"]);
    assert!(!image.contains("tailpost-lab"), "only the feature `lab` may bring it: {image:?}");
    let dockerfile = read(&root().join("docker/Dockerfile"));
    let builds: Vec<_> = dockerfile.lines().filter(|it| it.contains("cargo build")).collect();
    assert!(!builds.is_empty(), "docker/Dockerfile builds nothing: adapt this test");
    for build in builds {
        let without = build.contains("--no-default-features") && !build.contains("--workspace");
        assert!(without, "docker/Dockerfile: build tailpost with --no-default-features: {build}");
    }
    let makefile = read(&root().join("Makefile"));
    for check in ["clippy --workspace", "check --package tailpost"] {
        let check = format!("{check} --no-default-features");
        assert!(makefile.contains(&check), "Makefile: lint and packages-check run `{check}`");
    }
}

/// What decides knows nobody who does; what talks to one server knows nothing of the other.
#[test]
fn folders_import_only_what_is_below_them() {
    for (folder, above) in [
        ("crates/inbox/src/engine", &["dead_letters", "http", "nats", "postgres", "worker"][..]),
        ("crates/inbox/src/nats", &["dead_letters", "http", "postgres", "worker"]),
        ("crates/inbox/src/postgres", &["dead_letters", "http", "nats", "worker"]),
    ] {
        for path in files(".rs").into_iter().filter(|path| path.starts_with(root().join(folder))) {
            let text = read(&path);
            let found = above.iter().find(|it| text.contains(&format!("crate::{it}")));
            assert!(found.is_none(), "{} must not import {found:?}", path.display());
        }
    }
}

#[test]
fn the_decoder_does_no_io() {
    let tree = tree("tailpost-pgoutput", &[]);
    assert!(!tree.contains("tokio"), "pgoutput takes bytes and gives values: {tree:?}");
}

/// The names of all packages that `package` is built with, given these features.
fn tree(package: &str, features: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", package])
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("cargo prints text");
    lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// A secret that stands in a repository is none.
#[test]
fn no_secret_of_compose_has_a_default() {
    let compose = read(&root().join("docker/compose.yaml"));
    for name in ["ADMIN_TOKEN", "POSTGRES_PASSWORD"] {
        let uses: Vec<_> = compose.split("${").filter(|it| it.starts_with(name)).collect();
        assert!(!uses.is_empty(), "{name} is not used: adapt this test");
        for used in uses {
            let demanded = used[name.len()..].starts_with(":?");
            assert!(demanded, "write ${{{name}:?}}, so that nothing starts without it: {used:.40}");
        }
    }
}
