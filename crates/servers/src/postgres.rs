//! Connections to PostgreSQL.

mod connection_task;
mod dsn;
mod parsed;
mod password;
mod pool;
mod session_settings;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pgwire_replication::{ReplicationConfig, SslMode as ReplicationSslMode, TlsConfig};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

pub use self::connection_task::ConnectionTask;
use self::dsn::Dsn;
use self::parsed::CONNECT_TIMEOUT;
use self::pool::Pool;
pub use self::pool::{PoolLimits, Session};
pub use self::session_settings::WITHOUT_PRUNING;
use self::session_settings::{HasSessions, Look};
use crate::error::Error;
use crate::secret::SecretSource;
use crate::tls::install_crypto_provider;
use crate::tls::{self, Identity, Verification};

/// Status updates carry the confirmed position; the server must learn it within half a second.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_WAKEUP_INTERVAL: Duration = Duration::from_secs(1);
/// The client counts events, not bytes, and one may be large: these, and one more in the client's
/// hands, wait outside of the window. Client and relay take turns on one thread, so a few suffice.
const BUFFER_EVENTS: usize = 8;

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_APPLICATION_NAME: &str = "tailpost";
const URL_SAFE: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// How a connection is encrypted, after libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SslMode {
    /// Never.
    Disable,
    /// If the server can; not verified.
    #[default]
    Prefer,
    /// Always; verified like [`VerifyCa`](Self::VerifyCa) if root certificates are given.
    Require,
    /// Always, and the certificate's chain is verified. The replication connection compares the
    /// host name too: its client cannot do the one without the other.
    VerifyCa,
    /// Always, and the certificate must be issued for this host.
    VerifyFull,
}

impl FromStr for SslMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            other => Err(Error::invalid(
                "sslmode",
                format!("`{other}` is none of disable, prefer, require, verify-ca, verify-full"),
            )),
        }
    }
}

/// TLS settings given beside the URL. What the URL says wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PostgresTls {
    /// See [`SslMode`].
    pub sslmode: Option<SslMode>,
    /// PEM file of the authorities to trust; none means those of the system. So does `system`, and
    /// asks for `verify-full`.
    pub sslrootcert: Option<PathBuf>,
    /// PEM file of the client certificate. Needs `sslkey`.
    pub sslcert: Option<PathBuf>,
    /// PEM file of the client certificate's key.
    pub sslkey: Option<PathBuf>,
}

/// A PostgreSQL database and how to get in.
///
/// Parsed from a `postgres://` URL or a `key=value` string with libpq's defaults: the user is the
/// one of the process, the database is named like the user, and without a host the local socket is
/// used if there is one. The files in `~/.postgresql` and the `PG*` variables are not consulted.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresTarget {
    // Has user, dbname, and connect_timeout set, and at most one host and one port.
    config: Config,
    sslmode: SslMode,
    roots: Option<PathBuf>,
    identity: Option<Identity>,
    // Instead of one in `config`.
    password: Option<SecretSource>,
    pool: Option<Pool>,
    has_sessions: HasSessions,
}

impl FromStr for PostgresTarget {
    type Err = Error;

    fn from_str(dsn: &str) -> Result<Self, Error> {
        Self::new(dsn, PostgresTls::default())
    }
}

