//! The effective settings as operators may see them: where each came from, and no secret.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

use super::inbox_settings::SECRETS;
use super::keys::{KEYS, Key};
use super::value::Value;
use super::{Settings, inbox_settings, routes};

/// Every setting with its default. A test compares it with the defaults.
const REFERENCE: &str = include_str!("../../reference.toml");
const MASKED: &str = "***";
const PASSWORD_COMMAND: &str = "postgres.password_command";

/// What was given, as it was given; no secrets. Settings are the same however they were written.
#[derive(Clone, Default)]
pub(super) struct Given(BTreeMap<String, Json>);

impl PartialEq for Given {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// Nothing if it has none. A secret is masked, and so is what a URL has of one.
    pub(crate) value: Option<Json>,
    /// `default`, the file with the line, the variable, or the flag.
    pub(crate) origin: String,
}

impl Given {
    /// Notes a value, unless it is a secret.
    pub(super) fn note(&mut self, path: &str, value: Value<'_>) {
        let key = path.rsplit('.').next().unwrap_or(path);
        let is_secret = Key::find(path).is_some_and(|it| it.is_secret)
            || path.starts_with(inbox_settings::SECTION) && key == SECRETS;
        let shown = match value {
            _ if is_secret => MASKED.into(),
            Value::Text(text) => text.into(),
            Value::Toml(value) => json(value),
        };
        let shown = match shown {
            Json::String(text) if path.ends_with(".handler") => without_secrets(&text).into(),
            _ if path == PASSWORD_COMMAND => without_arguments(value),
            shown => shown,
        };
        self.0.insert(path.to_owned(), shown);
    }

    pub(super) fn note_routes(&mut self, value: &DeValue<'_>) {
        self.0.insert(routes::SECTION.to_owned(), json(value));
    }
}

impl Settings {
    /// Every setting in the order of its name, and every consumer's.
    pub(crate) fn shown(&self) -> Vec<Setting> {
        let of_inbox = inbox_settings::KEYS.iter();
        let of_inbox = of_inbox.map(|it| format!("{}.{}", inbox_settings::SECTION, it.name));
        let paths = KEYS.iter().map(|it| it.path.to_owned()).chain(of_inbox);
        let mut all: BTreeMap<String, Option<Json>> = paths.map(|path| (path, None)).collect();
        let defaults = DeTable::parse(REFERENCE).ok();
        if let Some(defaults) = &defaults {
            add_defaults(&mut all, "", defaults.get_ref());
        }
        for (path, value) in &self.given.0 {
            all.insert(path.clone(), Some(value.clone()));
        }
        if all.get("postgres.url").is_some_and(Option::is_some) {
            let target = self.postgres_target().map_or(MASKED.into(), |it| it.to_string());
            all.insert("postgres.url".into(), Some(target.into()));
        }
        let target = self.nats_target_now().map_or(MASKED.into(), |it| it.to_string());
        all.insert("nats.url".into(), Some(target.into()));
        let origin = |key: &str| match self.origins.get(key) {
            Some(origin) => origin.to_string(),
            None if key == routes::SECTION => "the file".into(),
            None => "default".into(),
        };
        let setting = |(key, value): (String, Option<Json>)| {
            let origin = origin(&key);
            Setting { key, value, origin }
        };
        all.into_iter().map(setting).collect()
    }
}

fn add_defaults(all: &mut BTreeMap<String, Option<Json>>, section: &str, table: &DeTable<'_>) {
    for (name, value) in table {
        let path = match section {
            "" => name.get_ref().to_string(),
            section => format!("{section}.{}", name.get_ref()),
        };
        match value.get_ref() {
            DeValue::Table(table) => add_defaults(all, &path, table),
            value => _ = all.insert(path, Some(json(value))),
        }
    }
}

fn json(value: &DeValue<'_>) -> Json {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(value) => (*value).into(),
        DeValue::Integer(value) => {
            let number = i64::from_str_radix(value.as_str(), value.radix());
            number.map_or_else(|_| value.as_str().into(), Into::into)
        }
        DeValue::Float(value) => value.as_str().into(),
        DeValue::Datetime(value) => value.to_string().into(),
        DeValue::Array(values) => values.iter().map(|it| json(it.get_ref())).collect(),
        DeValue::Table(table) => {
            let entry = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                let name: &std::borrow::Cow<'_, str> = name.get_ref();
                (name.to_string(), json(value.get_ref()))
            };
            Json::Object(table.iter().map(entry).collect())
        }
    }
}

/// The program alone: an argument may be a secret.
fn without_arguments(value: Value<'_>) -> Json {
    let argv = value.argv().unwrap_or_default();
    let masked = argv.len().checked_sub(1).filter(|it| *it > 0).map(|_| MASKED.to_owned());
    argv.into_iter().take(1).chain(masked).collect()
}

/// A URL without user, password and query.
fn without_secrets(url: &str) -> String {
    let (url, query) = match url.split_once(['?', '#']) {
        Some((url, _)) => (url, "?***"),
        None => (url, ""),
    };
    let Some((scheme, rest)) = url.split_once("://") else { return format!("{url}{query}") };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{MASKED}@{host}"),
        None => authority.to_owned(),
    };
    format!("{scheme}://{host}{path}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, shown) in [
            ("http://a/b", "http://a/b"),
            ("https://ada:pw@a:1/b?token=x", "https://***@a:1/b?***"),
            ("https://a@b@c", "https://***@c"),
            ("nonsense?x", "nonsense?***"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
