//! Errors of commands and of the admin API that have exit codes of their own.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;
use uuid::Uuid;

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

/// Why the API did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// `admin.listen` is off.
    #[error("admin.listen is off, so no relay can be asked")]
    Off,
    /// Nobody answers there.
    #[error("could not reach a relay at {address}")]
    Unreachable { address: SocketAddr, source: std::io::Error },
    /// No answer in time.
    #[error("the relay at {address} did not answer within {} s", API_TIMEOUT.as_secs())]
    Silent { address: SocketAddr },
    /// It answered with an error.
    #[error("{error}")]
    Refused { status: StatusCode, error: String, hint: Option<String> },
}

impl ClientError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Off | Self::Unreachable { .. } => Some(
                "--direct asks the database instead; admin.listen says where a relay listens"
                    .into(),
            ),
            Self::Silent { .. } => Some("--direct asks the database instead".into()),
            Self::Refused { status, .. } if *status == StatusCode::UNAUTHORIZED => {
                Some("set admin.token to the relay's".into())
            }
            Self::Refused { hint, .. } => hint.clone(),
        }
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DlqError {
    /// Nobody confirmed.
    #[error("nothing was done: {0}")]
    NotConfirmed(&'static str),
    /// It became a dead letter again.
    #[error("event {id} is a dead letter again: {reason}")]
    DeadAgain { id: Uuid, reason: String },
    /// It was not published in time.
    #[error("event {id} was not published within {waited:?}")]
    NotYet { id: Uuid, waited: Duration },
    /// Some were refused.
    #[error("{skipped} of {total} were skipped, the last because {why}")]
    Skipped { skipped: u64, total: u64, why: String },
}
