//! `docs/guarantees.md` and the tests say the same about each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{files, read, root};

const MARKER: &str = "// proves: ";

/// Which promises a test proves, by the test's name.
type Proofs = BTreeMap<String, BTreeSet<String>>;

/// What the page says. An id is a heading's first word.
fn promised() -> Proofs {
    let page = read(&root().join("docs/guarantees.md"));
    let mut seen = BTreeSet::new();
    let mut proofs = Proofs::new();
    for section in page.split("\n### ").skip(1) {
        let (id, _) = section.split_once(": ").expect("a heading is `### ID: promise`");
        assert!(id.starts_with("G-"), "a promise's id begins with G-: {id}");
        assert!(seen.insert(id.to_owned()), "{id} stands twice in docs/guarantees.md");
        let (_, tests) =
            section.split_once("**Tests:**").unwrap_or_else(|| panic!("{id}: no test"));
        let tests = tests.split("\n\n").next().unwrap_or_default();
        let tests: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "{id} names no test");
        for test in tests {
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

/// What `make test` leaves out proves nothing that nothing else proves, and is there.
#[test]
fn tests_that_are_left_out_are_not_the_only_proof_of_anything() {
    let config = read(&root().join(".config/nextest.toml"));
    let left_out: BTreeSet<&str> = config
        .split("test(=")
        .skip(1)
        .map(|it| it.split(')').next().unwrap_or_default())
        .map(|it| it.rsplit("::").next().unwrap_or_default())
        .collect();
    assert!(!left_out.is_empty(), ".config/nextest.toml leaves nothing out");
    let tests: Vec<String> =
        files(".rs").iter().filter_map(|it| fs::read_to_string(it).ok()).collect();
    for name in &left_out {
        let function = format!("fn {name}(");
        assert!(tests.iter().any(|it| it.contains(&function)), "there is no test {name}");
    }
    let mut proofs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (test, ids) in promised() {
        for id in ids {
            proofs.entry(id).or_default().push(test.clone());
        }
    }
    for (id, tests) in proofs {
        let is_run = tests.iter().any(|it| !left_out.contains(&**it));
        assert!(is_run, "{id}: `make test` runs none of {tests:?}");
    }
}
