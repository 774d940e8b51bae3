//! The commands that a page shows, and what it says that they print.

use std::collections::VecDeque;

use support::{DEADLINE, TestEnv};

/// A command of `tailpost`, and the lines below it.
pub(super) struct Step {
    pub(super) args: Vec<String>,
    shown: Vec<&'static str>,
}

/// The commands of a page, in order, without what another program would do with their output.
pub(super) fn steps(page: &'static str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut is_console, mut is_ours) = (false, false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            (is_console, is_ours) = (line.trim_start() == "```console", false);
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            let ours = command.strip_prefix("tailpost ");
            is_ours = ours.is_some();
            let ours = ours.map(|it| it.split(" | ").next().unwrap_or(it));
            let ours = ours.map(|it| it.split("  #").next().unwrap_or(it)); // a comment
            steps.extend(ours.map(|it| Step { args: words(it), shown: Vec::new() }));
        } else if let Some(step) = steps.last_mut().filter(|_| is_ours) {
            step.shown.push(line);
        }
    }
    steps
}

/// The words of a command, as a shell takes them. What is quoted has no quotes in it.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in command.split(['\'', '"']).enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

impl Step {
    /// Runs the command with other words in place of the page's, and holds what it prints against
    /// what the page shows. Returns what it printed.
    ///
    /// # Panics
    ///
    /// When a line that the page shows is not printed, or the command ends otherwise.
    pub(super) async fn play(&self, env: &TestEnv, instead: &[(&str, &str)]) -> String {
        let args: Vec<&str> = self
            .args
            .iter()
            .map(|arg| instead.iter().find(|it| it.0 == arg).map_or(&**arg, |it| it.1))
            .collect();
        let process = env.spawn(&args);
        process.announce(""); // the page tells
        let status = process.wait_exit(DEADLINE).await;
        let (stdout, stderr) = (process.stdout(), process.log());
        let printed = format!("{stdout}{stderr}");
        let fails = self.shown.iter().any(|it| it.starts_with("error: "));
        assert_eq!(status.success(), !fails, "{args:?}\n{printed}");
        // A terminal shows both, each in its order.
        let mut left = [stdout, stderr].map(|it| it.lines().map(shape).collect::<VecDeque<_>>());
        for shown in self.shown.iter().filter(|it| !it.starts_with('…')) {
            let wanted = shape(shown);
            let is_it = |it: &String| match wanted.strip_suffix('…') {
                Some(beginning) => it.starts_with(beginning),
                None => *it == wanted,
            };
            let found = left.iter_mut().filter_map(|it| Some((it.iter().position(is_it)?, it)));
            let found = found.min_by_key(|it| it.0);
            let (at, of) = found.unwrap_or_else(|| {
                panic!("{args:?} does not print, or not here: {shown}\n{printed}");
            });
            of.drain(..=at);
        }
        printed
    }
}

/// A line without what differs from run to run: numbers, positions, times and ids.
fn shape(line: &str) -> String {
    let mut shape: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_end_matches([',', ';', ')', ':']);
        let is_unit = ["B", "KiB", "MiB", "GiB"].contains(&bare);
        let word =
            if is_unit || word.contains(|it: char| it.is_ascii_digit()) { "#" } else { word };
        // `1m 5s` and `5s` are alike.
        if word != "#" || shape.last() != Some(&"#") {
            shape.push(word);
        }
    }
    shape.join(" ")
}
