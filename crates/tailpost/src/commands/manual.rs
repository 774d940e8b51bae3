//! What packages install beside the binary: completions and man pages, made from the command line.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::cli::Cli;

/// Prints the completion script of a shell.
pub(super) fn completions(shell: Shell) -> Result<()> {
    std::io::stdout().write_all(&script(shell)).context("could not print the script")
}

/// Writes a page for each command that `--help` lists.
pub(super) fn pages(folder: &Path) -> Result<()> {
    let written = fs::create_dir_all(folder).and_then(|()| {
        // Commands are named after their parents once it is built.
        let mut cli = Cli::command().disable_help_subcommand(true);
        cli.build();
        clap_mangen::generate_to(cli, folder)
    });
    written.with_context(|| format!("could not write man pages to {}", folder.display()))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "tailpost", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn visible(command: &clap::Command) -> Vec<&clap::Command> {
        command.get_subcommands().filter(|it| !it.is_hide_set()).collect()
    }

    #[test]
    fn every_shell_completes_every_command() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).expect("text");
            for command in visible(&Cli::command()) {
                let name = command.get_name();
                assert!(script.contains(name), "{shell} does not complete {name}");
            }
        }
    }

    #[test]
    fn every_command_has_a_man_page() {
        fn check(folder: &Path, command: &clap::Command, page: &str) {
            let file = folder.join(format!("{page}.1"));
            let text = fs::read_to_string(&file).unwrap_or_else(|_| panic!("no {page}.1"));
            let about = command.get_about().expect("says what it does").to_string();
            let first = about.split(' ').next().expect("a word");
            assert!(text.contains(".SH NAME") && text.contains(first), "{page}: {text}");
            for inner in visible(command) {
                check(folder, inner, &format!("{page}-{}", inner.get_name()));
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        pages(folder.path()).expect("written");
        check(folder.path(), &Cli::command(), "tailpost");
    }
}
