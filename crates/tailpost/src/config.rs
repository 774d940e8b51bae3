//! Settings: defaults, then `tailpost.toml`, then the environment, then flags.
//!
//! One table, [`keys::KEYS`], knows every setting. All layers go through it, so each setting can be
//! given in each layer, and a mistake in any of them is reported with its place.

mod admin_settings;
mod environment;
mod error;
mod inbox_settings;
mod keys;
mod layers;
mod routes;
mod shown;
mod telemetry_settings;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use relay::{
    Config, MarkConfig, Mode, OnPark, PollConfig, RetentionConfig, ScanConfig, Shards,
    StreamConfig, WalConfig, WindowLimits,
};
use servers::{NatsAccess, NatsTarget, PostgresTarget, PostgresTls, SecretCommand, SecretSource};

pub(crate) use admin_settings::{AdminSettings, ProxySettings, Role, TokenFile};
pub(crate) use error::{Error, Origin};
pub(crate) use inbox_settings::Consumer;
pub(crate) use layers::Sources;
pub(crate) use shown::Setting;
pub(crate) use telemetry_settings::TelemetrySettings;

/// Parses a duration as the configuration writes them, or says what is wanted.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, std::borrow::Cow<'static, str>> {
    value::Value::Text(text).duration()
}

/// The effective settings. Holds secrets: not `Debug`, never printed.
#[derive(Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) postgres: PostgresSettings,
    pub(crate) nats: NatsSettings,
    pub(crate) stream: StreamConfig,
    pub(crate) relay: RelaySettings,
    pub(crate) retention: RetentionConfig,
    pub(crate) rewind: relay::RewindConfig,
    inbox: inbox_settings::InboxSettings,
    pub(crate) routes: Vec<relay::Route>,
    pub(crate) admin: AdminSettings,
    pub(crate) metrics: MetricsSettings,
    pub(crate) log: LogSettings,
    pub(crate) telemetry: TelemetrySettings,
    // Where each setting that is not a default came from.
    origins: BTreeMap<String, Origin>,
    // What it was.
    given: shown::Given,
    // From what they were read.
    sources: Again,
}

/// What can be read again.
#[derive(Clone, Default)]
struct Again(Option<Arc<Sources>>);

/// Settings are the same wherever they come from.
impl PartialEq for Again {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[derive(Clone, PartialEq)]
pub(crate) struct PostgresSettings {
    pub(crate) url: Option<String>,
    /// Where the password is, instead of in the URL; one of the two.
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) password_command: Option<SecretCommand>,
    pub(crate) table: outbox::Table,
    /// What the table's columns are called.
    pub(crate) columns: outbox::Columns,
    pub(crate) slot: String,
    pub(crate) publication: String,
    pub(crate) tls: PostgresTls,
}

#[derive(Clone, PartialEq)]
pub(crate) struct NatsSettings {
    pub(crate) url: String,
    pub(crate) access: NatsAccess,
}

#[derive(Clone, PartialEq)]
pub(crate) struct RelaySettings {
    pub(crate) mode: Mode,
    pub(crate) subject: outbox::wire::SubjectTemplate,
    pub(crate) window: WindowLimits,
    pub(crate) ack_timeout: Duration,
    pub(crate) on_park: OnPark,
    pub(crate) max_attempts: u32,
    pub(crate) scan: ScanConfig,
    pub(crate) poll: PollConfig,
    pub(crate) mark: MarkConfig,
    pub(crate) wal: WalConfig,
    pub(crate) shards: u32,
}

#[derive(Clone, PartialEq)]
pub(crate) struct MetricsSettings {
    /// The label `env` of every metric.
    pub(crate) environment: String,
    /// How often the servers are asked for what only they know.
    pub(crate) interval: Duration,
}

#[derive(Clone, PartialEq)]
pub(crate) struct LogSettings {
    pub(crate) format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            postgres: PostgresSettings {
                url: None,
                password_file: None,
                password_command: None,
                table: outbox::Table::default(),
                columns: outbox::Columns::default(),
                slot: "tailpost".into(),
                publication: "tailpost".into(),
                tls: PostgresTls::default(),
            },
            nats: NatsSettings {
                url: "nats://localhost:4222".into(),
                access: NatsAccess::default(),
            },
            stream: StreamConfig::default(),
            relay: RelaySettings {
                mode: Mode::default(),
                subject: "outbox.{aggregate_type}.{event_type}"
                    .parse()
                    .expect("the default template is valid"),
                window: WindowLimits::default(),
                ack_timeout: Config::ACK_TIMEOUT,
                on_park: OnPark::default(),
                max_attempts: Config::MAX_ATTEMPTS,
                scan: ScanConfig::default(),
                poll: PollConfig::default(),
                mark: MarkConfig::default(),
                wal: WalConfig::default(),
                shards: Shards::default().count(),
            },
            retention: RetentionConfig::default(),
            rewind: relay::RewindConfig::default(),
            inbox: inbox_settings::InboxSettings::default(),
            routes: Vec::new(),
            admin: AdminSettings::default(),
            metrics: MetricsSettings {
                environment: "default".into(),
                interval: Duration::from_secs(15),
            },
            log: LogSettings { format: LogFormat::Text },
            telemetry: TelemetrySettings::default(),
            origins: BTreeMap::new(),
            given: shown::Given::default(),
            sources: Again::default(),
        }
    }
}

