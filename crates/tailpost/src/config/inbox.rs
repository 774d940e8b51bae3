//! `[inbox]`, which holds for every consumer, and `[inbox.NAME]`, which is one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ::inbox::Layout;
use ::inbox::http::Secret;
use toml::de::{DeTable, DeValue};

use super::Settings;
use super::error::{Error, Origin, closest};
use super::value::{Value, Wanted};

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

/// What was said for one consumer, or for all of them.
#[derive(Clone, Default, PartialEq)]
struct Layer {
    handler: Option<String>,
    stream: Option<String>,
    subjects: Option<Vec<String>>,
    concurrency: Option<usize>,
    lease: Option<Duration>,
    max_attempts: Option<u32>,
    timeout: Option<Duration>,
    secrets: Option<Vec<String>>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    layout: Option<Layout>,
    /// `Some(None)` if that is what was said.
    retention: Option<Option<Duration>>,
    dead_letter_retention: Option<Option<Duration>>,
}

/// A setting of a consumer.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Whether it is about the tables, which the consumers share.
    shared: bool,
    set: fn(&mut Layer, Value<'_>) -> Result<(), Wanted>,
}

/// All of them, in the order of `docker/tailpost.toml`.
pub(super) static KEYS: &[Key] = &[
    key("handler", |it, v| put(&mut it.handler, v.text().map(str::to_owned))),
    key("stream", |it, v| put(&mut it.stream, v.text().map(str::to_owned))),
    key("subjects", |it, v| put(&mut it.subjects, v.list())),
    key("concurrency", |it, v| put(&mut it.concurrency, at_least_one(v))),
    key("lease", |it, v| put(&mut it.lease, v.duration())),
    key("max_attempts", |it, v| put(&mut it.max_attempts, attempts(v))),
    key("timeout", |it, v| put(&mut it.timeout, v.duration())),
    key("secrets", |it, v| put(&mut it.secrets, secrets(v))),
    key("ca", |it, v| put(&mut it.ca, v.text().map(Into::into))),
    key("cert", |it, v| put(&mut it.cert, v.text().map(Into::into))),
    key("key", |it, v| put(&mut it.key, v.text().map(Into::into))),
    key("dead_letter_retention", |it, v| {
        put(&mut it.dead_letter_retention, v.unless_off(Value::duration))
    }),
    shared("layout", |it, v| put(&mut it.layout, layout(v))),
    shared("retention", |it, v| put(&mut it.retention, v.unless_off(Value::duration))),
];

const fn key(name: &'static str, set: fn(&mut Layer, Value<'_>) -> Result<(), Wanted>) -> Key {
    Key { name, shared: false, set }
}

const fn shared(name: &'static str, set: fn(&mut Layer, Value<'_>) -> Result<(), Wanted>) -> Key {
    Key { name, shared: true, set }
}

fn put<T>(place: &mut Option<T>, value: Result<T, Wanted>) -> Result<(), Wanted> {
    *place = Some(value?);
    Ok(())
}

fn at_least_one(value: Value<'_>) -> Result<usize, Wanted> {
    value.integer().ok().filter(|it| *it > 0).ok_or_else(|| "a whole number from 1".into())
}

fn attempts(value: Value<'_>) -> Result<u32, Wanted> {
    u32::try_from(at_least_one(value)?).map_err(|_| "a whole number from 1".into())
}

fn layout(value: Value<'_>) -> Result<Layout, Wanted> {
    match value.text() {
        Ok("partitioned") => Ok(Layout::Partitioned),
        Ok("plain") => Ok(Layout::Plain),
        _ => Err("\"partitioned\" or \"plain\"".into()),
    }
}

fn secrets(value: Value<'_>) -> Result<Vec<String>, Wanted> {
    let secrets = value.list()?;
    match secrets.iter().find_map(|it| it.parse::<Secret>().err()) {
        Some(_) => Err("a list of secrets: whsec_ and 24 to 64 bytes in Base64".into()),
        None => Ok(secrets),
    }
}

