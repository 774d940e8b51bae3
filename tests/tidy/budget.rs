//! What the repository may have of what has to be read. The figures may fall. They rise only in a
//! commit whose message names what it pays for.

use std::path::Path;

use super::{files, read, root};

/// Lines of code, by crate.
const LINES: [(&str, usize); 9] = [
    ("console", 7310),
    ("inbox", 11763),
    ("lab", 6727),
    ("operate", 14259),
    ("outbox", 2165),
    ("pgoutput", 481),
    ("relay", 18762),
    ("servers", 2453),
    ("tailpost", 12837),
];

/// Settings of the configuration file.
const SETTINGS: usize = 106;

/// Words of `docs/`.
const WORDS: usize = 25_000;

/// Places at which a test waits for words in a log instead of a state.
const WAITS_FOR_WORDS: usize = 97;

/// A budget that is this much larger than what is there is to be lowered.
const SLACK_PERCENT: usize = 3;

fn assert_budget(what: &str, found: usize, budget: usize) {
    assert!(
        found <= budget,
        "{what}: {found}, and the budget is {budget}. Delete something, or raise the budget in \
         tests/tidy/budget.rs, in a commit whose message names what it pays for"
    );
    let least = budget - budget * SLACK_PERCENT / 100;
    assert!(
        found >= least,
        "{what}: {found} of {budget}. Lower the budget in tests/tidy/budget.rs to what is there"
    );
}

/// Lines that are neither blank nor a comment, before a file's tests.
fn lines_of_code(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begins_tests = |pair: &[&str]| {
        let is_module = pair[1].starts_with("mod ") || pair[1].contains(") mod ");
        pair[0] == "#[cfg(test)]" && is_module && pair[1].ends_with('{')
    };
    let end = lines.windows(2).position(begins_tests).unwrap_or(lines.len());
    lines[..end].iter().filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Whether a file of a crate holds nothing but tests, or what they play.
fn is_test(path: &Path) -> bool {
    let parts = || path.strip_prefix(root()).unwrap_or(path).iter().filter_map(|it| it.to_str());
    parts().any(|part| part == "tests" || part == "tests.rs" || part.contains("simulation"))
}

#[test]
fn lines_of_code_are_within_their_budget() {
    for (name, budget) in LINES {
        let folder = root().join("crates").join(name);
        let of_crate = files(".rs").into_iter().filter(|it| it.starts_with(&folder));
        let code = of_crate.filter(|it| !is_test(it)).map(|it| lines_of_code(&read(&it))).sum();
        assert_budget(&format!("lines of code in crates/{name}"), code, budget);
    }
}

#[test]
fn settings_are_within_their_budget() {
    // A test of crates/tailpost compares these lines with what the code takes.
    let reference = read(&root().join("docker/tailpost.toml"));
    let names = reference.lines().filter_map(|line| line.trim_start_matches('#').split_once(" = "));
    let settings = names.filter(|(name, _)| !name.contains(' ')).count();
    assert_budget("settings", settings, SETTINGS);
}

#[test]
fn words_of_the_documentation_are_within_their_budget() {
    let docs = root().join("docs");
    let pages = files(".md").into_iter().filter(|it| it.starts_with(&docs));
    let words = pages.map(|page| read(&page).split_whitespace().count()).sum();
    assert_budget("words in docs/", words, WORDS);
}

#[test]
fn waits_for_words_in_a_log_are_within_their_budget() {
    let sources = files(".rs").into_iter().filter(|it| !it.ends_with("tidy/budget.rs"));
    let waits = sources.map(|it| read(&it).matches("wait_log(").count()).sum();
    assert_budget("waits for words in a log", waits, WAITS_FOR_WORDS);
}

/// A requirement's id that this repository does not explain tells a reader nothing.
#[test]
fn ids_lead_somewhere() {
    let kinds = ["OUT", "REL", "RPL", "INB", "DLQ", "RET", "OPS"].map(|it| format!("R-{it}-"));
    for suffix in [".rs", ".md", ".sql", ".toml"] {
        for path in files(suffix) {
            let text = read(&path);
            let found = kinds.iter().find(|it| text.contains(it.as_str()));
            assert!(found.is_none(), "{}: {found:?} is explained nowhere", path.display());
        }
    }
}
