use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ConnectErrorKind;
use tokio_postgres::error::SqlState;

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
    /// PostgreSQL could not be reached, or did not let us in.
    #[error("could not connect to {target}")]
    Postgres {
        /// The server, without its password.
        target: String,
        /// What the client library reported.
        #[source]
        source: tokio_postgres::Error,
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
    },
}

impl Error {
    pub(crate) fn invalid(setting: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { setting, reason: reason.into() }
    }

    pub(super) fn file(
        role: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::File { role, path: path.into(), source: source.into() }
    }

    /// Whether trying again later may succeed without anybody changing the configuration.
    ///
    /// What is not proven to be definite counts as transient.
    #[deny(clippy::wildcard_enum_match_arm)]
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Invalid { .. } | Self::File { .. } => false,
            Self::PostgresTimeout { .. } | Self::Busy { .. } => true,
            Self::Postgres { source, .. } => {
                source.code().is_none_or(|code| !is_refusal(code))
                    && !is_certificate_error(source)
                    && !is_refused_by_client(source)
            }
            Self::Nats { source, .. } => {
                !is_nats_refusal(source.kind()) && !is_certificate_error(source)
            }
        }
    }

    /// Whether the configuration itself is at fault, whatever the servers do.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::File { .. })
    }

    /// What the operator can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { .. } => None,
            Self::Busy { .. } => Some("try again in a second".into()),
            Self::File { role, .. } => {
                Some(format!("check that the file is there, holds the {role}, and can be read"))
            }
            Self::PostgresTimeout { .. } => Some(
                "check the address and any firewall; raise connect_timeout in the URL if the \
                 server is slow"
                    .into(),
            ),
            Self::Postgres { source, .. } => postgres_hint(source),
            Self::Nats { source, .. } => nats_hint(source),
        }
    }
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

fn postgres_hint(source: &tokio_postgres::Error) -> Option<String> {
    if let Some(code) = source.code() {
        let hint = match code {
            code if *code == SqlState::INVALID_PASSWORD => "check the user and password in the URL",
            code if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                "check the user, sslmode and client certificate against the server's pg_hba.conf"
            }
            code if *code == SqlState::INVALID_CATALOG_NAME => "check the database name in the URL",
            code if *code == SqlState::TOO_MANY_CONNECTIONS => {
                "raise max_connections, or end idle sessions"
            }
            _ => return None,
        };
        return Some(hint.into());
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
        Error::Nats { target: "nats://localhost:4222".into(), source: kind.into() }
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
        let error = Error::Nats { target: "tls://localhost:4222".into(), source };
        assert!(!error.is_transient());
        assert!(error.hint().expect("a hint").contains("nats.ca"));
    }
}