impl Default for InboxSettings {
    fn default() -> Self {
        let all = Layer {
            concurrency: Some(16),
            lease: Some(Duration::from_secs(30)),
            max_attempts: Some(5),
            timeout: Some(Duration::from_secs(20)),
            layout: Some(Layout::default()),
            retention: Some(None),
            dead_letter_retention: Some(Some(Duration::from_hours(14 * 24))),
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
    pub(crate) max_attempts: u32,
    /// How long the handler may take to answer. Less than the lease.
    pub(crate) timeout: Duration,
    /// How long dead letters wait for a decision; for ever if there is no limit.
    pub(crate) dead_letter_retention: Option<Duration>,
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

    /// How the tables are made.
    pub(crate) fn inbox_layout(&self) -> Layout {
        self.inbox.all.layout.unwrap_or_default()
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
            max_attempts: own.max_attempts.or(all.max_attempts).expect(default),
            timeout: own.timeout.or(all.timeout).expect(default),
            dead_letter_retention: own
                .dead_letter_retention
                .or(all.dead_letter_retention)
                .expect(default),
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
        self.origins.insert(path, origin);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{loaded, refusal};
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn consumers(toml: &str, environment: &[(&str, &str)]) -> Vec<Consumer> {
        loaded(toml, environment).consumers().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn what_is_said_of_one_consumer_wins_over_what_is_said_of_all() {
        let toml = format!(
            "[stream]\nname = 'EVENTS'\n[inbox]\nlease = '1m'\nsecrets = ['{SECRET}']\n\
             [inbox.billing]\nhandler = 'http://a'\nlease = '2m'\nsubjects = ['outbox.order.>']\n\
             [inbox.mail-out]\nsecrets = []\nstream = 'OTHER'\n"
        );
        let all = consumers(&toml, &[("TAILPOST_INBOX__TIMEOUT", "50s")]);
        let [billing, mail] = all.as_slice() else { panic!("two consumers") };
        assert_eq!((billing.name.as_str(), mail.name.as_str()), ("billing", "mail-out"));
        assert_eq!((billing.lease.as_secs(), mail.lease.as_secs()), (120, 60));
        assert_eq!((billing.stream.as_str(), mail.stream.as_str()), ("EVENTS", "OTHER"));
        assert_eq!((billing.secrets.len(), mail.secrets.len()), (1, 0));
        assert_eq!((billing.timeout.as_secs(), mail.timeout.as_secs()), (50, 50));
        assert_eq!(billing.subjects, ["outbox.order.>"]);
        assert_eq!((billing.handler.as_deref(), mail.handler.as_deref()), (Some("http://a"), None));

        let own = ("TAILPOST_INBOX__MAIL_OUT__HANDLER", "http://b");
        assert_eq!(consumers(&toml, &[own])[1].handler.as_deref(), Some("http://b"));
    }

    #[test]
    fn the_flags_name_one_consumer() {
        let toml =
            "[inbox.a]\nhandler = 'http://a'\n[inbox.b]\nhandler = 'http://b'\nlease = '1m'\n";
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        std::io::Write::write_all(&mut file, toml.as_bytes()).expect("temporary file");
        let sources = |consumer: &str, handler: Option<&str>| super::super::Sources {
            file: Some(file.path().to_owned()),
            consumer: Some(consumer.into()),
            handler: handler.map(str::to_owned),
            ..super::super::Sources::default()
        };
        let load = |consumer: &str, handler| {
            let settings = Settings::load(&sources(consumer, handler));
            let settings = settings.unwrap_or_else(|error| panic!("{error}"));
            let all = settings.consumers().unwrap_or_else(|error| panic!("{error}"));
            let all = all.into_iter();
            all.map(|it| (it.name, it.handler, it.lease.as_secs())).collect::<Vec<_>>()
        };
        assert_eq!(load("b", None), [("b".into(), Some("http://b".into()), 60)]);
        assert_eq!(load("b", Some("http://x")), [("b".into(), Some("http://x".into()), 60)]);
        assert_eq!(load("new", Some("http://x")), [("new".into(), Some("http://x".into()), 30)]);
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        for (toml, error, hint) in [
            (
                "[inbox]\nleese = '1s'\n",
                ":2: unknown key `inbox.leese`",
                "did you mean `inbox.lease`?",
            ),
            (
                "[inbox.a]\nhandlers = 'x'\n",
                ":2: unknown key `inbox.a.handlers`",
                "did you mean `inbox.a.handler`?",
            ),
            (
                "[inbox.a]\nretention = '7d'\n",
                ":2: `inbox.a.retention`: consumers share",
                "[inbox]",
            ),
            ("[inbox.'a.b']\n", ":1: `a.b` cannot be a consumer's name", "letters, digits"),
            (
                "[inbox]\nconcurrency = 0\n",
                ":2: `inbox.concurrency` must be a whole number from 1",
                "",
            ),
            ("[inbox.a]\nsecrets = ['hunter2']\n", ":2: `inbox.a.secrets` must be a list of", ""),
        ] {
            let (told, hinted) = refusal(toml, &[]);
            assert!(told.starts_with(error) && hinted.contains(hint), "{toml}: {told} {hinted}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        let (told, hint) = refusal("[inbox.a]\n", &[("TAILPOST_INBOX__A__HANDLR", "x")]);
        assert!(told.contains("no setting has this variable"), "{told}");
        assert!(hint.contains("TAILPOST_INBOX__A__HANDLER"), "{hint}");
    }

    #[test]
    fn a_handler_that_may_outlast_its_lease_is_refused() {
        for (toml, line) in
            [("[inbox.a]\ntimeout = '30s'\n", 2), ("[inbox]\nlease = '20s'\n[inbox.a]\n", 2)]
        {
            let Err(error) = loaded(toml, &[]).consumers() else { panic!("{toml}") };
            let place = format!(".toml:{line}: consumer a: ");
            assert!(error.to_string().contains(&place), "{error}");
        }
        let Err(error) = loaded("[inbox.a]\ncert = 'x.pem'\n", &[]).consumers() else {
            panic!("a certificate without its key");
        };
        assert!(error.to_string().contains("go together"), "{error}");
    }
}
