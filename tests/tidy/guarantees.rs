//! `docs/guarantees.md` and the tests say the same about each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{files, read, root};

const MARKER: &str = "// proves: ";

/// Which promises a test proves, by the test's name.
type Proofs = BTreeMap<String, BTreeSet<String>>;

/// Whether a paragraph has names in backquotes, and nothing else.
fn names_only(paragraph: &str) -> bool {
    let between = paragraph.split('`').step_by(2);
    paragraph.contains('`') && between.map(str::trim).all(|it| matches!(it, "" | ","))
}

/// What the page says. An id is a heading's first word.
fn promised() -> Proofs {
    let page = read(&root().join("docs/guarantees.md"));
    let mut seen = BTreeSet::new();
    let mut proofs = Proofs::new();
    for section in page.split("\n### ").skip(1) {
        let (id, _) = section.split_once(": ").expect("a heading is `### ID: promise`");
        assert!(id.starts_with("G-"), "a promise's id begins with G-: {id}");
        assert!(seen.insert(id.to_owned()), "{id} stands twice in docs/guarantees.md");
        let tests = section.split("\n\n").find(|it| names_only(it));
        let tests = tests.unwrap_or_else(|| panic!("{id} names no test"));
        for test in tests.split('`').skip(1).step_by(2) {
            proofs.entry(test.to_owned()).or_default().insert(id.to_owned());
        }
    }
    assert!(!proofs.is_empty(), "docs/guarantees.md promises nothing");
    proofs
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
                proofs.entry(name.to_owned()).or_default().append(&mut ids);
            }
        }
        assert!(ids.is_empty(), "{}: no function follows the marker", path.display());
    }
    proofs
}

#[test]
fn promises_and_the_tests_that_prove_them_name_each_other() {
    let (promised, proved) = (promised(), proved());
    for (test, ids) in &promised {
        let marked = proved.get(test);
        assert!(
            marked == Some(ids),
            "docs/guarantees.md: {test} proves {ids:?}; above the test stands {marked:?}. Write \
             `{MARKER}ID, ID` above its attribute, or change the page"
        );
    }
    for (test, ids) in &proved {
        assert!(promised.contains_key(test), "docs/guarantees.md: name {test} below {ids:?}");
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
    let mut proofs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (test, ids) in promised() {
        for id in ids {
            proofs.entry(id).or_default().push(test.clone());
        }
    }
    for (id, tests) in proofs {
        let is_run = tests.iter().any(|it| !left_out.contains(it));
        assert!(is_run, "{id}: `make test` runs none of {tests:?}");
    }
}