impl Settings {
    /// Reads all layers.
    pub(crate) fn load(sources: &Sources) -> Result<Self, Error> {
        let mut settings = Self::default();
        layers::apply(&mut settings, sources)?;
        settings.check_admin()?;
        settings.sources = Again(Some(Arc::new(sources.clone())));
        Ok(settings)
    }

    /// What the relay would need to know, if need be without a database: enough to show a plan.
    pub(crate) fn plan_config(&self) -> Result<Config, Error> {
        let mut settings = self.clone();
        settings.postgres.url.get_or_insert_with(|| "postgres://localhost".into());
        settings.relay_config()
    }

    /// The database.
    pub(crate) fn postgres_target(&self) -> Result<PostgresTarget, Error> {
        let url = self.postgres.url.as_deref().ok_or_else(Error::no_database)?;
        let target = PostgresTarget::new(url, self.postgres.tls.clone());
        let target = target.map_err(|source| self.blame("postgres.url", source))?;
        match self.password()? {
            Some(source) => target.with_password(source).map_err(|it| self.blame("", it)),
            None => Ok(target),
        }
    }

    /// Where the database's password is, unless it is in the URL.
    fn password(&self) -> Result<Option<SecretSource>, Error> {
        let PostgresSettings { password_file: file, password_command: command, .. } =
            &self.postgres;
        match (file.clone(), command.clone()) {
            (Some(_), Some(_)) => Err(Error::about(
                self.origins.get("postgres.password_command").cloned(),
                "postgres.password_command: postgres.password_file is set too, give one of them",
            )),
            (Some(file), None) => Ok(Some(SecretSource::File(file))),
            (None, Some(command)) => Ok(Some(SecretSource::Command(command))),
            (None, None) => Ok(None),
        }
    }

    /// The broker.
    pub(crate) fn nats_target(&self) -> Result<NatsTarget, Error> {
        let target = self.nats_target_now()?;
        let from_file = |key: &str| matches!(self.origins.get(key), Some(Origin::File(..)));
        let is_readable = ["nats.url", "nats.token", "nats.user", "nats.password"];
        match &self.sources {
            Again(Some(sources)) if is_readable.into_iter().any(from_file) => {
                let sources = Arc::clone(sources);
                Ok(target.reread_by(move || Ok(Self::load(&sources)?.nats_target_now()?)))
            }
            _ => Ok(target),
        }
    }

    fn nats_target_now(&self) -> Result<NatsTarget, Error> {
        NatsTarget::new(&self.nats.url, self.nats.access.clone())
            .map_err(|source| self.blame("nats.url", source))
    }

    /// What the relay needs to know.
    pub(crate) fn relay_config(&self) -> Result<Config, Error> {
        let config = Config {
            postgres: self.postgres_target()?,
            nats: self.nats_target()?,
            table: self.table()?,
            slot: self.postgres.slot.clone(),
            publication: self.postgres.publication.clone(),
            stream: self.stream.clone(),
            subject: self.relay.subject.clone(),
            routes: self.routes.clone(),
            mode: self.relay.mode,
            window: self.relay.window,
            scan: self.relay.scan,
            poll: self.relay.poll,
            mark: self.relay.mark,
            wal: self.relay.wal,
            ack_timeout: self.relay.ack_timeout,
            on_park: self.relay.on_park,
            retention: self.retention,
            rewind: self.rewind,
            max_attempts: self.relay.max_attempts,
            shards: Shards::new(self.relay.shards),
        };
        config.validate().map_err(|source| self.blame("", source))?;
        Ok(config)
    }

    /// The outbox, which may or may not exist; the inbox is in its schema.
    pub(crate) fn table(&self) -> Result<outbox::Table, Error> {
        let Self { postgres: PostgresSettings { table, columns, .. }, origins, .. } = self;
        table.clone().with_columns(columns.clone()).map_err(|error| {
            let origin = origins.iter().find(|(path, _)| path.starts_with("outbox.columns."));
            Error::about(origin.map(|(_, origin)| origin.clone()), error.to_string())
        })
    }

    /// Adds where the setting came from to an error that names one.
    fn blame(&self, fallback: &str, source: servers::Error) -> Error {
        let origin = match &source {
            servers::Error::Invalid { setting, .. } => self.origins.get(*setting),
            _ => None,
        };
        let origin = origin.or_else(|| self.origins.get(fallback)).cloned();
        Error::refused(origin, source)
    }

    fn check_admin(&self) -> Result<(), Error> {
        let AdminSettings { listen, inbox_listen, .. } = &self.admin;
        for (key, listen) in [("admin.listen", listen), ("admin.inbox_listen", inbox_listen)] {
            if let Some(listen) = listen
                && !listen.ip().is_loopback()
                && !self.admin.is_closed()
            {
                return Err(Error::open_admin(self.origins.get(key).cloned(), key, *listen));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod reference_page;
#[cfg(test)]
pub(crate) mod tests;
