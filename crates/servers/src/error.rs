//! What goes wrong before a connection works, and what helps.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ConnectErrorKind;
use tokio_postgres::error::{DbError, SqlState};

/// An error and what caused it, in one line. For logs; a terminal gets the chain.
pub fn describe(error: &dyn StdError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let text = next.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = next.source();
    }
    line
}

/// Why a target could not be understood or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that cannot work. `reason` never repeats a secret.
    #[error("invalid {setting}: {reason}")]
    Invalid {
        /// The setting as the operator knows it, such as `sslmode` or `nats.url`.
        setting: &'static str,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// A certificate, key, or credentials file is missing or not what it should be.
    #[error("could not load {role} from {}", path.display())]
    File {
        /// What the file is for, such as "client key".
        role: &'static str,
        /// Where it was looked for.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A program that is to give a secret did not.
    #[error("{setting} ({program}) gave no secret: {reason}")]
    Command {
        /// The setting that names it.
        setting: &'static str,
        /// The program, without its arguments.
        program: String,
        /// What went wrong; repeats nothing of what it wrote.
        reason: String,
        /// Whether it ran at all.
        is_started: bool,
    },
    /// PostgreSQL could not be reached, or did not let us in.
    #[error("could not connect to {target}")]
    Postgres {
        /// The server, without its password.
        target: String,
        /// What the client library reported.
        #[source]
        source: tokio_postgres::Error,
        /// What may be another one at the next attempt.
        renewed: Renewed,
    },
    /// PostgreSQL let the SQL connections in, and not the replication connection: what they show may
    /// have changed between the two.
    #[error("could not open a replication connection to {target}")]
    Replication {
        /// The server, without its password.
        target: String,
        /// What the client library reported.
        #[source]
        source: pgwire_replication::PgWireError,
        /// What may be another one at the next attempt.
        renewed: Renewed,
    },
    /// A pooler lends sessions of the server without resetting them.
    #[error("{target} is a pooler in transaction mode, or one that resets no session")]
    HandedOn {
        /// The server, without its password.
        target: String,
    },
    /// PostgreSQL did not finish the handshake in time.
    #[error("could not connect to {target} within {seconds} s")]
    PostgresTimeout {
        /// The server, without its password.
        target: String,
        /// How long was waited.
        seconds: u64,
    },
    /// All connections that may be open at a time are in use.
    #[error("all {connections} connections to PostgreSQL are in use for {waited:?}")]
    Busy {
        /// How many there may be.
        connections: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// NATS could not be reached, or did not let us in.
    #[error("could not connect to {target}")]
    Nats {
        /// The servers, without credentials.
        target: String,
        /// What the client library reported.
        #[source]
        source: async_nats::ConnectError,
        /// What may be another one at the next attempt.
        renewed: Renewed,
    },
}

/// The setting of a client certificate, where that is what logs in to PostgreSQL.
pub(crate) const CERTIFICATE: &str = "postgres.sslcert";

/// What is read anew for each connection, so that who was refused may be let in later without
/// anybody starting anything again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Renewed {
    /// The setting that says where the credential is.
    pub login: Option<&'static str>,
    /// Whether there are files with certificates.
    pub certificates: bool,
}

impl Error {
    /// A `setting` that cannot work, for a `reason` that repeats no secret.
    pub fn invalid(setting: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { setting, reason: reason.into() }
    }

    pub(crate) fn file(
        role: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::File { role, path: path.into(), source: source.into() }
    }

    /// Whether trying again later may succeed without anybody changing the configuration.
    ///
    /// What is not proven to be definite counts as transient, and so does the refusal of what is read
    /// anew for each connection.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Invalid { .. } | Self::File { .. } | Self::HandedOn { .. } => false,
            Self::Command { is_started, .. } => *is_started,
            Self::PostgresTimeout { .. } | Self::Busy { .. } => true,
            Self::Postgres { .. } | Self::Replication { .. } | Self::Nats { .. } => {
                !self.is_refusal() || self.is_renewable()
            }
        }
    }

    /// Whether a server, or the client for its sake, refuses what it was shown.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::File { .. }
            | Self::Command { .. }
            | Self::PostgresTimeout { .. }
            | Self::Busy { .. } => false,
            Self::HandedOn { .. } => true,
            Self::Postgres { source, .. } => {
                source.code().is_some_and(is_refusal)
                    || is_certificate_error(source)
                    || is_refused_by_client(source)
            }
            Self::Replication { .. } => true,
            Self::Nats { source, .. } => {
                is_nats_refusal(source.kind()) || is_certificate_error(source)
            }
        }
    }

    /// Whether it passes when somebody renews a credential or a certificate where it is, without
    /// starting anything again.
    pub fn is_renewable(&self) -> bool {
        match self {
            Self::File { .. } | Self::Command { .. } => true,
            Self::Postgres { source, renewed, .. } => match source.as_db_error() {
                Some(refusal) => is_about_login(refusal, *renewed),
                None => renewed.certificates && is_certificate_error(source),
            },
            Self::Replication { renewed, .. } => renewed.login.is_some(),
            Self::Nats { source, renewed, .. } => match source.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    renewed.login.is_some()
                }
                ConnectErrorKind::Tls => renewed.certificates,
                _ => renewed.certificates && is_certificate_error(source),
            },
            Self::Invalid { .. }
            | Self::HandedOn { .. }
            | Self::PostgresTimeout { .. }
            | Self::Busy { .. } => false,
        }
    }

    /// Whether the configuration itself is at fault, whatever the servers do.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Invalid { .. } | Self::File { .. } => true,
            Self::Command { is_started, .. } => !is_started,
            _ => false,
        }
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { .. } => None,
            Self::Busy { .. } => Some("try again in a second".into()),
            Self::HandedOn { .. } => Some(
                "name the database server itself in postgres.url (Amazon RDS: the instance or \
                 cluster, not RDS Proxy), or a pooler in session mode (PgBouncer: pool_mode = \
                 session, server_reset_query = DISCARD ALL)"
                    .into(),
            ),
            Self::File { role, .. } => {
                Some(format!("check that the file is there, holds the {role}, and can be read"))
            }
            Self::Command { program, .. } => Some(format!(
                "run it by hand, as the user that runs tailpost: {program} has to write the secret \
                 to stdout, as one line, and end with 0; it is run again within 30 s"
            )),
            Self::PostgresTimeout { .. } => Some(
                "check the address and any firewall; raise connect_timeout in the URL if the \
                 server is slow"
                    .into(),
            ),
            Self::Postgres {
                renewed: renewed @ Renewed { login: Some(setting), .. },
                source,
                ..
            } if source.as_db_error().is_some_and(|it| is_about_login(it, *renewed)) => {
                Some(renew(setting))
            }
            Self::Postgres { source, .. } => postgres_hint(source),
            Self::Replication { renewed, .. } => renewed.login.map(renew),
            Self::Nats { renewed: Renewed { login: Some(setting), .. }, source, .. }
                if matches!(
                    source.kind(),
                    ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation
                ) =>
            {
                Some(renew(setting))
            }
            Self::Nats { source, .. } => nats_hint(source),
        }
    }
}

