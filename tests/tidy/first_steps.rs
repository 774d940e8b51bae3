//! What somebody does in a fresh clone, where nothing ran before.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::{read, root};

/// The targets of `make` in `lines` that begin with `prefix`, in order.
fn targets<'a>(lines: &'a str, prefix: &str) -> Vec<&'a str> {
    let commands = lines.lines().filter_map(|line| line.trim().strip_prefix(prefix));
    commands.filter_map(|rest| rest.split_ascii_whitespace().next()).collect()
}

#[test]
fn what_a_change_must_pass_begins_with_what_the_readme_says() {
    let readme = read(&root().join("README.md"));
    let said = targets(&readme, "$ make ");
    assert_eq!(said, ["demo", "test"], "README.md shows the first two steps");
    let run = read(&root().join(".ci/run"));
    let done = targets(&run, "make ");
    assert!(done.starts_with(&said), ".ci/run runs {done:?}, README.md says {said:?} first");
    // A build before them would hide what they lack.
    let first = run.find("make demo").expect("just found");
    assert!(!run[..first].contains("cargo"), ".ci/run builds before `make demo`");
}

/// An empty folder with `scripts/servers`, and programs that it would run which all fail.
struct Clone {
    folder: tempfile::TempDir,
}

impl Clone {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clone = Self { folder };
        fs::create_dir(clone.path().join("scripts")).expect("a folder");
        let script = root().join("scripts/servers");
        fs::copy(script, clone.path().join("scripts/servers")).expect("copied");
        for program in ["npm", "python3", "apt-get", "dpkg", "sudo"] {
            clone.program(program, "exit 1");
        }
        clone.program("postgres", "echo 'postgres (PostgreSQL) 15.1'");
        clone.program("initdb", "exit 1");
        clone.program("nats-server", "echo 'nats-server: v2.15.1'");
        clone
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn program(&self, name: &str, does: &str) {
        let programs = self.path().join("programs");
        fs::create_dir_all(&programs).expect("a folder");
        let program = programs.join(name);
        fs::write(&program, format!("#!/bin/sh\n{does}\n")).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn servers(&self, argument: &str) -> Output {
        let programs = self.path().join("programs");
        let path = std::env::var("PATH").expect("a path");
        Command::new(self.path().join("scripts/servers"))
            .arg(argument)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("TAILPOST_PG_BIN", &programs)
            .env("TAILPOST_NATS_SERVER", programs.join("nats-server"))
            .env_remove("CARGO_TARGET_DIR")
            .output()
            .expect("bash runs")
    }
}

#[test]
fn looking_for_servers_changes_nothing() {
    let clone = Clone::new();
    let output = clone.servers("--print");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("nats-server 2.15.1"), "{output:?}");
    assert!(!clone.path().join("target").exists());
}

/// The demo and the tests know the target folder by this tag, whoever made the folder.
#[test]
fn fetching_servers_before_the_first_build_tags_the_target_folder() {
    let clone = Clone::new();
    let output = clone.servers("--all");
    assert!(!output.status.success(), "nothing can be fetched: {output:?}");
    let tag = read(&clone.path().join("target/CACHEDIR.TAG"));
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"), "{tag}");
}
