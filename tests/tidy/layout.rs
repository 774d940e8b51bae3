//! Files of a crate: no two import each other in a circle, and no two have the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{read, root};

/// How each server is reached: two folders say so in a file of this name.
const CONNECT: (&str, &str) = ("crates/relay", "connect");

/// Which modules a module imports; a module is a path such as `chaos::stage`, the root is empty.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The roots of all crates that have several files.
fn roots() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).expect("readable folder");
    let crates = crates.map(|entry| entry.expect("readable entry").path().join("src"));
    let others = ["benches/end_to_end", "benches/inbox", "tests/e2e", "tests/support"];
    crates.chain(others.map(|it| root().join(it))).collect()
}

/// How a crate is called here.
fn name_of(crate_root: &Path) -> String {
    let path = crate_root.strip_prefix(root()).expect("below the root");
    path.to_str().expect("Unicode").trim_end_matches("/src").to_owned()
}

/// The files of a crate by module, without those that only test.
fn modules(crate_root: &Path) -> BTreeMap<String, PathBuf> {
    let files = super::files(".rs").into_iter().filter(|it| it.starts_with(crate_root));
    let module = |path: PathBuf| {
        let inner = path.strip_prefix(crate_root).expect("just filtered").with_extension("");
        let parts: Vec<_> = inner.iter().filter_map(|it| it.to_str()).collect();
        let is_face = matches!(parts.last(), Some(&("mod" | "lib" | "main")));
        let parts = if is_face { &parts[..parts.len() - 1] } else { &parts[..] };
        (parts.join("::"), path)
    };
    files.map(module).filter(|(module, _)| !module.ends_with("tests")).collect()
}

/// The code without comments and without the unit tests at its end.
fn code(path: &Path) -> String {
    let text = read(path);
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|it| it.split("//").next().unwrap_or_default()).fold(
        String::new(),
        |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        },
    )
}

/// All paths that begin with `crate` or `super`, with the lists of a `use` written out.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|it| it.is_alphanumeric() || matches!(it, '_' | ':' | '$')) {
                write_out(&mut &code[at..], &[], &mut found);
            }
        }
    }
    found
}

fn write_out(rest: &mut &str, prefix: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = prefix.to_vec();
    loop {
        *rest = rest.trim_start();
        if let Some(list) = rest.strip_prefix('{') {
            *rest = list;
            while !rest.is_empty() && !rest.trim_start().starts_with('}') {
                write_out(rest, &path, found);
                *rest = rest.trim_start().trim_start_matches([',', ';']);
            }
            *rest = rest.trim_start().strip_prefix('}').unwrap_or_default();
            return;
        }
        let is_name = |it: char| it.is_alphanumeric() || it == '_' || it == '*';
        let end = rest.find(|it| !is_name(it)).unwrap_or(rest.len());
        if end == 0 {
            // Not a path after all: on to the next character.
            *rest = rest.get(1..).unwrap_or_default();
        }
        path.push(rest[..end.min(rest.len())].to_owned());
        *rest = &rest[end.min(rest.len())..];
        match rest.strip_prefix("::") {
            Some(further) => *rest = further,
            None => break,
        }
    }
    // `as` and the new name.
    if rest.trim_start().starts_with("as ") {
        let end = rest.find([',', '}', ';']).unwrap_or(rest.len());
        *rest = &rest[end..];
    }
    found.push(path);
}

/// The module that a path written in `module` leads to.
fn resolve(module: &str, path: &[String], known: &BTreeMap<String, PathBuf>) -> String {
    let mut place: Vec<&str> = module.split("::").filter(|it| !it.is_empty()).collect();
    for part in path {
        match part.as_str() {
            "crate" => place.clear(),
            "super" => drop(place.pop()),
            part => place.push(part),
        }
    }
    while !place.is_empty() && !known.contains_key(&place.join("::")) {
        place.pop();
    }
    place.join("::")
}

/// Whether one is the other, or inside it: what is inside a module is part of it.
fn nested(a: &str, b: &str) -> bool {
    let inside = |a: &str, b: &str| {
        b.is_empty() || a == b || a.strip_prefix(b).is_some_and(|it| it.starts_with("::"))
    };
    inside(a, b) || inside(b, a)
}

fn arrows(crate_root: &Path) -> Arrows {
    let known = modules(crate_root);
    let mut arrows = Arrows::new();
    for (module, path) in &known {
        let targets = paths(&code(path)).into_iter().map(|it| resolve(module, &it, &known));
        let targets = targets.filter(|target| !nested(module, target)).collect();
        arrows.insert(module.clone(), targets);
    }
    arrows
}

fn reaches(arrows: &Arrows, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in arrows.get(module).into_iter().flatten() {
            if next == to {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut found = BTreeSet::new();
    for crate_root in roots() {
        let (name, arrows) = (name_of(&crate_root), arrows(&crate_root));
        for (from, targets) in &arrows {
            let closing = targets.iter().filter(|to| reaches(&arrows, to, from));
            found.extend(closing.map(|to| format!("{name}: {from} -> {to}")));
        }
    }
    assert!(found.is_empty(), "move what is used to the lower of the two: {found:#?}");
}

#[test]
fn a_file_name_stands_once_in_a_crate() {
    let mut named: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for crate_root in roots() {
        for module in modules(&crate_root).into_keys() {
            let base = module.rsplit("::").next().unwrap_or_default().to_owned();
            named.entry((name_of(&crate_root), base)).or_default().push(module);
        }
    }
    named
        .retain(|(of, base), modules| modules.len() > 1 && (of.as_str(), base.as_str()) != CONNECT);
    assert!(named.is_empty(), "give these names of their own: {named:#?}");
}
