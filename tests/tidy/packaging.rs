//! What a crate needs is in its package, and what is released is what the image has.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::{files, read, root};

/// The folders of the crates, and the names of their packages.
fn crates() -> Vec<(PathBuf, String)> {
    let folders = std::fs::read_dir(root().join("crates")).expect("readable folder");
    let folders = folders.map(|entry| entry.expect("readable entry").path());
    let named = |folder: PathBuf| {
        let manifest = read(&folder.join("Cargo.toml"));
        let name = manifest.lines().find_map(|it| it.strip_prefix("name = \"")?.strip_suffix('"'));
        let name = name.expect("a package has a name").to_owned();
        (folder, name)
    };
    folders.map(named).collect()
}

/// The files of a package, relative to the crate.
fn packaged(package: &str) -> BTreeSet<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["package", "--list", "--allow-dirty", "--offline", "--package", package])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = String::from_utf8(output.stdout).expect("cargo prints text");
    files.lines().map(PathBuf::from).collect()
}

/// `folder/name` without `..`, as the compiler finds it in an unpacked package, which has no links.
fn joined(folder: &Path, name: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(name).components() {
        match part {
            // Above the package: no file of it is called so.
            Component::ParentDir if path.file_name().is_none() => return name.into(),
            Component::ParentDir => {
                path.pop();
            }
            it => path.push(it),
        }
    }
    path
}

/// What the text of a file includes, by name.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let starts = ["include_str!(\"", "include_bytes!(\"", "include!(\""];
    starts
        .into_iter()
        .flat_map(move |start| text.split(start).skip(1).filter_map(|rest| rest.split('"').next()))
}

#[test]
fn what_a_crate_includes_is_in_its_package() {
    let mut seen = 0;
    for (folder, package) in crates() {
        let packaged = packaged(&package);
        for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(packaged.contains(Path::new(file)), "{package}: {file} is not in the package");
        }
        for path in files(".rs").into_iter().filter(|it| it.starts_with(&folder)) {
            let inner = path.strip_prefix(&folder).expect("just filtered");
            assert!(packaged.contains(inner), "{package}: {} is left out", inner.display());
            for name in included(&read(&path)) {
                let found = joined(inner.parent().unwrap_or(Path::new("")), name);
                let within = packaged.contains(&found);
                assert!(within, "{}: {name} is outside of the package: link it", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "no crate includes a file: adapt this test");
}

#[test]
fn crates_ask_for_each_other_in_the_version_that_they_have() {
    let manifest = read(&root().join("Cargo.toml"));
    let (_, package) = manifest.split_once("[workspace.package]").expect("a version for all");
    let version = package.lines().find(|it| it.starts_with("version = ")).expect("a version");
    let ours: Vec<_> = manifest.lines().filter(|it| it.contains("path = \"crates/")).collect();
    assert!(!ours.is_empty(), "no crate uses another: adapt this test");
    for line in ours {
        assert!(line.contains(version), "Cargo.toml: {version} is what {line} has to say");
    }
}

#[test]
fn what_is_released_is_built_as_the_image_is() {
    for file in ["scripts/release", "docker/Dockerfile"] {
        let text = read(&root().join(file)).replace("\\\n", " ");
        let builds = text.lines().filter(|it| it.contains("cargo build --release"));
        let builds: Vec<_> =
            builds.map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(!builds.is_empty(), "{file} builds nothing: adapt this test");
        for build in builds {
            let same = "--locked --package tailpost --no-default-features --features jemalloc,otlp";
            assert!(build.contains(same), "{file}: build with {same}: {build}");
        }
    }
}