/// What helps where a credential is read anew for each connection.
pub(crate) fn renew(setting: &'static str) -> String {
    format!("renew what {setting} gives: it is read again for each attempt to connect")
}

/// Whether PostgreSQL refuses what is read anew for each connection: only then another one helps.
fn is_about_login(refusal: &DbError, renewed: Renewed) -> bool {
    /// Where the server finds that there is no such role, or that it may not log in.
    const OF_ROLES: &str = "InitializeSessionUserId";
    match refusal.code() {
        code if *code == SqlState::INVALID_PASSWORD => {
            renewed.login.is_some_and(|it| it != CERTIFICATE)
        }
        // PAM, LDAP and RADIUS refuse passwords like this, and `cert` refuses certificates.
        code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            renewed.login.is_some()
                && refusal.routine() != Some(OF_ROLES)
                && !is_about_rules(refusal.message())
        }
        _ => false,
    }
}

/// Whether the server has no rule that lets the client try, or one that rejects it, whatever it would
/// show. The file's name stands in the message in every language.
pub fn is_about_rules(message: &str) -> bool {
    message.contains("pg_hba.conf")
}

fn is_refusal(code: &SqlState) -> bool {
    [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ]
    .contains(code)
}

/// Whether the client gave up before the server did: a password is missing, or the server wants a
/// way to authenticate that the client lacks. The library tells this only in words.
fn is_refused_by_client(error: &tokio_postgres::Error) -> bool {
    ["invalid configuration", "authentication error"].contains(&error.to_string().as_str())
}

fn is_nats_refusal(kind: ConnectErrorKind) -> bool {
    match kind {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Tls => true,
        ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => false,
    }
}

