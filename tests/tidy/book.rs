//! The pages of docs/: all are in the book, and their links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{files, read, root};

/// The targets of all links of a page, code aside.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let ends = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(ends.map(str::to_owned));
    }
    found
}

/// The lines that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// What its headings are called in links, as GitHub and mdBook make it.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let names = headings.map(|line| {
        let name = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        name.chars().filter(|it| it.is_alphanumeric() || matches!(it, '-' | '_')).collect()
    });
    names
        .map(|name: String| {
            let count = counts.entry(name.clone()).and_modify(|it| *it += 1).or_insert(0);
            if *count == 0 { name } else { format!("{name}-{count}") }
        })
        .collect()
}

fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in files(".md") {
        let text = read(&page);
        for link in links(&text).into_iter().filter(|link| !is_elsewhere(link)) {
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = match target {
                "" => page.clone(),
                _ => page.parent().expect("a page lies in a folder").join(target),
            };
            assert!(path.exists(), "{}: {link} does not exist", page.display());
            if !anchor.is_empty() && path.extension().is_some_and(|it| it == "md") {
                let found = anchors(&read(&path)).contains(anchor);
                assert!(found, "{}: no heading is called {link}", page.display());
            }
        }
    }
}

fn docs() -> PathBuf {
    root().join("docs").canonicalize().expect("docs/ is there")
}

#[test]
fn the_book_has_every_page_once() {
    let summary = docs().join("SUMMARY.md");
    let mut listed = links(&read(&summary));
    listed.sort();
    let twice = listed.windows(2).find(|it| it[0] == it[1]);
    assert!(twice.is_none(), "docs/SUMMARY.md has a page twice: {twice:?}");
    let pages = files(".md").into_iter().filter_map(|path| {
        let path = path.canonicalize().expect("just found");
        path.strip_prefix(docs()).ok().map(|path| path.display().to_string())
    });
    let mut pages: Vec<_> = pages.filter(|it| it != "SUMMARY.md").collect();
    pages.sort();
    assert_eq!(listed, pages, "left: what docs/SUMMARY.md lists; right: the pages of docs/");
}

/// The program that `scripts/servers --all` fetches.
fn mdbook() -> PathBuf {
    let program = std::env::current_exe().expect("the test has a path");
    let servers = program.ancestors().nth(3).expect("cargo's target folder").join("servers");
    let found = servers.join("mdbook/mdbook");
    let missing = "mdbook is missing: run `make servers-all`";
    assert!(found.exists(), "{missing}; looked in {}", servers.display());
    found
}

/// The values of all attributes `name` of a page.
fn attributes<'a>(html: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let parts: Vec<_> = html.match_indices(&begin).map(|(at, _)| at + begin.len()).collect();
    parts.into_iter().filter_map(|at| html[at..].split('"').next())
}

/// Whether a link of a built page leads to another page and heading of the book, or to a file of
/// the repository: the book lies beside docs/.
fn leads_somewhere(book: &Path, page: &str, link: &str) -> bool {
    let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
    if target.starts_with("../") {
        return docs().join(target).exists();
    }
    let path = book.join(if target.is_empty() { page } else { target });
    let top = anchor.is_empty() || !target.is_empty() && !target.ends_with(".html");
    path.exists() && (top || attributes(&read(&path), "id").any(|id| id == anchor))
}

#[test]
fn the_book_builds_and_its_links_lead_somewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(mdbook())
        .args(["build", "--dest-dir"])
        .arg(folder.path())
        .current_dir(root())
        .output()
        .expect("mdbook runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("WARN"), "{said}");
    let pages = links(&read(&docs().join("SUMMARY.md")));
    assert!(!pages.is_empty());
    for page in pages {
        let page = page.replace(".md", ".html");
        let html = read(&folder.path().join(&page));
        let main = html.split("<main>").nth(1).and_then(|it| it.split("</main>").next());
        for link in attributes(main.expect("a page has a text"), "href") {
            let good = is_elsewhere(link) || leads_somewhere(folder.path(), &page, link);
            assert!(good, "{page}: {link} leads nowhere");
        }
    }
}
