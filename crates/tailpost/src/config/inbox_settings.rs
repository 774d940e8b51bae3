//! `[inbox]`, which holds for every consumer, and `[inbox.NAME]`, which is one.

mod inbox_keys;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use inbox::Backoff;
use inbox::http::Secret;
use toml::de::{DeTable, DeValue};

use self::inbox_keys::Layer;
use super::Settings;
use super::error::{Error, Origin, closest};
use super::value::Value;

pub(super) use self::inbox_keys::{KEYS, SECRETS};

pub(super) const SECTION: &str = "inbox";
const PREFIX: &str = "TAILPOST_INBOX__";
/// Consumers are named by durables, headers, metrics and variables.
const NAME_BYTES_MAX: usize = 64;

/// All consumers, before they are resolved. Holds secrets: not `Debug`.
#[derive(Clone, PartialEq)]
pub(super) struct InboxSettings {
    all: Layer,
    consumers: BTreeMap<String, Layer>,
}

impl Default for InboxSettings {
    fn default() -> Self {
        let all = Layer {
            concurrency: Some(16),
            lease: Some(Duration::from_secs(30)),
            ack_wait: Some(Duration::from_secs(30)),
            max_attempts: Some(5),
            // A service that is restarted should not cost an event all of its attempts.
            backoff_first: Some(Duration::from_secs(5)),
            backoff_max: Some(Duration::from_mins(5)),
            timeout: Some(Duration::from_secs(20)),
            retention: Some(None),
            ..Layer::default()
        };
        Self { all, consumers: BTreeMap::new() }
    }
}