/// Whether the peer's certificate was refused, by either side.
fn is_certificate_error(error: &(dyn StdError + 'static)) -> bool {
    tls_error(error).is_some_and(|it| {
        matches!(it, rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
    })
}

const OLD_CERTIFICATE: &str = "the server's certificate is of X.509 version 1, which cannot be \
    verified: make one of version 3 that names the host in subjectAltName";

fn is_old_certificate(error: &(dyn StdError + 'static)) -> bool {
    tls_error(error).is_some_and(|it| it.to_string().contains("UnsupportedCertVersion"))
}

/// Finds the TLS library's own error. `io::Error` hides what it wraps from `source()`.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next: Option<&'a (dyn StdError + 'static)> = Some(error);
    while let Some(it) = next {
        let wrapped = it.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let found = it
            .downcast_ref::<rustls::Error>()
            .or_else(|| wrapped.and_then(|w| w.downcast_ref::<rustls::Error>()));
        if found.is_some() {
            return found;
        }
        next = it.source();
    }
    None
}

/// The role, as the server quotes it, that may not log in.
fn kept_out(message: &str) -> Option<&str> {
    message.strip_prefix("role ")?.strip_suffix(" is not permitted to log in")
}

fn postgres_hint(source: &tokio_postgres::Error) -> Option<String> {
    if let Some(role) = source.as_db_error().and_then(|it| kept_out(it.message())) {
        return Some(format!("run `ALTER ROLE {role} LOGIN`"));
    }
    if let Some(code) = source.code() {
        let hint = match code {
            code if *code == SqlState::INVALID_PASSWORD => "check the user and password in the URL",
            code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                "check the user, sslmode and client certificate against the server's pg_hba.conf"
            }
            code if *code == SqlState::INVALID_CATALOG_NAME => "check the database name in the URL",
            code if *code == SqlState::TOO_MANY_CONNECTIONS => {
                "end idle sessions, or raise max_connections or the role's or database's CONNECTION LIMIT"
            }
            _ => return None,
        };
        return Some(hint.into());
    }
    if is_old_certificate(source) {
        return Some(OLD_CERTIFICATE.into());
    }
    if is_certificate_error(source) {
        return Some(
            "check sslrootcert against the server's certificate authority; with \
             sslmode=verify-full the certificate must name the host in subjectAltName"
                .into(),
        );
    }
    let cause = source.source().map(ToString::to_string).unwrap_or_default();
    if cause.contains("server does not support TLS") {
        return Some("turn on ssl in postgresql.conf, or use sslmode=disable".into());
    }
    if cause.contains("password missing") {
        return Some("the server asks for a password: put one into the URL".into());
    }
    if is_refused_by_client(source) {
        return None;
    }
    Some("check that PostgreSQL runs at that address".into())
}

fn nats_hint(source: &async_nats::ConnectError) -> Option<String> {
    if is_old_certificate(source) {
        return Some(OLD_CERTIFICATE.into());
    }
    if is_certificate_error(source) {
        return Some(
            "check nats.ca against the server's certificate authority, nats.cert and nats.key \
             against the server's; the certificate must name the host in subjectAltName"
                .into(),
        );
    }
    if matches!(tls_error(source), Some(rustls::Error::InvalidMessage(_))) {
        return Some(
            "that server does not speak TLS: use nats:// without nats.ca, nats.cert and \
             nats.tls_first"
                .into(),
        );
    }
    if source.to_string().contains("expected INFO") {
        return Some(
            "check that a NATS server runs at that address; set nats.tls_first if it is \
             configured with handshake_first"
                .into(),
        );
    }
    match source.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            Some("check nats.creds, nats.nkey, nats.token, or nats.user and nats.password".into())
        }
        ConnectErrorKind::Dns | ConnectErrorKind::Io | ConnectErrorKind::TimedOut => {
            Some("check that a NATS server runs at that address".into())
        }
        ConnectErrorKind::ServerParse | ConnectErrorKind::Tls | ConnectErrorKind::MaxReconnects => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nats(kind: ConnectErrorKind) -> Error {
        refused(kind, Renewed::default())
    }

    fn refused(kind: ConnectErrorKind, renewed: Renewed) -> Error {
        Error::Nats { target: "nats://localhost:4222".into(), source: kind.into(), renewed }
    }

    #[test]
    fn outages_are_transient_and_refusals_are_not() {
        for kind in [ConnectErrorKind::Dns, ConnectErrorKind::Io, ConnectErrorKind::TimedOut] {
            assert!(nats(kind).is_transient(), "{kind:?}");
        }
        for kind in [ConnectErrorKind::AuthorizationViolation, ConnectErrorKind::Authentication] {
            let error = nats(kind);
            assert!(!error.is_transient(), "{kind:?}");
            assert!(error.hint().is_some(), "{kind:?}");
            assert!(!error.is_configuration(), "{kind:?}");
            let renewed = Renewed { login: Some("nats.creds"), certificates: false };
            let error = refused(kind, renewed);
            assert!(error.is_transient() && error.is_refusal(), "{kind:?}");
            assert!(error.hint().is_some_and(|it| it.contains("renew what nats.creds")));
            let renewed = Renewed { login: None, certificates: true };
            assert!(!refused(kind, renewed).is_transient(), "{kind:?}");
        }
        assert!(!Error::invalid("sslmode", "nonsense").is_transient());
    }

    #[test]
    fn a_refused_certificate_is_found_below_an_io_error() {
        let refused = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let source = async_nats::ConnectError::with_source(
            ConnectErrorKind::Io,
            io::Error::new(io::ErrorKind::InvalidData, refused),
        );
        let mut error = Error::Nats {
            target: "tls://localhost:4222".into(),
            source,
            renewed: Renewed { login: Some("nats.creds"), certificates: false },
        };
        assert!(!error.is_transient());
        assert!(error.hint().expect("a hint").contains("nats.ca"));
        if let Error::Nats { renewed, .. } = &mut error {
            renewed.certificates = true;
        }
        assert!(error.is_transient(), "the file may be another one the next time");
    }
}
