//! Settings from environment variables, and what the variables are called.

use std::collections::BTreeMap;

use super::error::{Error, Origin, closest};
use super::given::Given;
use super::reference::{KEYS, Key, SHARED, is_secret, path_of};
use crate::removed;

const PREFIX: &str = "TAILPOST_";
/// The address of requests with spans itself: that of a collector has `/v1/traces` added to it.
const EXACT_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Variables with our prefix that are no settings.
const NOT_SETTINGS: [&str; 5] =
    ["TAILPOST_BIN", "TAILPOST_CONFIG", "TAILPOST_LOG", "TAILPOST_NATS_SERVER", "TAILPOST_PG_BIN"];
/// Names that other tools use too, and what their values lack. Our own for the same setting win.
const ALIASES: [(&str, &str, &str); 10] = [
    ("DATABASE_URL", "postgres.url", ""),
    ("NATS_URL", "nats.url", ""),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint", ""),
    (EXACT_ENDPOINT, "telemetry.otlp_endpoint", ""),
    ("OTEL_EXPORTER_OTLP_HEADERS", "telemetry.otlp_headers", ""),
    ("OTEL_SERVICE_NAME", "telemetry.service_name", ""),
    ("TAILPOST_OUTBOX_WORKERS", "relay.poll_workers", ""),
    ("TAILPOST_OUTBOX_BATCH_SIZE", "relay.poll_batch", ""),
    ("TAILPOST_OUTBOX_MAX_ATTEMPTS", "relay.max_attempts", ""),
    ("TAILPOST_OUTBOX_POLL_MS", "relay.poll_interval", "ms"),
];

/// `relay.scan_batch` is `TAILPOST_RELAY__SCAN_BATCH`.
fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").replace('-', "_").to_uppercase())
}

/// Each variable with its path and its key. Only consumers that are known have some.
fn variables(given: &Given) -> BTreeMap<String, (String, &'static Key)> {
    let of_consumer = |consumer: &String, key: &'static Key| {
        let name = key.path.strip_prefix("inbox.").filter(|_| key.path != SHARED)?;
        Some((path_of(Some(consumer), name), key))
    };
    let own = KEYS.iter().flat_map(|key| {
        given.consumers.iter().filter_map(move |consumer| of_consumer(consumer, key))
    });
    let all = KEYS.iter().map(|key| (key.path.clone(), key)).chain(own);
    all.map(|(path, key)| (variable(&path), (path, key))).collect()
}

pub(super) fn apply(given: &mut Given, environment: &[(String, String)]) -> Result<(), Error> {
    let set = || environment.iter().filter(|(_, value)| !value.is_empty());
    let is_off = set().any(|(name, value)| {
        name == "OTEL_SDK_DISABLED" && value.eq_ignore_ascii_case("true")
            || name == "OTEL_TRACES_EXPORTER" && value == "none"
    });
    for (alias, path, unit) in ALIASES {
        let is_shared = alias.starts_with("OTEL_");
        let (Some((_, value)), Some(key)) = (set().find(|it| it.0 == alias), Key::find(path))
        else {
            continue;
        };
        if is_shared && is_off {
            continue;
        }
        let (origin, before) = (Origin::Variable(alias.to_owned()), given.clone());
        given.set(path, key.typed(&format!("{value}{unit}")), origin.clone());
        // Whole platforms set these, for other programs too: no reason not to publish.
        let is_refused = |error: Error| error.origin() == Some(&origin);
        if is_shared && given.settings().err().is_some_and(is_refused) {
            *given = before;
            given.unusable = Some(alias);
        }
    }
    for (name, text) in environment.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let is_alias = ALIASES.iter().any(|(alias, ..)| alias == name);
        if is_alias || NOT_SETTINGS.contains(&name.as_str()) {
            continue;
        }
        let mut variables = variables(given);
        let found = variables.remove(name);
        // An empty secret is a mistake rather than none.
        if text.is_empty() && !found.as_ref().is_some_and(|(path, _)| is_secret(path)) {
            continue;
        }
        let origin = Origin::Variable(name.clone());
        let gone = removed::paths().find(|path| variable(path) == *name);
        if let Some(gone) = gone.and_then(|path| Error::removed(&origin, path, Some(text))) {
            return Err(gone);
        }
        let Some((path, key)) = found else {
            let hint = closest(name, variables.keys().map(String::as_str));
            return Err(Error::new(origin, "no setting has this variable")
                .with_hint(hint.map(|it| format!("did you mean {it}?"))));
        };
        given.set(&path, key.typed(text), origin);
    }
    Ok(())
}

/// Whether requests with spans go just there.
pub(super) fn is_exact(endpoint: Option<&Origin>) -> bool {
    matches!(endpoint, Some(Origin::Variable(name)) if name == EXACT_ENDPOINT)
}
