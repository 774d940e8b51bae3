//! How far back the log can be read again.

use std::time::Duration;

use servers::error::Error;

/// How much of its log PostgreSQL keeps for replays. A slot of its own trails behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RewindConfig {
    /// At most so many bytes; `None`: there is no such slot.
    pub retain: Option<u64>,
    /// And nothing that is older.
    pub max_age: Duration,
}

impl RewindConfig {
    pub(super) fn check(&self, slot: &str) -> Result<(), Error> {
        if self.retain.is_some() && slot.len() + SUFFIX.len() > 63 {
            let text = format!("{slot}{SUFFIX}, the rewind slot's name, is longer than 63 bytes");
            return Err(Error::invalid("postgres.slot", text));
        }
        Ok(())
    }

    /// What the rewind slot of `slot` is called.
    pub fn slot(slot: &str) -> String {
        format!("{slot}{SUFFIX}")
    }
}

const SUFFIX: &str = "_rewind";
