//! Where a process asks JetStream: `$JS.API`, unless its account reaches it otherwise.

use std::sync::OnceLock;

/// What servers listen to.
pub const DEFAULT_PREFIX: &str = "$JS.API";

static PREFIX: OnceLock<String> = OnceLock::new();

/// Has the process ask under `prefix`, such as `$JS.hub.API` for the domain `hub`. The first call
/// counts: a process talks to one JetStream, by one configuration. A value would have to be passed to
/// whatever asks, in three crates, beside each client.
pub fn use_prefix(prefix: &str) {
    PREFIX.get_or_init(|| prefix.to_owned());
}

/// What the subjects of requests begin with.
#[must_use]
pub fn prefix() -> &'static str {
    PREFIX.get().map_or(DEFAULT_PREFIX, String::as_str)
}