impl PostgresTarget {
    /// Parses a connection string; `tls` says what the string does not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what cannot be parsed or supported. Certificate files are read when
    /// connecting, so that they can be renewed while the relay runs.
    pub fn new(dsn: &str, mut tls: PostgresTls) -> Result<Self, Error> {
        let dsn = Dsn::split(dsn)?;
        for (key, value) in dsn.tls {
            match key.as_str() {
                "sslmode" => tls.sslmode = Some(value.parse()?),
                "sslrootcert" => tls.sslrootcert = Some(value.into()),
                "sslcert" => tls.sslcert = Some(value.into()),
                _ => tls.sslkey = Some(value.into()),
            }
        }
        let identity = match (tls.sslcert, tls.sslkey) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (None, None) => None,
            _ => return Err(Error::invalid("sslcert", "sslcert and sslkey go together")),
        };
        let is_system = tls.sslrootcert.as_deref() == Some(Path::new("system"));
        let roots = tls.sslrootcert.filter(|_| !is_system);
        // As libpq: anybody may have a certificate from the system's authorities, so the name
        // decides; with roots at hand, `require` verifies the chain.
        let sslmode = match tls.sslmode {
            None | Some(SslMode::VerifyFull) if is_system => SslMode::VerifyFull,
            Some(_) if is_system => {
                let reason = "sslrootcert=system verifies the host too: set sslmode=verify-full";
                return Err(Error::invalid("sslmode", reason));
            }
            Some(SslMode::Require) if roots.is_some() => SslMode::VerifyCa,
            given => given.unwrap_or_default(),
        };
        let config = parsed::parse(&dsn.plain)?;
        let (password, pool, has_sessions) = (None, None, HasSessions::default());
        Ok(Self { config, sslmode, roots, identity, password, pool, has_sessions })
    }

    /// Has the password read from `source` for each connection.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the connection string has a password too.
    pub fn with_password(self, source: SecretSource) -> Result<Self, Error> {
        if self.config.get_password().is_some() {
            return Err(Error::invalid(
                password::setting(&source),
                "postgres.url has a password too: give one of them",
            ));
        }
        Ok(Self { password: Some(source), ..self })
    }

    /// The time allowed for opening a connection, and for running a program that gives the password.
    pub fn connect_timeout(&self) -> Duration {
        let of_server = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        of_server + self.password.as_ref().map_or(Duration::ZERO, SecretSource::takes_at_most)
    }

    /// Opens a connection for SQL. An `application_name` in the URL wins over the given one.
    ///
    /// The connection lives as long as the returned task: dropping that closes it.
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be reached in time or refuses, or a certificate cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the half-open connection.
    pub async fn connect(&self, application_name: &str) -> Result<(Client, ConnectionTask), Error> {
        let (client, task, look) = self.connect_in_time(application_name).await?;
        if self.has_sessions.is_to_be_seen() {
            if !look.is_of_server(&client).await {
                // Before anything is done on it. That there is no room for another one is no reason.
                let second = self.connect_in_time(application_name).await;
                if let Err(error @ Error::HandedOn { .. }) = second {
                    return Err(error);
                }
            }
            self.has_sessions.seen();
        }
        Ok((client, task))
    }

    async fn connect_in_time(&self, name: &str) -> Result<(Client, ConnectionTask, Look), Error> {
        let timeout = self.connect_timeout();
        tokio::time::timeout(timeout, self.connect_unbounded(name)).await.map_err(|_| {
            Error::PostgresTimeout { target: self.to_string(), seconds: timeout.as_secs() }
        })?
    }

    /// The same, with at most so many sessions at a time; all copies share them.
    pub fn pooled(self, limits: PoolLimits) -> Self {
        let pool = Pool::new(limits, session_settings::set(self.options()));
        Self { pool: Some(pool), ..self }
    }

    /// A connection for SQL: of the pool, if there is one, or else as [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`Error::Busy`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the half-open connection.
    pub async fn session(&self, application_name: &str) -> Result<Session, Error> {
        match &self.pool {
            Some(pool) => {
                let target = self.clone();
                let name = pool.application_name();
                Box::pin(pool.take(async move { target.connect(name).await })).await
            }
            None => Box::pin(self.connect(application_name)).await.map(Session::own),
        }
    }

    async fn connect_unbounded(
        &self,
        application_name: &str,
    ) -> Result<(Client, ConnectionTask, Look), Error> {
        install_crypto_provider();
        let mut config = self.sql_config(application_name);
        if let Some(password) = self.renewed_password().await? {
            config.password(password);
        }
        let refused =
            |source| Error::Postgres { target: self.to_string(), source, renewed: self.renewed() };
        if config.get_ssl_mode() == tokio_postgres::config::SslMode::Disable {
            let (client, connection) = config.connect(NoTls).await.map_err(refused)?;
            return self.begin(client, ConnectionTask::new(tokio::spawn(connection))).await;
        }
        let tls = MakeRustlsConnect::new(self.tls()?);
        let (client, connection) = config.connect(tls).await.map_err(refused)?;
        self.begin(client, ConnectionTask::new(tokio::spawn(connection))).await
    }

    async fn begin(
        &self,
        client: Client,
        task: ConnectionTask,
    ) -> Result<(Client, ConnectionTask, Look), Error> {
        let target = || self.to_string();
        let begun = client.simple_query(&session_settings::begin(self.options())).await;
        let refused =
            |source| Error::Postgres { target: target(), source, renewed: self.renewed() };
        let look = Look::at(&begun.map_err(refused)?);
        match look.is_handed_on {
            true => Err(Error::HandedOn { target: target() }),
            false => Ok((client, task, look)),
        }
    }

    /// How the server is verified.
    pub fn tls(&self) -> Result<rustls::ClientConfig, Error> {
        let verification = match self.sslmode {
            SslMode::VerifyFull => Verification::Full,
            SslMode::VerifyCa => Verification::Chain,
            SslMode::Disable | SslMode::Prefer | SslMode::Require => Verification::None,
        };
        tls::client_config(verification, self.roots.as_deref(), self.identity.as_ref())
    }

    fn options(&self) -> &str {
        self.config.get_options().unwrap_or_default()
    }

    /// What a replication connection begins with.
    pub fn walsender_settings(&self) -> String {
        session_settings::of_walsender(self.options())
    }

    fn sql_config(&self, application_name: &str) -> Config {
        use tokio_postgres::config::SslMode as SqlSslMode;
        let mut config = self.config.clone();
        let host = self.host();
        match (&host, config.get_hosts().is_empty()) {
            (Host::Tcp(name), true) => drop(config.host(name)),
            (Host::Unix(dir), true) => drop(config.host_path(dir)),
            (_, false) => (),
        }
        if config.get_application_name().is_none() {
            config.application_name(application_name);
        }
        config.ssl_mode(match (self.sslmode, host) {
            // Like libpq: a Unix socket is never encrypted.
            (SslMode::Disable, _) | (_, Host::Unix(_)) => SqlSslMode::Disable,
            (SslMode::Prefer, _) => SqlSslMode::Prefer,
            (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, _) => SqlSslMode::Require,
        });
        config
    }

    /// The configuration of a replication connection that streams `publication` through `slot`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a name is not made of `a-z`, `0-9` and `_`: the client puts names
    /// into commands as they are. If the password cannot be read.
    pub async fn replication_config(
        &self,
        slot: &str,
        publication: &str,
    ) -> Result<ReplicationConfig, Error> {
        check_name("postgres.slot", slot)?;
        check_name("postgres.publication", publication)?;
        // The client installs a provider of its own choice if there is none.
        install_crypto_provider();
        let (user, dbname) = self.user_and_dbname();
        let password = match self.renewed_password().await? {
            Some(password) => password,
            None => std::str::from_utf8(self.config.get_password().unwrap_or_default())
                .map_err(|_| Error::invalid("postgres.url", "the password is not UTF-8"))?
                .to_owned(),
        };
        let host = match self.host() {
            Host::Unix(dir) => dir.display().to_string(),
            Host::Tcp(name) => match self.config.get_hostaddrs().first() {
                Some(address) => address.to_string(),
                None => name,
            },
        };
        let config = ReplicationConfig::new(host, user, password, dbname, slot, publication)
            .with_port(self.port())
            .with_tls(self.replication_tls()?)
            .with_binary(true)
            .with_status_interval(STATUS_INTERVAL)
            .with_wakeup_interval(IDLE_WAKEUP_INTERVAL)
            .with_buffer_size(BUFFER_EVENTS)
            .with_application_name(self.replication_name());
        Ok(match self.config.get_options() {
            Some(options) => config.with_options(options),
            None => config,
        })
    }

    fn replication_tls(&self) -> Result<TlsConfig, Error> {
        let host = match self.host() {
            Host::Unix(_) => return Ok(TlsConfig::disabled()),
            Host::Tcp(name) => name,
        };
        let mode = match self.sslmode {
            SslMode::Disable => return Ok(TlsConfig::disabled()),
            SslMode::Prefer => ReplicationSslMode::Prefer,
            SslMode::Require => ReplicationSslMode::Require,
            SslMode::VerifyCa => ReplicationSslMode::VerifyCa,
            SslMode::VerifyFull => ReplicationSslMode::VerifyFull,
        };
        let ca_pem_path = match &self.roots {
            Some(path) => Some(path.clone()),
            // Else the client would trust roots of its own, not the system's.
            None if mode.verifies_certificate() => Some(tls::system_roots()?),
            None => None,
        };
        let (client_cert_pem_path, client_key_pem_path) = match self.identity.clone() {
            Some(Identity { cert, key }) => (Some(cert), Some(key)),
            None => (None, None),
        };
        Ok(TlsConfig {
            mode,
            ca_pem_path,
            // Set in any case: without it the client refuses to verify an IP address.
            sni_hostname: Some(host),
            client_cert_pem_path,
            client_key_pem_path,
        })
    }

    /// The role that logs in.
    pub fn user(&self) -> &str {
        self.user_and_dbname().0
    }

    /// What the replication connection is called in `pg_stat_activity`.
    pub fn replication_name(&self) -> &str {
        self.config.get_application_name().unwrap_or(DEFAULT_APPLICATION_NAME)
    }

    /// The host's name, or the folder of its socket.
    pub fn host_name(&self) -> String {
        match self.host() {
            Host::Tcp(name) => name,
            Host::Unix(dir) => dir.display().to_string(),
        }
    }

    fn user_and_dbname(&self) -> (&str, &str) {
        let set = "set when the target was parsed";
        (self.config.get_user().expect(set), self.config.get_dbname().expect(set))
    }

    fn port(&self) -> u16 {
        self.config.get_ports().first().copied().unwrap_or(DEFAULT_PORT)
    }

    /// The configured host, or libpq's default: the local socket where there is one.
    fn host(&self) -> Host {
        if let Some(host) = self.config.get_hosts().first() {
            return host.clone();
        }
        if let Some(address) = self.config.get_hostaddrs().first() {
            return Host::Tcp(address.to_string());
        }
        let socket = format!(".s.PGSQL.{}", self.port());
        ["/var/run/postgresql", "/tmp"]
            .map(PathBuf::from)
            .into_iter()
            .find(|dir| dir.join(&socket).exists())
            .map_or_else(|| Host::Tcp("localhost".into()), Host::Unix)
    }
}

/// Checks the name of a slot or publication: `[a-z0-9_]`, 1 to 63 characters.
pub fn check_name(setting: &'static str, name: &str) -> Result<(), Error> {
    let allowed = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_';
    if (1..=63).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::invalid(
        setting,
        format!("`{name}` must be 1 to 63 characters of a-z, 0-9 and underscore"),
    ))
}

impl fmt::Display for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, dbname) = self.user_and_dbname();
        write!(f, "postgres://{}@", utf8_percent_encode(user, &URL_SAFE))?;
        match self.host() {
            Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]")?,
            Host::Tcp(name) => f.write_str(&name)?,
            Host::Unix(dir) => {
                write!(f, "{}", utf8_percent_encode(&dir.to_string_lossy(), &URL_SAFE))?;
            }
        }
        write!(f, ":{}/{}", self.port(), utf8_percent_encode(dbname, &URL_SAFE))
    }
}

impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTarget")
            .field("url", &format_args!("{self}"))
            .field("sslmode", &self.sslmode)
            .field("roots", &self.roots)
            .field("identity", &self.identity)
            .field("password", &self.password)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
