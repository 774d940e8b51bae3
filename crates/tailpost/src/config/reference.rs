//! `docker/tailpost.toml`, which has every key: with its default, or with an example behind `#`.

use std::sync::LazyLock;

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

pub(super) const REFERENCE: &str = include_str!("../../reference.toml");
pub(super) const INBOX: &str = "inbox";
/// Consumers share what this is about; each other key of their section may be set for one.
pub(super) const SHARED: &str = "inbox.retention";
pub(super) const PASSWORD_COMMAND: &str = "postgres.password_command";
/// What is never shown. A test compares this with the types.
const SECRETS: [&str; 7] = [
    "nats.nkey",
    "nats.token",
    "nats.password",
    "admin.token",
    "telemetry.otlp_headers",
    "inbox.secrets",
    "inbox.headers",
];

/// A setting of which the reference has a line.
pub(super) struct Key {
    /// `section.key`, as in the file.
    pub(super) path: String,
    /// The default, or an example.
    pub(super) value: Json,
    pub(super) is_default: bool,
}

pub(super) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut section = "";
    let key = |line: &'static str| {
        if let Some(name) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            section = name;
        }
        let (name, _) = setting(line)?;
        let table = DeTable::parse(line.trim_start_matches('#')).ok()?;
        let value = json(table.get_ref().get(name)?.get_ref());
        let is_default = !line.starts_with('#');
        Some(Key { path: format!("{section}.{name}"), value, is_default })
    };
    REFERENCE.lines().filter_map(key).collect()
});

impl Key {
    pub(super) fn find(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|it| it.path == path)
    }

    /// A value that was given as text.
    pub(super) fn typed(&self, text: &str) -> Json {
        let of_token = |it: &str| match it.split_once(':') {
            Some((role, file)) => serde_json::json!({ "role": role, "file": file }),
            None => it.into(),
        };
        let items = || text.split(',').map(str::trim);
        let typed = match &self.value {
            Json::Bool(_) => text.parse::<bool>().ok().map(Json::from),
            Json::Number(_) => text.parse::<u64>().ok().map(Json::from),
            // Arguments may have anything in them.
            _ if self.path == PASSWORD_COMMAND => serde_json::from_str(text).ok(),
            Json::Array(list) if list.iter().any(Json::is_object) => {
                Some(items().map(of_token).collect())
            }
            Json::Array(_) => Some(items().collect()),
            Json::Object(_) => serde_json::from_str(text).ok(),
            Json::Null | Json::String(_) => None,
        };
        typed.unwrap_or_else(|| text.into())
    }
}

/// The path of a setting of `[inbox]`, for one consumer or for all.
pub(super) fn path_of(consumer: Option<&str>, name: &str) -> String {
    let section = consumer.map_or_else(|| INBOX.into(), |it| format!("{INBOX}.{it}"));
    format!("{section}.{name}")
}

/// The names of these settings.
pub(super) fn of_inbox() -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter_map(|it| it.path.strip_prefix("inbox."))
}

/// The name and the value of a setting's line.
pub(super) fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix('#').unwrap_or(line).split_once(" = ")?;
    (!name.is_empty() && !name.contains(' ')).then_some((name, value))
}

/// Whether it is a secret, also a consumer's.
pub(super) fn is_secret(path: &str) -> bool {
    let of_all = path.strip_prefix("inbox.").and_then(|it| it.split_once('.'));
    SECRETS.contains(&path) || of_all.is_some_and(|(_, name)| is_secret(&path_of(None, name)))
}

pub(super) fn json(value: &DeValue<'_>) -> Json {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(value) => (*value).into(),
        DeValue::Integer(value) => {
            let number = i64::from_str_radix(value.as_str(), value.radix());
            number.map_or_else(|_| value.as_str().into(), Into::into)
        }
        // No setting takes one of these, and none takes this.
        DeValue::Float(_) | DeValue::Datetime(_) => Json::Array(vec![Json::Null]),
        DeValue::Array(values) => values.iter().map(|it| json(it.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(name, it)| (name.get_ref().to_string(), json(it.get_ref())))
            .collect(),
    }
}
