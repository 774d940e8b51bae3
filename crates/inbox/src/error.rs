use tokio_postgres::error::SqlState;

use crate::connection::BoxError;

/// Why an inbox ended.
///
/// Only what waiting does not mend ends it: a database or broker that is away is waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or makes no sense.
    #[error("inbox \"{consumer}\" is not set up right: {reason}")]
    Config {
        /// The consumer's name.
        consumer: String,
        /// What is wrong.
        reason: String,
    },
    /// The tables are not there, or not as they should be.
    #[error("the tables of the inbox cannot be used: {reason}")]
    Tables {
        /// What is missing.
        reason: String,
    },
    /// PostgreSQL refuses, and will again.
    #[error("could not {doing}")]
    Sql {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// PostgreSQL's answer.
        source: tokio_postgres::Error,
    },
    /// PostgreSQL does not answer.
    #[error("PostgreSQL does not answer: could not {doing} within {within:?}")]
    Silent {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// How long it was waited for.
        within: std::time::Duration,
    },
    /// A trigger of somebody else's answers NULL: PostgreSQL writes nothing, and no error is given.
    #[error("a trigger of {table} keeps {what} out")]
    KeptOut {
        /// The table.
        table: &'static str,
        /// What was to be written.
        what: &'static str,
    },
    /// No commit ends, since synchronous standbys are away.
    #[error(
        "commits wait for a synchronous standby (synchronous_standby_names = {standbys}): have it \
         follow, or take it out of the setting"
    )]
    StandbyAway {
        /// The setting that names them.
        standbys: String,
    },
    /// Another worker may have the event by now.
    #[error("the lease was lost")]
    LeaseLost,
    /// A connection could not be opened.
    #[error("could not connect to PostgreSQL")]
    Connect(#[source] BoxError),
    /// JetStream refuses, or does not answer.
    #[error("could not {doing}")]
    JetStream {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// The client's error.
        source: BoxError,
    },
    /// The stream has no durable consumer of this name.
    #[error("stream \"{stream}\" has no consumer \"{consumer}\"")]
    NoConsumer {
        /// The stream.
        stream: String,
        /// The consumer.
        consumer: String,
    },
    /// What was asked for makes no sense as things are.
    #[error("{problem}")]
    Refused {
        /// What stands against it.
        problem: String,
        /// What can be done instead.
        hint: &'static str,
    },
}

impl Error {
    /// That PostgreSQL refused what was being done.
    pub fn sql(doing: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { doing, source }
    }

    pub(crate) fn kept_verdict() -> Self {
        Self::KeptOut { table: "inbox_messages", what: "what became of the event" }
    }

    /// That JetStream refused what was being done.
    pub fn jetstream<E: Into<BoxError>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::JetStream { doing, source: source.into() }
    }

    /// A consumer that would have to be deleted to go back.
    #[must_use]
    pub fn cannot_rewind(stream: &str) -> Self {
        Self::Refused {
            problem: format!(
                "the broker cannot reset the consumer, and deleting it loses messages of stream \
                 \"{stream}\", whose retention is not limits"
            ),
            hint: "NATS 2.14 and later reset a consumer whose deliver_policy is all",
        }
    }

    /// Whether trying again may help without anybody changing anything. What is unknown counts as
    /// such: waiting loses nothing, giving up needs an operator.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::JetStream { .. }
            | Self::KeptOut { .. }
            | Self::LeaseLost
            | Self::Silent { .. }
            | Self::StandbyAway { .. } => true,
            Self::Sql { source, .. } => {
                source.code().is_none_or(|code| !PERMANENT.contains(&&code.code()[..2]))
            }
            Self::Config { .. }
            | Self::Tables { .. }
            | Self::NoConsumer { .. }
            | Self::Refused { .. } => false,
        }
    }

    /// Whether the broker was asked, and gave no answer in time.
    pub(crate) fn is_silence(&self) -> bool {
        let says = |text: &str| text.contains("timed out") || text.contains("has elapsed");
        matches!(self, Self::JetStream { .. }) && says(&servers::describe(self))
    }

    /// In one line, without the details that PostgreSQL adds: they have values in them.
    pub(crate) fn without_data(&self) -> String {
        match self {
            Self::Sql { doing, source } => match source.as_db_error() {
                Some(error) => {
                    format!("could not {doing}: {} ({})", error.message(), error.code().code())
                }
                None => servers::describe(self),
            },
            other => servers::describe(other),
        }
    }

    /// What the operator can do about it, for errors that do not pass by themselves.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Tables { .. } => Some(SET_UP),
            Self::Sql { source, .. } => match *source.code()? {
                SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN => Some(SET_UP),
                SqlState::INSUFFICIENT_PRIVILEGE => Some(
                    "the role needs SELECT, INSERT, UPDATE and DELETE on the tables of the inbox, \
                     and has to own inbox_messages where it is partitioned; row-level security must \
                     not apply to it",
                ),
                _ => None,
            },
            Self::NoConsumer { .. } => Some(
                "`tailpost status` shows the consumers that are known, and `tailpost inbox setup` \
                 creates those of the configuration",
            ),
            Self::Refused { hint, .. } => Some(hint),
            Self::KeptOut { .. } => Some(
                "`tailpost doctor --only inbox-triggers` has the statement that disables the trigger",
            ),
            Self::Config { .. }
            | Self::Connect(_)
            | Self::JetStream { .. }
            | Self::LeaseLost
            | Self::Silent { .. }
            | Self::StandbyAway { .. } => None,
        }
    }
}

const SET_UP: &str = "create the tables of the inbox with `tailpost inbox setup`";

/// Classes of SQLSTATEs that stay until somebody changes a grant, a name or a table.
const PERMANENT: [&str; 5] = ["0A", "28", "3D", "3F", "42"];
