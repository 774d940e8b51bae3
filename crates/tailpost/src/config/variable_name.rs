//! From which environment variable a setting comes. Names of other tools: `environment.rs`.

pub(super) const PREFIX: &str = "TAILPOST_";

/// `relay.scan_batch` is `TAILPOST_RELAY__SCAN_BATCH`.
pub(crate) fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").replace('-', "_").to_uppercase())
}
