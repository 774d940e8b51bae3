//! Files of a crate: no two import each other in a circle, and no two have the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{read, root};

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

/// A name that a module has, or the module itself.
type Place = (String, Option<String>);

/// What a path written in `module` leads to.
fn place(module: &str, path: &[String], known: &BTreeMap<String, PathBuf>) -> Place {
    let mut place: Vec<&str> = module.split("::").filter(|it| !it.is_empty()).collect();
    for part in path {
        match part.as_str() {
            "crate" => place.clear(),
            "super" => drop(place.pop()),
            "self" => {}
            part => place.push(part),
        }
    }
    let mut name = None;
    while !place.is_empty() && !known.contains_key(&place.join("::")) {
        name = place.pop().map(str::to_owned);
    }
    (place.join("::"), name)
}

/// Each `pub use` of a module's code.
fn reexports(code: &str) -> Vec<&str> {
    let uses = code.match_indices("use ").filter(|&(at, _)| {
        let line = code[..at].rsplit('\n').next().unwrap_or_default();
        line == "pub " || line.starts_with("pub(") && line.ends_with(") ")
    });
    uses.filter_map(|(at, _)| code[at..].split_inclusive(';').next()).collect()
}

/// Where the names come from that modules pass on.
fn passed_on(
    codes: &BTreeMap<String, String>,
    known: &BTreeMap<String, PathBuf>,
) -> BTreeMap<Place, Place> {
    let mut passed_on = BTreeMap::new();
    for (module, code) in codes {
        let mut paths = Vec::new();
        for it in reexports(code) {
            write_out(&mut it.trim_start_matches("use "), &[], &mut paths);
        }
        for path in paths {
            let from = place(module, &path, known);
            if from.0 != *module {
                passed_on.insert((module.clone(), path.last().cloned()), from);
            }
        }
    }
    passed_on
}

/// Whether `inner` is inside `outer`.
fn is_inside(inner: &str, outer: &str) -> bool {
    outer.is_empty() || inner.strip_prefix(outer).is_some_and(|it| it.starts_with("::"))
}

/// Whether the code of a face needs something of a module in it: to pass a name on is no need.
fn needs(code: &str, inside: &str) -> bool {
    let code = reexports(code).into_iter().fold(code.to_owned(), |code, it| code.replace(it, ""));
    code.match_indices(&format!("{inside}::")).any(|(at, _)| {
        let before = &code[..at];
        let is_elsewhere = before.ends_with("::") && !before.ends_with("self::");
        !is_elsewhere && !before.ends_with(|it: char| it.is_alphanumeric() || it == '_')
    })
}

/// An arrow ends at the file that has what is used, whoever passes the name on, and goes on from a
/// face to what the face needs of its inside. From the inside to its face there is none: the two are
/// one module.
fn arrows(crate_root: &Path) -> Arrows {
    let known = modules(crate_root);
    let codes: BTreeMap<_, _> = known.iter().map(|(it, path)| (it.clone(), code(path))).collect();
    let passed_on = passed_on(&codes, &known);
    let mut arrows = Arrows::new();
    for (module, code) in &codes {
        let used = paths(code).into_iter().map(|path| {
            let mut used = place(module, &path, &known);
            while let Some(from) = passed_on.get(&used) {
                used = from.clone();
            }
            used.0
        });
        let mut targets: BTreeSet<_> =
            used.filter(|it| it != module && !is_inside(module, it)).collect();
        let inside = known.keys().filter(|it| {
            let (face, name) = it.rsplit_once("::").unwrap_or(("", it));
            !it.is_empty() && face == module && needs(code, name)
        });
        targets.extend(inside.cloned());
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
    named.retain(|_, modules| modules.len() > 1);
    assert!(named.is_empty(), "give these names of their own: {named:#?}");
}
