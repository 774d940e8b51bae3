//! `[inbox]`, which holds for every consumer, and `[inbox.NAME]`, which is one.

use std::time::Duration;

use super::Settings;
use super::error::{Error, Origin};
use super::given::Given;
use super::reference::path_of;
use super::sections::ConsumerSettings;

/// Consumers are named by durables, headers, metrics and variables.
const NAME_BYTES_MAX: usize = 64;

/// One consumer. Holds secrets: not `Debug`.
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) stream: String,
    /// Its timeout is less than its lease, and it has a certificate and a key or neither.
    pub(crate) settings: ConsumerSettings,
}

impl Settings {
    /// The consumers of the configuration, by name.
    pub(crate) fn consumers(&self) -> Result<Vec<Consumer>, Error> {
        self.consumers.iter().map(|(name, it)| self.consumer(name, it.clone())).collect()
    }

    /// For how long records are kept; for ever if there is no limit.
    pub(crate) fn inbox_retention(&self) -> Option<Duration> {
        self.inbox.retention.map(|it| it.0)
    }

    fn consumer(&self, name: &str, settings: ConsumerSettings) -> Result<Consumer, Error> {
        let (lease, timeout) = (settings.lease.0, settings.timeout.0);
        let origin = |one, other| self.origin(name, one).or_else(|| self.origin(name, other));
        if timeout >= lease {
            let problem = format!(
                "consumer {name}: a timeout of {timeout:?} does not fit into a lease of {lease:?}"
            );
            return Err(Error::about(origin("timeout", "lease"), problem)
                .with_hint(Some("raise inbox.lease, or lower inbox.timeout".into())));
        }
        if settings.cert.is_some() != settings.key.is_some() {
            let problem = "inbox.cert and inbox.key go together";
            return Err(Error::about(origin("cert", "key"), problem));
        }
        let stream = settings.stream.clone().unwrap_or_else(|| self.stream.name.clone());
        Ok(Consumer { name: name.to_owned(), stream, settings })
    }

    /// Where a consumer's setting came from.
    pub(crate) fn origin(&self, consumer: &str, key: &str) -> Option<Origin> {
        self.given.origin(&path_of(Some(consumer), key))
    }
}

impl Given {
    /// Makes a consumer known.
    pub(super) fn add_consumer(&mut self, name: &str, origin: &Origin) -> Result<(), Error> {
        let fit = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'_';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(fit) {
            let problem = format!("`{name}` cannot be a consumer's name");
            let hint = format!("up to {NAME_BYTES_MAX} letters, digits, - and _");
            return Err(Error::new(origin.clone(), problem).with_hint(Some(hint)));
        }
        self.consumers.insert(name.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
