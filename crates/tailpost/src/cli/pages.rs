//! The commands on the pages are commands of the program, with its options.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use super::Cli;

/// What is wrong with a command whatever the values of its options are.
const WRONG: [ErrorKind; 3] =
    [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand, ErrorKind::ArgumentConflict];

const NIL: &str = "00000000-0000-0000-0000-000000000000";

fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let docs = fs::read_dir(root.join("docs")).expect("docs/ is there");
    let docs = docs.map(|it| it.expect("readable").path());
    let of = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docker/README.md"];
    let pages: Vec<_> = docs.chain(of.map(|it| root.join(it))).collect();
    pages.into_iter().filter(|it| it.extension().is_some_and(|it| it == "md")).collect()
}

/// The commands in blocks and in backquotes.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let (mut prose, mut block) = (String::new(), None);
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_none() { Some(language) } else { None };
        } else if let Some(language) = block {
            let command = line.trim_start().trim_start_matches("$ ");
            let commands_of =
                command.split(" && ").filter(|_| ["console", "sh"].contains(&language));
            commands.extend(commands_of.map(str::to_owned));
        } else {
            prose += line;
            prose.push(' ');
        }
    }
    commands.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    commands.iter().filter_map(|it| ours(it)).collect()
}

/// What `tailpost` is given of a command, if it is one of its own.
fn ours(command: &str) -> Option<String> {
    let mut rest = command;
    while let Some((first, others)) = rest.split_once(' ') {
        if first == "tailpost" {
            let ends = [" | ", " & ", " > ", "  #", " # ", " ("];
            let of = ends.iter().fold(others, |it, end| it.split(end).next().unwrap_or(it));
            return Some(of.trim_end_matches([' ', '&']).to_owned());
        }
        // A variable for this command.
        let (name, _) = first.split_once('=')?;
        name.starts_with(|it: char| it.is_ascii_uppercase()).then_some(())?;
        rest = others;
    }
    None
}

/// The words of a command, as a shell takes them. What is quoted has no quotes in it.
fn words(command: &str) -> Vec<String> {
    let mut words = vec!["tailpost".to_owned()];
    for (n, part) in command.split(['\'', '"']).enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    let is_id = |it: &&mut String| ["ID", "EVENT_ID", "$ID"].contains(&it.as_str());
    words.iter_mut().filter(is_id).for_each(|it| NIL.clone_into(it));
    words
}

#[test]
fn the_commands_on_the_pages_exist() {
    let mut seen = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).expect("a page");
        for command in commands(&page) {
            seen += 1;
            let Err(error) = Cli::try_parse_from(words(&command)) else { continue };
            let page = path.display();
            assert!(!WRONG.contains(&error.kind()), "{page}: tailpost {command}: {error}");
        }
    }
    assert!(seen > 200, "{seen} commands");
}
