//! Data goes to stdout, and nothing else does.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::Context;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::telemetry;

/// Version of the JSON that commands print. Raised when a field changes or goes, not when one is
/// added.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    data: &'a T,
}

/// Prints data as JSON, or what `said` says of it to people.
pub(crate) fn show<T: Serialize>(
    as_json: bool,
    data: &T,
    said: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if as_json { json(data) } else { text(&said()) }
}

/// Prints one JSON object on one line.
pub(crate) fn json<T: Serialize>(data: &T) -> anyhow::Result<()> {
    text(&to_json(data)?)
}

/// One JSON object with the version of its schema, safe to print on a terminal.
pub(crate) fn to_json<T: Serialize>(data: &T) -> anyhow::Result<String> {
    let json = serde_json::to_string(&Versioned { schema_version: SCHEMA_VERSION, data })
        .context("could not write JSON")?;
    // JSON has such characters in strings only, where an escape means the same.
    let escaped = |it| format!("\\u{:04x}", u32::from(it));
    Ok(replaced(&json, controls_terminals, escaped).into_owned())
}

/// Prints text and ends the line, with control characters escaped. A reader that went away is no
/// error.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let text = printable(text.trim_end());
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("could not write to standard output")
        }
        _ => Ok(()),
    }
}

/// Says something to the person at the terminal, beside the data.
pub(crate) fn note(text: &str) {
    let line = format!("{}\n", printable(text.trim_end()));
    // A reader that went away is no error here either.
    let _ = telemetry::lines::Lines.write_all(line.as_bytes());
}

/// Text of others on our lines: what would move the cursor, change the title or reverse the writing
/// is escaped. Lines stay lines.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    replaced(text, |it| controls_terminals(it) && !matches!(it, '\n' | '\t'), escape)
}

/// As [`printable`], but on one line, so that it cannot pass for more of ours.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    replaced(text, controls_terminals, escape)
}

fn escape(character: char) -> String {
    character.escape_default().to_string()
}

/// Control characters (C0, DEL, C1), separators of lines, and those that change the direction.
fn controls_terminals(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

fn replaced(
    text: &str,
    concerns: impl Fn(char) -> bool,
    replacement: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&concerns) {
        return Cow::Borrowed(text);
    }
    let replace = |it| if concerns(it) { replacement(it) } else { it.to_string() };
    Cow::Owned(text.chars().map(replace).collect())
}

/// Labels in one column, what they label in the next, on one line each.
pub(crate) struct Lines {
    pub(crate) text: String,
    width: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_labels(14)
    }
}

impl Lines {
    pub(crate) fn with_labels(width: usize) -> Self {
        Self { text: String::new(), width }
    }

    pub(crate) fn add(&mut self, label: &str, value: impl Display) {
        let (value, width) = (value.to_string(), self.width);
        self.text += &format!("{label:<width$} {}\n", one_line(&value));
    }

    /// Each field of an object that has a value, under its name in JSON; without its id.
    pub(crate) fn add_fields(&mut self, data: &impl Serialize) -> anyhow::Result<()> {
        let data = serde_json::to_value(data).context("could not write JSON")?;
        for (name, value) in data.as_object().into_iter().flatten() {
            if !matches!(value, Value::Null | Value::Bool(false)) && name != "id" {
                self.add(&name.replace('_', " "), bare(value));
            }
        }
        Ok(())
    }

    pub(crate) fn add_some(&mut self, label: &str, value: Option<&(impl Display + ?Sized)>) {
        if let Some(value) = value {
            self.add(label, value);
        }
    }
}

/// A text without quotes, and anything else as JSON.
pub(crate) fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A value behind these words, if there is one.
pub(crate) fn if_any(words: &str, value: Option<impl Display>) -> String {
    value.map(|it| format!("{words}{it}")).unwrap_or_default()
}

/// How long something took or is ago, in its two largest units.
pub(crate) fn duration(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_control_a_terminal_is_escaped() {
        let hostile = "a\u{1b}]0;owned\u{7}\u{9b}2J\u{7f}\r\n\u{202e}b\té";
        assert_eq!(printable(hostile), "a\\u{1b}]0;owned\\u{7}\\u{9b}2J\\u{7f}\\r\n\\u{202e}b\té");
        assert_eq!(one_line(hostile), "a\\u{1b}]0;owned\\u{7}\\u{9b}2J\\u{7f}\\r\\n\\u{202e}b\\té");
        #[derive(Serialize)]
        struct Data<'a> {
            text: &'a str,
        }
        let json = to_json(&Data { text: hostile }).expect("serialisable");
        assert!(!json.contains(controls_terminals), "{json:?}");
        let back: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
        assert_eq!(back["text"], hostile);
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in
            [(0.4, "0s"), (59.9, "59s"), (3599.0, "59m 59s"), (90_000.0, "1d 1h"), (-1.0, "0s")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
