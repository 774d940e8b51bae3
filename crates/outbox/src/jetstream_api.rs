//! Where a process asks JetStream: `$JS.API`, unless its account reaches it otherwise.

use std::sync::OnceLock;

/// What servers listen to.
pub const DEFAULT_PREFIX: &str = "$JS.API";

static PREFIX: OnceLock<String> = OnceLock::new();

/// Has the process ask under `prefix`, such as `$JS.hub.API` for the domain `hub`. Says whether it
/// does: the first call counts. A value would have to be passed to whatever asks, in three crates, beside
/// each client.
#[must_use]
pub fn use_prefix(prefix: &str) -> bool {
    PREFIX.get_or_init(|| prefix.to_owned()) == prefix
}

/// What the subjects of requests begin with.
#[must_use]
pub fn prefix() -> &'static str {
    PREFIX.get().map_or(DEFAULT_PREFIX, String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_asks_under_one_prefix() {
        assert!(use_prefix(DEFAULT_PREFIX) && use_prefix(DEFAULT_PREFIX));
        assert!(!use_prefix("$JS.hub.API"), "somebody asks without it");
        assert_eq!(prefix(), DEFAULT_PREFIX);
    }
}
