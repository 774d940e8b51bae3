//! Settings from environment variables.

use super::error::{Error, Origin, closest};
use super::keys::{KEYS, Key};
use super::value::Value;
use super::{Settings, inbox_settings};
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

pub(super) fn apply(
    settings: &mut Settings,
    environment: &[(String, String)],
) -> Result<(), Error> {
    let given = || environment.iter().filter(|(_, value)| !value.is_empty());
    let is_off = given().any(|(name, value)| {
        name == "OTEL_SDK_DISABLED" && value.eq_ignore_ascii_case("true")
            || name == "OTEL_TRACES_EXPORTER" && value == "none"
    });
    for (alias, path, unit) in ALIASES {
        let is_shared = alias.starts_with("OTEL_");
        if let Some((name, value)) = given().find(|(name, _)| name == alias)
            && !(is_shared && is_off)
        {
            let key = Key::find(path).expect("aliases name settings");
            let value = format!("{value}{unit}");
            match key.apply(settings, Value::Text(&value), Origin::Variable(name.clone())) {
                // Whole platforms set these, for other programs too: no reason not to publish.
                Err(_) if is_shared => settings.telemetry.unusable = Some(alias),
                applied => {
                    applied?;
                    settings.telemetry.is_exact |= alias == EXACT_ENDPOINT;
                }
            }
        }
    }
    for (name, value) in environment.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let is_alias = ALIASES.iter().any(|(alias, ..)| alias == name);
        if is_alias || NOT_SETTINGS.contains(&name.as_str()) {
            continue;
        }
        if value.is_empty() && !is_secret(settings, name) {
            continue;
        }
        let gone = removed::path_of_variable(name).and_then(|path| {
            Error::removed(Origin::Variable(name.clone()), path, &Value::Text(value))
        });
        if let Some(gone) = gone {
            return Err(gone);
        }
        if settings.apply_inbox_variable(name, value)? {
            continue;
        }
        let key = KEYS.iter().find(|it| variable(it) == *name).ok_or_else(|| {
            let of_inbox = settings.inbox_variables().into_keys();
            let variables: Vec<_> = KEYS.iter().map(variable).chain(of_inbox).collect();
            let hint = closest(name, variables.iter().map(String::as_str));
            Error::new(Origin::Variable(name.clone()), "no setting has this variable")
                .with_hint(hint.map(|it| format!("did you mean {it}?")))
        })?;
        key.apply(settings, Value::Text(value), Origin::Variable(name.clone()))?;
    }
    Ok(())
}

/// Whether an empty value is a mistake rather than none.
fn is_secret(settings: &Settings, name: &str) -> bool {
    let of_inbox = settings.inbox_variables();
    KEYS.iter().any(|it| it.is_secret && variable(it) == name)
        || of_inbox.get(name).is_some_and(|(_, key)| *key == inbox_settings::SECRETS)
}

/// `relay.scan_batch` is `TAILPOST_RELAY__SCAN_BATCH`.
fn variable(key: &Key) -> String {
    format!("{PREFIX}{}", key.path.replace('.', "__").to_uppercase())
}
