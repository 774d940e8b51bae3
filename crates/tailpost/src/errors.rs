//! Errors of commands and of the admin API that have exit codes of their own.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::StatusCode;

use crate::refusal::{Ending, Kind};

/// The server answers within five seconds, or says that it cannot.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(10);

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {address} for health and metrics")]
pub(crate) struct ListenError {
    pub(crate) address: SocketAddr,
    pub(crate) source: std::io::Error,
}

impl Ending for ListenError {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::Refused)
    }

    fn hint(&self) -> Option<String> {
        let hint = "set admin.listen, or admin.inbox_listen for an inbox, to a free address, or to \"off\"";
        Some(hint.into())
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

impl Ending for TokenError {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::BadConfiguration)
    }

    fn hint(&self) -> Option<String> {
        None
    }
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

impl Ending for ClientError {
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Off { .. } | Self::Unreachable { .. } => Kind::Unreachable,
            Self::Silent { .. } => Kind::TimedOut,
            Self::Refused { status, .. } => match status.as_u16() {
                400 | 401 | 403 | 409 | 422 => Kind::Refused,
                404 => Kind::NotFound,
                503 => Kind::Unreachable,
                504 => Kind::TimedOut,
                _ => Kind::Failed,
            },
        })
    }

    fn hint(&self) -> Option<String> {
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

impl Ending for LacksRights {
    fn kind(&self) -> Option<Kind> {
        None
    }

    fn hint(&self) -> Option<String> {
        let Self { of, needs, .. } = self;
        Some(format!(
            "run the command as the owner of the tables, or GRANT {needs} on all tables of the {of}, \
             which docs/security.md names"
        ))
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
