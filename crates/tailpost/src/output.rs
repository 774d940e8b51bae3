//! Data goes to stdout, and nothing else does.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

/// Version of the JSON that commands print. Raised when a field changes or goes, not when one is
/// added.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    data: &'a T,
}

/// Prints one JSON object on one line.
pub(crate) fn json<T: Serialize>(data: &T) -> anyhow::Result<()> {
    text(&to_json(data)?)
}

/// One JSON object with the version of its schema.
pub(crate) fn to_json<T: Serialize>(data: &T) -> anyhow::Result<String> {
    serde_json::to_string(&Versioned { schema_version: SCHEMA_VERSION, data })
        .context("could not write JSON")
}

/// Prints text and ends the line. A reader that went away is no error.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("could not write to standard output")
        }
        _ => Ok(()),
    }
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
    fn ages_are_short() {
        for (seconds, text) in
            [(0.4, "0s"), (59.9, "59s"), (3599.0, "59m 59s"), (90_000.0, "1d 1h"), (-1.0, "0s")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
