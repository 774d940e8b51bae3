//! The reference page of the settings, docs/configuration.md, made of docker/tailpost.toml, which
//! another test compares with the code, and of what each setting says that it wants.

use std::fmt::Write;

use super::super::forms::{DURATION, SIZE};
use super::super::reference::{Key, REFERENCE, setting};
use super::refusal;

const INTRODUCTION: &str = "\
# Configuration

Generated from [docker/tailpost.toml](../docker/tailpost.toml).

The file is `tailpost.toml` in the working directory, or what `--config` or `TAILPOST_CONFIG` names. A
mistake ends the program with exit code 78, and names the line and the nearest known name.
`GET /api/v1/config` shows the effective settings, without secrets.

The default is in brackets. A setting without a type takes what its default is, or a string.
";

#[derive(Default)]
struct Page {
    text: String,
    section: String,
    /// Comments that are about the next setting, or the next section.
    comments: String,
    /// Whether the last of them is a block of code.
    is_code: bool,
}

/// What the code accepts, in the words of the error for something else.
fn wanted(path: &str) -> String {
    let key = Key::find(path).expect("a setting");
    let wrong = if key.value.is_array() { "[1979-05-27]" } else { "1979-05-27" };
    let (section, name) = path.rsplit_once('.').expect("section.key");
    let (problem, _) = refusal(&format!("[{section}]\n{name} = {wrong}\n"), &[]);
    let (_, wanted) = problem.split_once(" must be ").expect("an error says what is wanted");
    // The reference begins with the units.
    wanted.replace(DURATION, "a duration").replace(SIZE, "a size")
}

/// What a setting takes, in few words; nothing of what its default says, or that it has none.
fn brief(wanted: &str, default: Option<&str>) -> String {
    let mut wanted = wanted.replace("one of ", "").replace(", not an empty one", "");
    wanted = wanted.replace("a whole number from ", "from ");
    if default.is_some()
        && let Some((before, example)) = wanted.split_once(" such as \"")
        && let Some((_, behind)) = example.split_once('"')
    {
        wanted = format!("{}{behind}", before.trim_end_matches(','));
    }
    if default.is_some_and(|it| it != "\"off\"") {
        let kind = ["a duration, ", "a size, "].into_iter().find(|it| wanted.starts_with(it));
        wanted.drain(..kind.map_or(0, str::len));
    }
    match &*wanted {
        "a string" | "a duration" | "true or false" => String::new(),
        _ => format!(": {wanted}"),
    }
}

impl Page {
    fn section(&mut self, name: &str) {
        let comments = self.take_comments();
        // What stands before the first section is about all of them.
        let (before, below) = if self.section.is_empty() {
            (comments, String::new())
        } else {
            (String::new(), comments)
        };
        _ = write!(self.text, "{before}\n## {name}\n{below}");
        name.clone_into(&mut self.section);
    }

    fn setting(&mut self, name: &str, default: Option<&str>) {
        let comments = self.take_comments();
        let path = format!("{}.{name}", self.section);
        let wanted = brief(&wanted(&path), default);
        let default = default.map_or(String::new(), |it| format!(" (`{it}`)"));
        let is_below = self.text.lines().last().is_some_and(|it| it.starts_with("- "));
        let separator = if comments.is_empty() && is_below { "" } else { "\n" };
        _ = writeln!(self.text, "{comments}{separator}- **`{path}`**{default}{wanted}");
    }

    fn comment(&mut self, line: &str) {
        let is_code = line.starts_with("  ") || line.starts_with("[[") || setting(line).is_some();
        if is_code && !self.is_code {
            self.comments.push_str("\n```toml\n");
        } else if !is_code {
            self.end_code();
        }
        self.is_code = is_code;
        let line = if is_code { line.trim_start().to_owned() } else { linked(line) };
        _ = writeln!(self.comments, "{line}");
    }

    fn end_code(&mut self) {
        if std::mem::take(&mut self.is_code) {
            self.comments.push_str("```\n\n");
        }
    }

    fn take_comments(&mut self) -> String {
        self.end_code();
        match std::mem::take(&mut self.comments) {
            comments if comments.is_empty() => comments,
            comments => format!("\n{comments}"),
        }
    }

    fn line(&mut self, line: &str) {
        let section = line.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        if let Some(section) = section {
            self.section(section);
        } else if let Some(comment) = line.strip_prefix("# ") {
            if comment.starts_with("Routes give ") {
                self.section("route");
            }
            self.comment(comment);
        } else if line == "#" {
            self.comments.push('\n');
        } else if let Some((name, value)) = setting(line) {
            self.setting(name, Some(value).filter(|_| !line.starts_with('#')));
        } else {
            self.comments.push('\n');
        }
    }
}

/// With links instead of the names of other pages.
fn linked(line: &str) -> String {
    let mut text = String::new();
    let mut parts = line.split("docs/");
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let link =
            part.split([' ', ',', ';', ':', ')']).next().unwrap_or_default().trim_end_matches('.');
        let (page, rest) = (link.split('#').next().unwrap_or_default(), &part[link.len()..]);
        _ = write!(text, "[{page}]({link}){rest}");
    }
    text
}

fn page() -> String {
    let mut page = Page { text: INTRODUCTION.to_owned(), ..Page::default() };
    for line in REFERENCE.lines().skip(2) {
        page.line(line);
    }
    let end = page.take_comments();
    let mut text = page.text + &end;
    while text.contains("\n\n\n") {
        text = text.replace("\n\n\n", "\n\n");
    }
    text.trim_end().to_owned() + "\n"
}

#[test]
fn the_configuration_page_is_what_the_code_accepts() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(path, page()).expect("docs/configuration.md can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let hint = "run `UPDATE_PAGES=1 cargo test -p tailpost configuration_page` and commit \
                docs/configuration.md";
    assert!(found == page(), "docs/configuration.md is not what the code accepts: {hint}");
}
