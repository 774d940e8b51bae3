//! What pages, hints, errors and alerts say to run exists.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use super::*;

/// What is wrong with a command whatever the values of its options are.
const WRONG: [ErrorKind; 3] =
    [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand, ErrorKind::ArgumentConflict];

const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// Sources, pages and what is deployed.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|it| root.join(it)).to_vec();
    let mut folders = ["crates", "docker", "docs"].map(|it| root.join(it)).to_vec();
    while let Some(folder) = folders.pop() {
        let (inner, files) = fs::read_dir(&folder)
            .expect("a folder")
            .map(|it| it.expect("readable").path())
            .partition::<Vec<_>, _>(|it| it.is_dir());
        folders.extend(inner);
        found.extend(files);
    }
    found
}

/// What `tailpost` is given in backquotes.
fn quoted(text: &str) -> Vec<String> {
    // A text of several lines.
    let text = text.replace("\\\n", " ");
    // This file is one of those that are searched.
    let commands = text.split("\u{60}tailpost ").skip(1).filter_map(|it| it.split_once('`'));
    commands.map(|(it, _)| it.to_owned()).filter(|it| !it.contains('{')).collect()
}

/// What `tailpost` is given in the blocks of a page that are for a shell.
fn in_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("```").skip(1).step_by(2);
    let for_shell =
        blocks.filter_map(|it| it.strip_prefix("console\n").or(it.strip_prefix("sh\n")));
    let lines = for_shell.flat_map(str::lines).flat_map(|it| it.trim_start().split(" && "));
    lines.filter_map(|it| ours(it.trim_start_matches("$ "))).map(str::to_owned).collect()
}

/// What `tailpost` is given in a line of a shell, behind variables for this command.
fn ours(line: &str) -> Option<&str> {
    let (first, rest) = line.split_once(' ')?;
    if first == "tailpost" {
        return Some(rest);
    }
    let (name, _) = first.split_once('=')?;
    name.starts_with(|it: char| it.is_ascii_uppercase()).then(|| ours(rest))?
}

/// The words of a command up to its end, as a shell takes them. What is quoted has no quotes in it.
fn words(command: &str) -> Vec<String> {
    let mut words = vec!["tailpost".to_owned()];
    for (n, part) in command.split(['\'', '"']).enumerate() {
        if n % 2 == 1 {
            words.push(part.to_owned());
            continue;
        }
        let is_end = |it: &&str| it.starts_with(['|', '&', '>', '#', '(']) || it.contains('…');
        let end = part.split_whitespace().position(|it| is_end(&it));
        let part = part.split_whitespace().take(end.unwrap_or(usize::MAX));
        words.extend(part.map(str::to_owned));
        if end.is_some() {
            break;
        }
    }
    let is_id = |it: &&mut String| ["ID", "EVENT_ID", "$ID"].contains(&it.as_str());
    words.iter_mut().filter(is_id).for_each(|it| NIL.clone_into(it));
    words
}

#[test]
fn each_command_that_is_named_exists() {
    let mut found = 0;
    for path in files() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let mut commands = quoted(&text);
        if path.extension().is_some_and(|it| it == "md") {
            commands.extend(in_blocks(&text));
        }
        for command in commands {
            found += 1;
            let Err(error) = Cli::try_parse_from(words(&command)) else { continue };
            let path = path.display();
            assert!(!WRONG.contains(&error.kind()), "{path}: tailpost {command}: {error}");
        }
    }
    assert!(found > 300, "{found} commands");
}
