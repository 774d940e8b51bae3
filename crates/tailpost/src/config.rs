//! Settings: defaults, then `tailpost.toml`, then the environment, then flags.
//!
//! All layers are laid over each other first ([`given`]), then serde reads each key into the type
//! that its line in [`sections`] has. So each setting can be given in each layer, and a mistake in
//! any of them is reported with its place.

mod admin_settings;
mod environment;
mod error;
mod forms;
mod given;
mod inbox_settings;
mod layers;
mod reference;
mod routes;
mod sections;
mod shown;
mod telemetry_settings;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use outbox::wire::CloudEvents;
use relay::{
    Config, MarkConfig, PollConfig, RetentionConfig, RewindConfig, ScanConfig, Shards,
    StreamConfig, WalConfig, WindowLimits,
};
use serde::Deserialize;
use servers::{NatsAccess, NatsTarget, PostgresTarget, PostgresTls, SecretSource};

use self::sections::PostgresSettings;

pub(crate) use admin_settings::{AdminSettings, Header, Role};
pub(crate) use error::{Error, Origin};
#[cfg(test)]
pub(crate) use forms::{BearerToken, Count};
pub(crate) use forms::{OrOff, authority, parse_duration};
pub(crate) use inbox_settings::Consumer;
pub(crate) use layers::Sources;
pub(crate) use sections::LogFormat;
pub(crate) use shown::Setting;
pub(crate) use telemetry_settings::TelemetrySettings;

/// The effective settings. Holds secrets: not `Debug`, never printed.
#[derive(Clone, Deserialize)]
pub(crate) struct Settings {
    pub(crate) postgres: sections::PostgresSettings,
    outbox: sections::OutboxSettings,
    pub(crate) nats: sections::NatsSettings,
    pub(crate) stream: sections::StreamSettings,
    pub(crate) relay: sections::RelaySettings,
    retention: sections::RetentionSettings,
    rewind: sections::RewindSettings,
    inbox: sections::ConsumerSettings,
    pub(crate) admin: AdminSettings,
    #[serde(default)]
    pub(crate) console: sections::ConsoleSettings,
    pub(crate) metrics: sections::MetricsSettings,
    pub(crate) log: sections::LogSettings,
    pub(crate) telemetry: TelemetrySettings,
    #[serde(skip)]
    routes: Vec<relay::Route>,
    #[serde(skip)]
    consumers: BTreeMap<String, sections::ConsumerSettings>,
    #[serde(skip)]
    columns: outbox::Columns,
    // Of what they were made.
    #[serde(skip)]
    given: given::Given,
    // From where that can be read again.
    #[serde(skip)]
    sources: Option<Arc<Sources>>,
}

impl Default for Settings {
    fn default() -> Self {
        given::Given::new().settings().expect("a test reads the reference")
    }
}

impl Settings {
    /// Reads all layers.
    pub(crate) fn load(sources: &Sources) -> Result<Self, Error> {
        let given = layers::read(sources)?;
        let mut settings = given.settings()?;
        settings.routes = routes::read(&given)?;
        for name in &given.consumers {
            settings.consumers.insert(name.clone(), given.consumer(name)?);
        }
        // After all of them are checked.
        if let Some(only) = &sources.consumer {
            settings.consumers.retain(|name, _| name == only);
        }
        let endpoint = given.origin("telemetry.otlp_endpoint");
        settings.telemetry.is_exact = environment::is_exact(endpoint.as_ref());
        settings.telemetry.unusable = given.unusable;
        settings.given = given;
        settings.columns = settings.columns()?;
        settings.check_admin()?;
        settings.sources = Some(Arc::new(sources.clone()));
        Ok(settings)
    }

