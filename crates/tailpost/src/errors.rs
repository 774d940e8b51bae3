//! Errors of commands and of the admin API that have exit codes of their own.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::StatusCode;

/// The server answers within five seconds, or says that it cannot.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(10);

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {address} for health and metrics")]
pub(crate) struct ListenError {
    pub(crate) address: SocketAddr,
    pub(crate) source: std::io::Error,
}

impl ListenError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> String {
        "set admin.listen, or admin.inbox_listen for an inbox, to a free address, or to \"off\""
            .into()
    }
}

/// A file of `admin.tokens` does not let anybody in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// It is not there, or not for us.
    #[error("could not read the token in {}", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    /// What it has cannot be sent in a header.
    #[error("{} has no token: one line of visible ASCII characters", file.display())]
    Unfit { file: PathBuf },
}

/// Who has an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Relay,
    Inbox,
}

impl Service {
    fn key(self) -> &'static str {
        match self {
            Self::Relay => "admin.listen",
            Self::Inbox => "admin.inbox_listen",
        }
    }

    fn article(self) -> &'static str {
        match self {
            Self::Relay => "a",
            Self::Inbox => "an",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relay => "relay",
            Self::Inbox => "inbox",
        })
    }
}

/// Why the API did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// It does not listen.
    #[error("{} is off, so no {of} can be asked", of.key())]
    Off { of: Service },
    /// Nobody answers there.
    #[error("could not reach {} {of} at {address}", of.article())]
    Unreachable { of: Service, address: SocketAddr, source: std::io::Error },
    /// No answer in time.
    #[error("the {of} at {address} did not answer within {} s", API_TIMEOUT.as_secs())]
    Silent { of: Service, address: SocketAddr },
    /// It answered with an error.
    #[error("{error}")]
    Refused { status: StatusCode, error: String, hint: Option<String> },
}

impl ClientError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Off { of } | Self::Unreachable { of, .. } => Some(format!(
                "--direct asks the database instead; {} says where {} {of} listens",
                of.key(),
                of.article()
            )),
            Self::Silent { .. } => Some("--direct asks the database instead".into()),
            Self::Refused { status, .. } if *status == StatusCode::UNAUTHORIZED => {
                Some("set admin.token to the relay's".into())
            }
            Self::Refused { hint, .. } => hint.clone(),
        }
    }
}

/// A command has done one side, and the role lacks rights on the other.
#[derive(Debug, thiserror::Error)]
#[error("the role lacks rights on the tables of the {of}")]
pub(crate) struct LacksRights {
    /// `outbox` or `inbox`.
    pub(crate) of: &'static str,
    /// What the role would need.
    pub(crate) needs: &'static str,
    pub(crate) source: anyhow::Error,
}

impl LacksRights {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> String {
        let Self { of, needs, .. } = self;
        format!(
            "run the command as the owner of the tables, or GRANT {needs} on all tables of the {of}, \
             which docs/security.md names"
        )
    }
}

/// What a plugin of Nagios says. Its exit code is the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NagiosState {
    #[error("OK")]
    Ok = 0,
    #[error("WARNING")]
    Warning = 1,
    #[error("CRITICAL")]
    Critical = 2,
    #[error("UNKNOWN")]
    Unknown = 3,
}
