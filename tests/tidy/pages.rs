//! Metrics and migrations that the pages name exist. Commands are held by tests of `tailpost`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{files, read, root};

/// Every page but the CHANGELOG, which tells of what was.
fn pages() -> Vec<PathBuf> {
    files(".md").into_iter().filter(|it| !it.ends_with("CHANGELOG.md")).collect()
}

/// The words in backquotes of a page.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.map(|it| it.split(['{', ' ', '(']).next().unwrap_or_default())
}

#[test]
fn metrics_are_called_as_they_are() {
    let declared = read(&root().join("docs/metrics.md"));
    let declared: BTreeSet<_> = quoted(&declared).collect();
    for page in pages() {
        let text = read(&page);
        let metrics = quoted(&text).filter(|it| {
            let is_ours = it.starts_with("tailpost_") || it.ends_with("_total");
            is_ours
                && ["_total", "_seconds", "_bytes", "_count"].iter().any(|end| it.ends_with(end))
        });
        let unknown: BTreeSet<_> = metrics.filter(|it| !declared.contains(it)).collect();
        let page = page.display();
        assert!(unknown.is_empty(), "{page}: docs/metrics.md does not have {unknown:?}");
    }
}

#[test]
fn migrations_are_called_as_they_are() {
    let files: BTreeSet<_> =
        files(".sql").into_iter().filter_map(|it| Some(it.file_stem()?.to_owned())).collect();
    for page in pages() {
        let text = read(&page);
        let named = text.split("migration ").skip(1).filter_map(|it| it.split_whitespace().next());
        let named = named.filter(|it| it.starts_with("00") && it.contains('_'));
        for name in named {
            let name = name.trim_matches('`');
            assert!(
                files.contains(std::ffi::OsStr::new(name)),
                "{}: no migration {name}",
                page.display()
            );
        }
    }
}
