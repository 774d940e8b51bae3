//! The effective settings as operators may see them: where each came from, and no secret.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use super::reference::{KEYS, PASSWORD_COMMAND, is_secret};
use super::{Settings, routes};

const MASKED: &str = "***";

/// A setting.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// Nothing if it has none. A secret is masked, and so is what a URL has of one.
    pub(crate) value: Option<Json>,
    /// `default`, the file with the line, the variable, or the flag.
    pub(crate) origin: String,
}

impl Settings {
    /// Every setting in the order of its name, and every consumer's.
    pub(crate) fn shown(&self) -> Vec<Setting> {
        let known = KEYS.iter().map(|it| (it.path.as_str(), None));
        let mut all: BTreeMap<&str, Option<Json>> = known.collect();
        for (path, value) in self.given.values() {
            all.insert(path, Some(shown(path, value)));
        }
        if self.given.value("postgres.url").is_some() {
            let target = self.postgres_target().map_or(MASKED.into(), |it| it.to_string());
            all.insert("postgres.url", Some(target.into()));
        }
        let target = self.nats_target_now().map_or(MASKED.into(), |it| it.to_string());
        all.insert("nats.url", Some(target.into()));
        let origin = |key: &str| match self.given.origin(key) {
            _ if key == routes::SECTION => "the file".into(),
            Some(origin) => origin.to_string(),
            None => "default".into(),
        };
        let all = all.into_iter();
        all.map(|(key, value)| Setting { key: key.to_owned(), value, origin: origin(key) })
            .collect()
    }
}

fn shown(path: &str, value: &Json) -> Json {
    match value {
        _ if is_secret(path) => MASKED.into(),
        Json::String(text) if path.ends_with(".handler") || path.ends_with(".proxy") => {
            without_secrets(text).into()
        }
        // The program alone: an argument may be a secret.
        Json::Array(argv) if path == PASSWORD_COMMAND => {
            let masked = (argv.len() > 1).then(|| MASKED.into());
            argv.iter().take(1).cloned().chain(masked).collect()
        }
        shown => shown.clone(),
    }
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
