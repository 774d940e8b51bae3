//! `[inbox]`, which holds for every consumer, and `[inbox.NAME]`, which is one.

use std::path::PathBuf;
use std::time::Duration;

use inbox::Backoff;
use inbox::http::Secret;
use serde_json::Value as Json;

use super::Settings;
use super::error::{Error, Origin, closest};
use super::given::Given;
use super::reference::{INBOX, SHARED, of_inbox, path_of};
use super::sections::ConsumerSettings;

/// Consumers are named by durables, headers, metrics and variables.
const NAME_BYTES_MAX: usize = 64;

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
        Ok(Consumer {
            name: name.to_owned(),
            handler: settings.handler,
            stream: settings.stream.unwrap_or_else(|| self.stream.name.clone()),
            subjects: settings.subjects.unwrap_or_default(),
            concurrency: settings.concurrency.get(),
            lease,
            ack_wait: settings.ack_wait.0,
            max_attempts: settings.max_attempts.0,
            backoff: Backoff { first: settings.backoff_first.0, max: settings.backoff_max.0 },
            timeout,
            secrets: settings.secrets.into_iter().flatten().map(|it| it.0).collect(),
            ca: settings.ca,
            identity: settings.cert.zip(settings.key),
        })
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

    pub(super) fn set_of_consumer(
        &mut self,
        consumer: &str,
        name: &str,
        value: Json,
        origin: Origin,
    ) -> Result<(), Error> {
        let (own, of_all) = (path_of(Some(consumer), name), path_of(None, name));
        if let Some(gone) = Error::removed(&origin, &of_all, value.as_str()) {
            return Err(gone);
        }
        if !of_inbox().any(|it| it == name) {
            let hint = closest(name, of_inbox());
            return Err(Error::new(origin, format!("unknown key `{own}`"))
                .with_hint(hint.map(|it| format!("did you mean `{INBOX}.{consumer}.{it}`?"))));
        }
        if of_all == SHARED {
            let problem = format!("`{own}`: consumers share their tables");
            let hint = format!("set `{of_all}` in [{INBOX}]");
            return Err(Error::new(origin, problem).with_hint(Some(hint)));
        }
        self.set(&own, value, origin);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
