//! The commands that a page shows, and what it says that they print.

use std::collections::VecDeque;

use serde_json::Value;
use support::{DEADLINE, TestEnv, until};

/// A command of `tailpost`, and the lines below it.
pub(crate) struct Step {
    pub(crate) args: Vec<String>,
    shown: Vec<&'static str>,
    /// Another program takes the output, and the page shows what that makes of it.
    is_piped: bool,
}

/// A page from this heading to the next of its kind.
pub(crate) fn section(page: &'static str, heading: &str) -> &'static str {
    let (_, text) = page.split_once(&format!("\n{heading}\n")).expect("the page has the heading");
    let (level, _) = heading.split_once(' ').expect("a heading has a level");
    text.split(&format!("\n{level} ")).next().expect("something")
}

/// The commands of a page, in order, without what another program would do with their output.
pub(crate) fn steps(page: &'static str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut is_console, mut is_ours) = (false, false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            (is_console, is_ours) = (line.trim_start() == "```console", false);
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
            let ours = command.strip_prefix("tailpost ");
            is_ours = ours.is_some();
            let ours = ours.map(|it| it.split("  #").next().unwrap_or(it)); // a comment
            steps.extend(ours.map(|it| {
                let (args, is_piped) = it.split_once(" | ").map_or((it, false), |it| (it.0, true));
                Step { args: words(args), shown: Vec::new(), is_piped }
            }));
        } else if let Some(step) = steps.last_mut().filter(|_| is_ours) {
            step.shown.push(line);
        }
    }
    steps
}

/// The commands of a page below a heading.
pub(crate) fn steps_below<const N: usize>(page: &'static str, heading: &str) -> [Step; N] {
    let steps = steps(section(page, heading));
    let count = steps.len();
    steps.try_into().unwrap_or_else(|_| panic!("{heading}: {count} commands"))
}

/// What a page shows that a port answers to `/readyz`, one answer after the other.
pub(crate) fn readyz(page: &str, port: u16) -> Vec<Value> {
    let command = format!("$ curl -s http://127.0.0.1:{port}/readyz");
    let answers = page.lines().zip(page.lines().skip(1)).filter(|it| it.0 == command);
    answers.map(|it| json_shape(it.1)).collect()
}

/// JSON without what differs from run to run.
pub(crate) fn json_shape(json: &str) -> Value {
    fn without(value: Value) -> Value {
        match value {
            Value::Object(fields) => fields.into_iter().map(|it| (it.0, without(it.1))).collect(),
            Value::Array(all) => all.into_iter().map(without).collect(),
            Value::String(text) => shape(&text).into(),
            Value::Number(_) => "#".into(),
            value => value,
        }
    }
    without(serde_json::from_str(json).unwrap_or_default())
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
    /// When a line that the page shows is not printed, the command prints another between two of
    /// them, or it ends otherwise.
    pub(crate) async fn play(&self, env: &TestEnv, instead: &[(&str, &str)]) -> String {
        self.run(env, instead).await.unwrap_or_else(|differs| panic!("{differs}"))
    }

    /// Runs the command again and again, until it prints what the page shows.
    ///
    /// # Panics
    ///
    /// When it does not within [`DEADLINE`].
    pub(crate) async fn play_until(&self, env: &TestEnv, instead: &[(&str, &str)]) {
        let mut latest = String::new();
        let shows = async || {
            let run = self.run(env, instead).await;
            latest = run.as_ref().err().cloned().unwrap_or_default();
            eprint!("{latest}");
            run.is_ok()
        };
        until(DEADLINE, &format!("{:?} prints what the page shows", self.args), shows).await;
    }

    async fn run(&self, env: &TestEnv, instead: &[(&str, &str)]) -> Result<String, String> {
        let args: Vec<&str> = self
            .args
            .iter()
            .map(|arg| instead.iter().find(|it| it.0 == arg).map_or(&**arg, |it| it.1))
            .collect();
        let process = env.spawn(&args);
        process.announce(""); // the page tells
        let status = process.wait_exit(DEADLINE).await;
        let (stdout, stderr) = (process.stdout(), process.log());
        let fails = self.shown.iter().any(|it| it.starts_with("error: "));
        let differs = match self.differs(&stdout, &stderr) {
            None if status.success() == fails => Some(format!("{status}")),
            differs => differs,
        };
        let printed = format!("{stdout}{stderr}");
        match differs {
            Some(differs) => Err(format!("{args:?}: {differs}\n{printed}")),
            None => Ok(printed),
        }
    }

    /// What differs between the page and what was printed. A terminal shows both streams, each in
    /// its order. The page leaves out what is logged, and the rest where it has `…`.
    fn differs(&self, stdout: &str, stderr: &str) -> Option<String> {
        let mut left = [stdout, stderr].map(|it| it.lines().collect::<VecDeque<_>>());
        let mut leaves_out = self.is_piped || self.shown.is_empty();
        for shown in &self.shown {
            if shown.starts_with('…') {
                leaves_out = true;
                continue;
            }
            let wanted = shape(shown);
            let is_it = |it: &&str| match wanted.strip_suffix('…') {
                Some(beginning) => shape(it).starts_with(beginning),
                None => shape(it) == wanted,
            };
            let found = left.iter().enumerate();
            let found = found.filter_map(|(of, it)| Some((it.iter().position(&is_it)?, of)));
            let Some((at, of)) = found.min() else {
                return Some(format!("does not print, or not here: {shown}"));
            };
            let between = left[of].drain(..=at).next().filter(|_| at > 0 && of == 0);
            if let Some(line) = between.filter(|_| !leaves_out) {
                return Some(format!("prints what the page does not show: {line}"));
            }
            leaves_out = self.is_piped || leaves_out && of != 0;
        }
        let rest = left[0].front().filter(|_| !leaves_out);
        rest.map(|line| format!("prints what the page does not show: {line}"))
    }
}

/// A line without what differs from run to run: numbers, positions, times and ids. The number of a
/// migration does not.
fn shape(line: &str) -> String {
    let mut shape: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_end_matches([',', ';', ')', ':']);
        let is_folder = word.contains("/tailpost-verify-");
        let is_unit = ["B", "KiB", "MiB", "GiB"].contains(&bare);
        let is_number = word.contains(|it: char| it.is_ascii_digit()) && !is_migration(bare);
        let word = if is_unit || is_number || is_folder { "#" } else { word };
        // `1m 5s` and `5s` are alike.
        if word != "#" || shape.last() != Some(&"#") {
            shape.push(word);
        }
    }
    shape.join(" ")
}

/// Whether a word is like `0021_replicated`.
fn is_migration(word: &str) -> bool {
    let (number, name) = word.split_once('_').unwrap_or_default();
    number.len() == 4
        && number.bytes().all(|it| it.is_ascii_digit())
        && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_')
}

/// Numbers of a migration are not like other numbers, and none may be left out unseen.
#[test]
fn a_page_with_an_old_migration_is_seen() {
    let printed = "created  migration 0001_a\ncreated  migration 0002_b\ncreated  slot 17\n";
    let differs = |shown: &[&'static str]| {
        let step = Step { args: Vec::new(), shown: shown.to_vec(), is_piped: false };
        step.differs(printed, "").is_some()
    };
    let [first, second] = ["created  migration 0001_a", "created  migration 0002_b"];
    assert!(!differs(&[first, "…", second, "created  slot 4"]));
    assert!(!differs(&[first, "…"]));
    assert!(differs(&[first, "created  slot 4"]), "the newest is left out");
    assert!(differs(&["created  migration 0003_b", "…"]), "another number");
    assert!(differs(&[first, second]), "the end is left out");
}