/// One consumer, with nothing left open. Holds secrets: not `Debug`.
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) handler: Option<String>,
    pub(crate) stream: String,
    /// All subjects of the stream if there are none.
    pub(crate) subjects: Vec<String>,
    /// How many events are handled at a time.
    pub(crate) concurrency: usize,
    pub(crate) lease: Duration,
    pub(crate) ack_wait: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    /// How long the handler may take to answer. Less than the lease.
    pub(crate) timeout: Duration,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) ca: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Settings {
    /// The consumers of the configuration, by name.
    pub(crate) fn consumers(&self) -> Result<Vec<Consumer>, Error> {
        self.inbox.consumers.iter().map(|(name, own)| self.consumer(name, own)).collect()
    }

    /// For how long records are kept; for ever if there is no limit.
    pub(crate) fn inbox_retention(&self) -> Option<Duration> {
        self.inbox.all.retention.flatten()
    }

    fn consumer(&self, name: &str, own: &Layer) -> Result<Consumer, Error> {
        let all = &self.inbox.all;
        let default = "defaults fill what nobody sets";
        let consumer = Consumer {
            name: name.to_owned(),
            handler: own.handler.clone().or_else(|| all.handler.clone()),
            stream: own
                .stream
                .clone()
                .or_else(|| all.stream.clone())
                .unwrap_or_else(|| self.stream.name.clone()),
            subjects: own.subjects.clone().or_else(|| all.subjects.clone()).unwrap_or_default(),
            concurrency: own.concurrency.or(all.concurrency).expect(default),
            lease: own.lease.or(all.lease).expect(default),
            ack_wait: own.ack_wait.or(all.ack_wait).expect(default),
            max_attempts: own.max_attempts.or(all.max_attempts).expect(default),
            backoff: Backoff {
                first: own.backoff_first.or(all.backoff_first).expect(default),
                max: own.backoff_max.or(all.backoff_max).expect(default),
            },
            timeout: own.timeout.or(all.timeout).expect(default),
            secrets: own
                .secrets
                .iter()
                .chain(own.secrets.is_none().then_some(all.secrets.as_ref()).flatten())
                .flatten()
                .map(|it| it.parse().expect("checked when it was set"))
                .collect(),
            ca: own.ca.clone().or_else(|| all.ca.clone()),
            identity: self.identity(name, own)?,
        };
        if consumer.timeout >= consumer.lease {
            let origin = self.origin(name, "timeout").or_else(|| self.origin(name, "lease"));
            let problem = format!(
                "consumer {name}: a timeout of {:?} does not fit into a lease of {:?}",
                consumer.timeout, consumer.lease
            );
            return Err(Error::about(origin, problem)
                .with_hint(Some("raise inbox.lease, or lower inbox.timeout".into())));
        }
        Ok(consumer)
    }

    fn identity(&self, name: &str, own: &Layer) -> Result<Option<(PathBuf, PathBuf)>, Error> {
        let all = &self.inbox.all;
        let pair = if own.cert.is_some() || own.key.is_some() { own } else { all };
        match (&pair.cert, &pair.key) {
            (Some(cert), Some(key)) => Ok(Some((cert.clone(), key.clone()))),
            (None, None) => Ok(None),
            _ => {
                let origin = self.origin(name, "cert").or_else(|| self.origin(name, "key"));
                Err(Error::about(origin, "inbox.cert and inbox.key go together"))
            }
        }
    }

    /// Where a consumer's setting came from.
    pub(crate) fn origin(&self, consumer: &str, key: &str) -> Option<Origin> {
        let own = self.origins.get(format!("{SECTION}.{consumer}.{key}").as_str());
        own.or_else(|| self.origins.get(format!("{SECTION}.{key}").as_str())).cloned()
    }

    /// Takes the section `[inbox]` with its tables.
    pub(super) fn apply_inbox(
        &mut self,
        table: &DeTable<'_>,
        at: &impl Fn(usize) -> Origin,
    ) -> Result<(), Error> {
        for (name, value) in table {
            let origin = at(name.span().start);
            let DeValue::Table(consumer) = value.get_ref() else {
                self.set_inbox(None, name.get_ref(), Value::Toml(value.get_ref()), origin)?;
                continue;
            };
            self.add_consumer(name.get_ref(), &origin)?;
            for (key, value) in consumer {
                let (value, origin) = (Value::Toml(value.get_ref()), at(key.span().start));
                self.set_inbox(Some(name.get_ref()), key.get_ref(), value, origin)?;
            }
        }
        Ok(())
    }

    /// Takes `TAILPOST_INBOX__LEASE` and `TAILPOST_INBOX__BILLING__LEASE`. Whether `name` is one of
    /// them; only consumers that are known already have variables.
    pub(super) fn apply_inbox_variable(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        let Some((consumer, key)) = self.inbox_variables().remove(name) else { return Ok(false) };
        let origin = Origin::Variable(name.to_owned());
        self.set_inbox(consumer.as_deref(), key, Value::Text(value), origin)?;
        Ok(true)
    }

    /// Each variable with its consumer and key.
    pub(super) fn inbox_variables(&self) -> BTreeMap<String, (Option<String>, &'static str)> {
        let shape = |name: &str| name.to_uppercase().replace('-', "_");
        let all = KEYS.iter().map(|it| (format!("{PREFIX}{}", shape(it.name)), (None, it.name)));
        let own = self.inbox.consumers.keys().flat_map(|consumer| {
            KEYS.iter().filter(|it| !it.shared).map(move |it| {
                let variable = format!("{PREFIX}{}__{}", shape(consumer), shape(it.name));
                (variable, (Some(consumer.clone()), it.name))
            })
        });
        all.chain(own).collect()
    }

    /// Takes `--consumer` and `--handler`: only that consumer is left.
    pub(super) fn apply_inbox_flags(
        &mut self,
        name: &str,
        handler: Option<&str>,
    ) -> Result<(), Error> {
        self.inbox.consumers.retain(|it, _| it == name);
        match handler {
            Some(url) => {
                self.set_inbox(Some(name), "handler", Value::Text(url), Origin::Flag("--handler"))
            }
            None => Ok(()),
        }
    }

    /// Makes a consumer known.
    pub(super) fn add_consumer(&mut self, name: &str, origin: &Origin) -> Result<(), Error> {
        let fit = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'_';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(fit) {
            let problem = format!("`{name}` cannot be a consumer's name");
            let hint = format!("up to {NAME_BYTES_MAX} letters, digits, - and _");
            return Err(Error::new(origin.clone(), problem).with_hint(Some(hint)));
        }
        self.inbox.consumers.entry(name.to_owned()).or_default();
        Ok(())
    }

    fn set_inbox(
        &mut self,
        consumer: Option<&str>,
        name: &str,
        value: Value<'_>,
        origin: Origin,
    ) -> Result<(), Error> {
        let section = consumer.map_or_else(|| SECTION.into(), |it| format!("{SECTION}.{it}"));
        let path = format!("{section}.{name}");
        if let Some(gone) = Error::removed(origin.clone(), &format!("{SECTION}.{name}"), &value) {
            return Err(gone);
        }
        let Some(key) = KEYS.iter().find(|it| it.name == name) else {
            let hint = closest(name, KEYS.iter().map(|it| it.name));
            return Err(Error::new(origin, format!("unknown key `{path}`"))
                .with_hint(hint.map(|it| format!("did you mean `{section}.{it}`?"))));
        };
        if key.shared && consumer.is_some() {
            let problem = format!("`{path}`: consumers share their tables");
            let hint = format!("set `{SECTION}.{name}` in [{SECTION}]");
            return Err(Error::new(origin, problem).with_hint(Some(hint)));
        }
        let layer = match consumer {
            Some(consumer) => self.inbox.consumers.entry(consumer.to_owned()).or_default(),
            None => &mut self.inbox.all,
        };
        (key.set)(layer, value)
            .map_err(|wanted| Error::new(origin.clone(), format!("`{path}` must be {wanted}")))?;
        self.given.note(&path, value);
        self.origins.insert(path, origin);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
