//! Errors of commands and of the admin API that have exit codes of their own.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
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

/// Why `top` shows nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopError {
    /// It would write to a file, or into a pipe.
    #[error("standard output is not a terminal")]
    NoTerminal,
    /// It was closed, or does not do as it is told.
    #[error("the terminal failed")]
    Terminal(#[source] std::io::Error),
    /// The configuration names none.
    #[error("admin.listen is off, so no relay can be asked")]
    Off,
    /// The screen that was printed says so too.
    #[error("{error}")]
    Unreachable { error: String },
}

impl TopError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoTerminal => {
                "`tailpost status --json` is for scripts; `tailpost top --once` prints one screen"
            }
            Self::Off => "--relay-url says where a relay listens",
            Self::Terminal(_) | Self::Unreachable { .. } => return None,
        };
        Some(hint.into())
    }
}

/// Why a wait ended without what was waited for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WaitError {
    /// Nobody knows it.
    #[error("event {id} is unknown after {waited:?}: {said}")]
    Unknown { id: Uuid, waited: Duration, said: String },
    /// It may still happen.
    #[error("event {id} is not there after {waited:?}: {said}")]
    NotYet { id: Uuid, waited: Duration, said: String },
    /// It does not happen by itself.
    #[error("event {id} will not be there: {said}")]
    Never { id: Uuid, said: String },
    /// Of all, some are not there.
    #[error("{left} after {waited:?}")]
    NotAll { left: String, waited: Duration },
}

impl WaitError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown { .. } => {
                "its transaction may not be committed, or its row was deleted".into()
            }
            Self::NotYet { .. } | Self::NotAll { .. } => {
                "`tailpost status` says what holds events up; --timeout waits longer".into()
            }
            Self::Never { id, .. } => {
                format!(
                    "`tailpost outbox dlq show {id}` or `tailpost inbox dlq show {id}` says more"
                )
            }
        })
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

/// PostgreSQL is not to be upgraded yet.
#[derive(Debug, thiserror::Error)]
#[error("{open} open: PostgreSQL is not to be upgraded yet")]
pub(crate) struct NotReady {
    /// How much is.
    pub(crate) open: usize,
    /// Some of it may be over by itself later.
    pub(crate) timed_out: bool,
}

/// No worker got on with a rewind for so long. It stays requested.
#[derive(Debug, thiserror::Error)]
#[error("no worker of {consumer} got on with the rewind within {waited:?}; it stays requested")]
pub(crate) struct RewindNotYet {
    pub(crate) consumer: String,
    pub(crate) waited: Duration,
}

impl RewindNotYet {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> String {
        "workers of an earlier version, or without rights on inbox_rewinds, carry out none; repeat the command to follow it, or \
         withdraw it with --cancel"
            .into()
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

/// What `doctor` ends with, beside what servers answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    /// Checks failed; they were told.
    #[error("{failed} of the checks failed")]
    Found { failed: usize },
    /// A canary event did not get to the end.
    #[error("the canary event did not get to the end")]
    Probe,
    /// Somebody would get it who did not ask for it.
    #[error("consumers would get a canary event under {subject}: {consumers}")]
    Consumers { subject: String, consumers: String },
}

impl DoctorError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Consumers { .. } => Some(
                "--yes sends it all the same; a consumer does not get it if its subjects leave it \
                 out"
                .into(),
            ),
            Self::Found { .. } | Self::Probe => None,
        }
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
