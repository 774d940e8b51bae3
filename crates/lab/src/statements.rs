//! Statements as a file that people read.

use std::fmt::Write;
use std::path::Path;

/// Checks that a file has these statements, each with its name; with `UPDATE_PAGES=1` it writes the
/// file anew. `path` is below the repository's root.
///
/// # Panics
///
/// If the file does not have them.
pub fn check_statements<S: AsRef<str>>(path: &str, about: &str, statements: &[(&str, S)]) {
    let write = "UPDATE_PAGES=1 cargo test statements_are_written_down";
    let mut page = format!("-- {about}\n-- A test writes this: {write}\n");
    for (name, sql) in statements {
        let _ = write!(page, "\n-- {name}\n{};\n", unindented(sql.as_ref()));
    }
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(&file, &page).expect("write the statements down");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == page, "{path} is not current: run `{write}` and commit it");
}

/// Without the room that the lines behind the first have in a source file.
fn unindented(sql: &str) -> String {
    let room = |line: &str| line.len() - line.trim_start().len();
    let rest = sql.trim().lines().skip(1).filter(|it| !it.trim().is_empty());
    let least = rest.map(room).min().unwrap_or(0);
    let lines = sql.trim().lines().map(|it| it[least.min(room(it))..].trim_end());
    lines.collect::<Vec<_>>().join("\n")
}
