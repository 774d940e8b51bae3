//! What was given: each key's value in force, from whichever layer, and where it came from.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::Settings;
use super::error::{Error, Origin, closest};
use super::forms::wanted;
use super::reference::{INBOX, KEYS, Key, SHARED, of_inbox, path_of};
use super::sections::ConsumerSettings;

/// Holds secrets: not `Debug`.
#[derive(Clone, Default)]
pub(super) struct Given {
    /// By path: `section.key`, or `inbox.NAME.key`.
    values: BTreeMap<String, Json>,
    /// Those of what is not a default.
    origins: BTreeMap<String, Origin>,
    pub(super) consumers: BTreeSet<String>,
    /// The variable of OpenTelemetry that was passed over.
    pub(super) unusable: Option<&'static str>,
}

impl Given {
    /// The defaults.
    pub(super) fn new() -> Self {
        let defaults = KEYS.iter().filter(|it| it.is_default);
        let values = defaults.map(|it| (it.path.clone(), it.value.clone())).collect();
        Self { values, ..Self::default() }
    }

    pub(super) fn set(&mut self, path: &str, value: Json, origin: Origin) {
        self.values.insert(path.to_owned(), value);
        self.note(path, origin);
    }

    /// Sets what a file gives a setting, or refuses it.
    pub(super) fn give(&mut self, path: &str, value: Json, origin: Origin) -> Result<(), Error> {
        let of_all = of_all_consumers(path);
        let shared = of_all.as_deref().unwrap_or(path);
        if let Some(gone) = Error::removed(&origin, shared, value.as_str()) {
            return Err(gone);
        }
        if Key::find(shared).is_none() {
            let nearest = closest(shared, KEYS.iter().map(|it| it.path.as_str()));
            let section = path.rsplit_once('.').map_or("", |(section, _)| section);
            let hint = nearest.map(|it| match it.strip_prefix("inbox.") {
                Some(name) if of_all.is_some() => format!("did you mean `{section}.{name}`?"),
                _ => format!("did you mean `{it}`?"),
            });
            return Err(Error::new(origin, format!("unknown key `{path}`")).with_hint(hint));
        }
        if of_all.as_deref() == Some(SHARED) {
            let problem = format!("`{path}`: consumers share their tables");
            let hint = format!("set `{SHARED}` in [{INBOX}]");
            return Err(Error::new(origin, problem).with_hint(Some(hint)));
        }
        self.set(path, value, origin);
        Ok(())
    }

    pub(super) fn note(&mut self, path: &str, origin: Origin) {
        self.origins.insert(path.to_owned(), origin);
    }

    pub(super) fn value(&self, path: &str) -> Option<&Json> {
        self.values.get(path)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = (&String, &Json)> {
        self.values.iter()
    }

    /// Where it came from. What was not given for a consumer may have been given for all, and what
    /// is not in a route has the route's place.
    pub(super) fn origin(&self, path: &str) -> Option<Origin> {
        let section = || path.split('.').next().unwrap_or_default().to_owned();
        let wider = of_all_consumers(path).unwrap_or_else(section);
        self.origins.get(path).or_else(|| self.origins.get(&wider)).cloned()
    }

    /// The first that begins so.
    pub(super) fn origin_below(&self, prefix: &str) -> Option<Origin> {
        let mut below = self.origins.range(prefix.to_owned()..);
        below.next().filter(|(path, _)| path.starts_with(prefix)).map(|(_, it)| it.clone())
    }

    pub(super) fn settings(&self) -> Result<Settings, Error> {
        self.read(&self.tree(), str::to_owned)
    }

    /// All sections, without consumers and routes.
    pub(super) fn tree(&self) -> Json {
        let mut root = Json::default();
        for key in KEYS.iter() {
            if let Some(value) = self.values.get(&key.path) {
                *key.path.split('.').fold(&mut root, |it, part| &mut it[part]) = value.clone();
            }
        }
        root
    }

    /// The settings of a consumer: its own, or else those of all.
    pub(super) fn consumer(&self, consumer: &str) -> Result<ConsumerSettings, Error> {
        let own = |name: &str| path_of(Some(consumer), name);
        // They belong together.
        let has_identity = ["cert", "key"].iter().any(|it| self.values.contains_key(&own(it)));
        let mut table = serde_json::Map::new();
        for name in of_inbox() {
            let of_all = || self.values.get(&path_of(None, name));
            let is_own = has_identity && (name == "cert" || name == "key");
            let value = self.values.get(&own(name));
            if let Some(value) = value.or_else(|| if is_own { None } else { of_all() }) {
                table.insert(name.to_owned(), value.clone());
            }
        }
        self.read(&Json::Object(table), own)
    }

    fn read<T: DeserializeOwned>(
        &self,
        json: &Json,
        full_path: impl Fn(&str) -> String,
    ) -> Result<T, Error> {
        serde_path_to_error::deserialize(json).map_err(|error| {
            let path = full_path(&error.path().to_string());
            let (path, is_item) = match path.split_once('[') {
                Some((list, _)) => (list, true),
                None => (path.as_str(), false),
            };
            let message = error.inner().to_string();
            let wanted = match wanted(&message) {
                "a string" if is_item => "a list of strings".into(),
                item if is_item => format!("a list of {item}"),
                wanted => wanted.into(),
            };
            Error::about(self.origin(path), format!("`{path}` must be {wanted}"))
        })
    }
}

/// The path of a consumer's setting, `inbox.NAME.key`, among those of all consumers: `inbox.key`.
fn of_all_consumers(path: &str) -> Option<String> {
    let (_, name) = path.strip_prefix("inbox.")?.split_once('.')?;
    Some(path_of(None, name))
}