    fn columns(&self) -> Result<outbox::Columns, Error> {
        let mut columns = outbox::Columns::default();
        for column in outbox::Column::ALL {
            let documented = column.documented_name();
            let Some(name) = self.outbox.columns.get(documented) else { continue };
            columns.rename(column, name).map_err(|error| {
                let path = format!("outbox.columns.{documented}");
                let problem = format!("`{path}` must be the name of a column: {error}");
                Error::about(self.given.origin(&path), problem)
            })?;
        }
        Ok(columns)
    }

    /// What the relay would need to know, if need be without a database: enough to show a plan.
    pub(crate) fn plan_config(&self) -> Result<Config, Error> {
        let mut settings = self.clone();
        settings.postgres.url.get_or_insert_with(|| "postgres://localhost".into());
        settings.relay_config()
    }

    /// The database.
    pub(crate) fn postgres_target(&self) -> Result<PostgresTarget, Error> {
        let none = || {
            let hint = "give --database-url postgres://user@host/dbname, set DATABASE_URL, or set \
                        postgres.url in tailpost.toml";
            Error::about(None, "no database is configured").with_hint(Some(hint.into()))
        };
        let url = self.postgres.url.as_deref().ok_or_else(none)?;
        let PostgresSettings { sslmode, sslrootcert, sslcert, sslkey, .. } = self.postgres.clone();
        let sslmode = sslmode.map(|it| it.0);
        let target =
            PostgresTarget::new(url, PostgresTls { sslmode, sslrootcert, sslcert, sslkey });
        let target = target.map_err(|source| self.blame("postgres.url", source))?;
        match self.password()? {
            Some(source) => target.with_password(source).map_err(|it| self.blame("", it)),
            None => Ok(target),
        }
    }

    /// A connection that tells the database the command's name.
    pub(crate) async fn connection(&self, name: &str) -> anyhow::Result<inbox::Connection> {
        let (client, task) = self.postgres_target()?.connect(name).await?;
        Ok(inbox::Connection::with_guard(client, task))
    }

    /// Where the database's password is, unless it is in the URL.
    fn password(&self) -> Result<Option<SecretSource>, Error> {
        let PostgresSettings { password_file: file, password_command: command, .. } =
            &self.postgres;
        match (file.clone(), command.clone()) {
            (Some(_), Some(_)) => Err(Error::about(
                self.given.origin("postgres.password_command"),
                "postgres.password_command: postgres.password_file is set too, give one of them",
            )),
            (Some(file), None) => Ok(Some(SecretSource::File(file))),
            (None, Some(command)) => Ok(Some(SecretSource::Command(command.0))),
            (None, None) => Ok(None),
        }
    }

    /// The broker.
    pub(crate) fn nats_target(&self) -> Result<NatsTarget, Error> {
        let target = self.nats_target_now()?;
        let from_file = |key: &str| matches!(self.given.origin(key), Some(Origin::File(..)));
        let is_readable = ["nats.url", "nats.token", "nats.user", "nats.password"];
        match &self.sources {
            Some(sources) if is_readable.into_iter().any(from_file) => {
                let sources = Arc::clone(sources);
                Ok(target.reread_by(move || Ok(Self::load(&sources)?.nats_target_now()?)))
            }
            _ => Ok(target),
        }
    }

    fn nats_target_now(&self) -> Result<NatsTarget, Error> {
        let nats = self.nats.clone();
        let access = NatsAccess {
            creds: nats.creds,
            nkey: nats.nkey.map(|it| it.0),
            token: nats.token.map(|it| it.0),
            token_file: nats.token_file,
            user: nats.user,
            password: nats.password.map(|it| it.0),
            password_file: nats.password_file,
            ca: nats.ca,
            cert: nats.cert,
            key: nats.key,
            tls_first: nats.tls_first,
            api_prefix: nats.api_prefix,
            inbox_prefix: nats.inbox_prefix,
        };
        NatsTarget::new(&nats.url, access).map_err(|source| self.blame("nats.url", source))
    }

