//! The reference page of the settings, docs/configuration.md, made of docker/tailpost.toml, which
//! another test compares with the code, and of what each setting says that it wants.

use std::fmt::Write;

use super::inbox_settings;
use super::keys::KEYS;
use super::tests::refusal;

const REFERENCE: &str = include_str!("../../reference.toml");

const INTRODUCTION: &str = "\
# Configuration

Made from [docker/tailpost.toml](../docker/tailpost.toml) and from what the code accepts:
`UPDATE_PAGES=1 cargo test -p tailpost configuration_page` writes this page.

The file is `tailpost.toml` in the working directory, or what `--config` or `TAILPOST_CONFIG` names. A
mistake ends the program with exit code 78, and names the line and the nearest known name.
`GET /api/v1/config` shows the effective settings, and where each comes from.
";

/// A setting as the file shows it.
struct Shown<'a> {
    name: &'a str,
    /// Nothing if it has none.
    default: Option<&'a str>,
}

#[derive(Default)]
struct Page {
    text: String,
    section: String,
    /// Comments that are about the next setting, or the next section.
    comments: String,
    /// Whether the last of them is a block of code.
    is_code: bool,
}

fn shown(line: &str) -> Option<Shown<'_>> {
    let (has_default, setting) = match line.strip_prefix('#') {
        Some(setting) => (false, setting),
        None => (true, line),
    };
    let (name, value) = setting.split_once(" = ")?;
    let is_name = !name.is_empty() && !name.contains(' ');
    is_name.then_some(Shown { name, default: has_default.then_some(value) })
}

/// What the code accepts, in the words of the error for something else.
fn wanted(section: &str, name: &str) -> String {
    let (problem, _) = refusal(&format!("[{section}]\n{name} = 1979-05-27\n"), &[]);
    let (_, wanted) = problem.split_once(" must be ").expect("an error says what is wanted");
    wanted
        .replace(r#" such as "500ms", "30s", "2m", "12h" or "7d""#, "")
        .replace(r#" such as "512KiB", "64MiB" or "10GiB""#, "")
}

impl Page {
    fn section(&mut self, name: &str) {
        let comments = self.take_comments();
        _ = write!(self.text, "\n## {name}\n{comments}");
        name.clone_into(&mut self.section);
    }

    fn setting(&mut self, setting: &Shown<'_>) {
        let comments = self.take_comments();
        let path = format!("{}.{}", self.section, setting.name);
        let default = setting.default.map_or("none".to_owned(), |it| format!("`{it}`"));
        let wanted = wanted(&self.section, setting.name);
        let is_secret = KEYS.iter().any(|it| it.path == path && it.is_secret)
            || setting.name == inbox_settings::SECRETS;
        let secret = if is_secret { ". A secret: it is shown nowhere" } else { "" };
        _ = writeln!(
            self.text,
            "{comments}\n- **`{path}`**: {wanted}{secret}. Default: {default}."
        );
    }

    fn comment(&mut self, line: &str) {
        let is_code = line.starts_with("  ") || line.starts_with("[[") || shown(line).is_some();
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
        } else if let Some(setting) = shown(line) {
            self.setting(&setting);
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
