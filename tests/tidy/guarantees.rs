//! What `docs/guarantees.md` promises is proved by tests, which name its ids.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{files, read, root};

const MARKER: &str = "// proves: ";

/// The tests that prove a promise, by its id.
type Proofs = BTreeMap<String, Vec<String>>;

/// The ids of the page: a heading's first word.
fn promised() -> BTreeSet<String> {
    let page = read(&root().join("docs/guarantees.md"));
    let mut ids = BTreeSet::new();
    for heading in page.lines().filter_map(|it| it.strip_prefix("### ")) {
        let (id, _) = heading.split_once(": ").expect("a heading is `### ID: promise`");
        assert!(id.starts_with("G-"), "a promise's id begins with G-: {id}");
        assert!(ids.insert(id.to_owned()), "{id} stands twice in docs/guarantees.md");
    }
    assert!(!ids.is_empty(), "docs/guarantees.md promises nothing");
    ids
}

/// What the tests say: a marker belongs to the function that follows.
fn proved() -> Proofs {
    let mut proofs = Proofs::new();
    for path in files(".rs") {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let mut ids = BTreeSet::new();
        for line in text.lines().map(str::trim) {
            if let Some(named) = line.strip_prefix(MARKER) {
                ids.extend(named.split(", ").map(str::to_owned));
            } else if let Some((_, rest)) = line.split_once("fn ")
                && !line.starts_with("//")
                && !ids.is_empty()
            {
                let name = rest.split('(').next().unwrap_or_default();
                for id in std::mem::take(&mut ids) {
                    proofs.entry(id).or_default().push(name.to_owned());
                }
            }
        }
        assert!(ids.is_empty(), "{}: no function follows the marker", path.display());
    }
    proofs
}

#[test]
fn each_promise_is_proved_and_what_is_proved_is_promised() {
    let (promised, proved) = (promised(), proved());
    for id in &promised {
        assert!(proved.contains_key(id), "{id}: write `{MARKER}{id}` above a test that proves it");
    }
    for (id, tests) in &proved {
        assert!(promised.contains(id), "docs/guarantees.md has no {id}, which {tests:?} prove");
    }
}

/// The tests of a file's module `long`, which `make test` leaves out.
fn long(text: &str) -> Vec<String> {
    let (_, long) = text.split_once("\nmod long {\n").unwrap_or_default();
    let functions = long.split("fn ").skip(1);
    functions.filter_map(|it| it.split_once('(')).map(|(name, _)| name.to_owned()).collect()
}

/// What `make test` leaves out is not the only proof of a promise.
#[test]
fn tests_that_are_left_out_are_not_the_only_proof_of_anything() {
    let left_out: BTreeSet<String> = files(".rs").iter().flat_map(|it| long(&read(it))).collect();
    assert!(!left_out.is_empty(), "no test is in a module `long`");
    for (id, tests) in proved() {
        let is_run = tests.iter().any(|it| !left_out.contains(it));
        assert!(is_run, "{id}: `make test` runs none of {tests:?}");
    }
}