    /// How long what is done with is kept.
    pub(crate) fn retention(&self) -> RetentionConfig {
        let it = &self.retention;
        RetentionConfig {
            published: it.published.map(|it| it.0),
            dead_letters: it.dead_letters.map(|it| it.0),
            audit: it.audit.map(|it| it.0),
            replays: it.replays.map(|it| it.0),
            interval: it.interval.0,
        }
    }

    /// How events become CloudEvents, if that is set.
    pub(crate) fn cloudevents(&self) -> Option<CloudEvents> {
        self.relay.cloudevents.clone().map(|it| it.0)
    }

    fn stream_config(&self) -> StreamConfig {
        let it = &self.stream;
        StreamConfig {
            name: it.name.clone(),
            subjects: it.subjects.clone(),
            replicas: it.replicas.get(),
            duplicate_window: it.duplicate_window.0,
            max_age: it.max_age.map(|it| it.0),
            max_bytes: it.max_bytes.map(|it| it.0),
        }
    }

    /// What the relay needs to know.
    pub(crate) fn relay_config(&self) -> Result<Config, Error> {
        let it = &self.relay;
        // Of 4 GiB at most, which fits.
        let bytes = usize::try_from(it.window_bytes.0).unwrap_or(usize::MAX);
        let config = Config {
            postgres: self.postgres_target()?,
            nats: self.nats_target()?,
            table: self.table()?,
            slot: self.postgres.slot.clone(),
            publication: self.postgres.publication.clone(),
            stream: self.stream_config(),
            subject: it.subject.0.clone(),
            partitions: NonZeroU32::new(it.partitions.0).unwrap_or(NonZeroU32::MIN),
            routes: self.routes.clone(),
            cloudevents: self.cloudevents(),
            mode: it.mode.0,
            window: WindowLimits { events: it.window_events.get(), bytes },
            scan: ScanConfig { interval: it.scan_interval.0, batch: it.scan_batch.get() },
            poll: PollConfig {
                interval: it.poll_interval.0,
                batch: it.poll_batch.get(),
                workers: it.poll_workers.get(),
            },
            mark: MarkConfig {
                by: it.mark.0,
                batch: it.mark_batch.get(),
                interval: it.mark_interval.0,
            },
            wal: WalConfig { limit: it.wal_limit.map(|it| it.0), messages: it.wal_messages },
            ack_timeout: it.ack_timeout.0,
            on_park: it.on_park.0,
            retention: self.retention(),
            rewind: RewindConfig {
                retain: self.rewind.retain.map(|it| it.0),
                max_age: self.rewind.max_age.0,
            },
            max_attempts: it.max_attempts.0,
            shards: Shards::new(it.shards.0),
        };
        config.validate().map_err(|source| self.blame("", source))?;
        Ok(config)
    }

    /// The outbox, which may or may not exist; the inbox is in its schema.
    pub(crate) fn table(&self) -> Result<outbox::Table, Error> {
        let table = self.postgres.table.0.clone().with_columns(self.columns.clone());
        table.map_err(|error| {
            Error::about(self.given.origin_below("outbox.columns."), error.to_string())
        })
    }

    /// Adds where the setting came from to an error that names one.
    fn blame(&self, fallback: &str, source: servers::Error) -> Error {
        let origin = match &source {
            servers::Error::Invalid { setting, .. } => self.given.origin(setting),
            _ => None,
        };
        let origin = origin.or_else(|| self.given.origin(fallback));
        Error::about(origin, source.to_string()).with_hint(source.hint())
    }

    fn check_admin(&self) -> Result<(), Error> {
        let AdminSettings { listen, inbox_listen, .. } = &self.admin;
        for (key, listen) in [("admin.listen", listen), ("admin.inbox_listen", inbox_listen)] {
            if let Some(listen) = listen.0
                && !listen.ip().is_loopback()
                && !self.admin.is_closed()
            {
                return Err(Error::open_admin(self.given.origin(key), key, listen));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
