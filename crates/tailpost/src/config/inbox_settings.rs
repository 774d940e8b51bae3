//! `[inbox]`, which holds for every consumer, and `[inbox.NAME]`, which is one.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::wire::SubjectTemplate;
use relay::Destination;

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
        let all = self.consumers.iter().map(|(name, it)| self.consumer(name, it.clone()));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        self.check_durables(&all)?;
        Ok(all)
    }

    /// Two consumers that share a durable consumer would take each other's events away.
    fn check_durables(&self, all: &[Consumer]) -> Result<(), Error> {
        let mut found = BTreeMap::new();
        for Consumer { name, stream, settings } in all {
            let partitions = settings.partitions.map(|it| 0..it.0);
            let divided = partitions.map(|it| it.map(|it| format!("{name}-{it}")).collect());
            for durable in divided.unwrap_or_else(|| vec![name.clone()]) {
                let problem = |other: &str| {
                    format!(
                        "consumers {other} and {name} would share the durable consumer {durable} \
                         of stream {stream}"
                    )
                };
                if let Some(other) = found.insert((stream, durable.clone()), name) {
                    let about = self.origin(other, "partitions");
                    let about = about.or_else(|| self.origin(name, "partitions"));
                    return Err(Error::about(about, problem(other))
                        .with_hint(Some("give one of them another name".into())));
                }
            }
        }
        Ok(())
    }

    /// For how long records are kept; for ever if there is no limit.
    pub(crate) fn inbox_retention(&self) -> Option<Duration> {
        self.inbox.retention.map(|it| it.0)
    }

    fn consumer(&self, name: &str, mut settings: ConsumerSettings) -> Result<Consumer, Error> {
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
        if let Some(partitions) = settings.partitions {
            let subjects = settings.subjects.get_or_insert_with(|| self.relay_subjects());
            self.check_partitions((name, &stream), partitions.0, subjects)?;
        }
        Ok(Consumer { name: name.to_owned(), stream, settings })
    }

    /// What the relay's subjects look like.
    fn relay_subjects(&self) -> Vec<String> {
        let routed = self.routes.iter().filter_map(|it| match &it.destination {
            Destination::Subject(template) => Some(template),
            Destination::Drop => None,
        });
        routed.chain([&self.relay.subject.0]).map(SubjectTemplate::partition_pattern).collect()
    }

    fn check_partitions(
        &self,
        (name, stream): (&str, &str),
        partitions: u32,
        subjects: &[String],
    ) -> Result<(), Error> {
        // What divides another stream is not known here.
        let of_relay = if stream == self.stream.name { self.relay.partitions.0 } else { 1 };
        let refused = |problem: String, hint: String| {
            let about = Error::about(self.origin(name, "partitions"), problem);
            Err(about.with_hint(Some(hint)))
        };
        if of_relay > 1 && of_relay != partitions {
            let problem = format!(
                "inbox.{name}.partitions = {partitions}, and relay.partitions = {of_relay}"
            );
            return refused(problem, format!("set inbox.{name}.partitions = {of_relay}"));
        }
        match subjects.iter().find(|it| !it.contains("{partition}")) {
            None => Ok(()),
            Some(subject) => refused(
                format!("inbox.{name}.partitions needs {{partition}} in \"{subject}\""),
                format!("put it into relay.subject, or into inbox.{name}.subjects"),
            ),
        }
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
