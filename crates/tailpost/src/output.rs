//! Data goes to stdout, and nothing else does.

use std::io::{ErrorKind, Write};

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
