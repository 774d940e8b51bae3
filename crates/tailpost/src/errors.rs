//! How commands and requests end without success: what kind of error it is, what helps, and what is
//! printed.

use std::process::ExitCode;

use tokio_postgres::error::SqlState;

use crate::config;

/// What scripts can tell apart. The number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Failed = 1,
    NotFound = 3,
    Refused = 4,
    Unreachable = 5,
    TimedOut = 6,
    BadConfiguration = 78,
}

/// What a plugin of Nagios says. The number is its exit code.
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

/// Why nothing was done, and what can be done instead.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Refusal {
    /// `None` if the source has a kind.
    kind: Option<Kind>,
    problem: String,
    hint: Option<String>,
    pub(crate) source: Option<anyhow::Error>,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, problem: impl Into<String>) -> Self {
        Self { kind: Some(kind), problem: problem.into(), hint: None, source: None }
    }

    pub(crate) fn not_found(problem: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, problem)
    }

    pub(crate) fn conflict(problem: impl Into<String>) -> Self {
        Self::new(Kind::Refused, problem)
    }

    pub(crate) fn timed_out(problem: impl Into<String>) -> Self {
        Self::new(Kind::TimedOut, problem)
    }

    /// A command has done one side. The role lacks these rights on the other, `outbox` or `inbox`.
    pub(crate) fn lacks_rights(of: &str, rights: &str, source: anyhow::Error) -> Self {
        let problem = format!("the role lacks rights on the tables of the {of}");
        let hint = format!(
            "run the command as the owner of the tables, or GRANT {rights} on all tables of the \
             {of}, which docs/security.md names"
        );
        Self { kind: None, problem, hint: Some(hint), source: Some(source) }
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn because(self, source: impl Into<anyhow::Error>) -> Self {
        Self { source: Some(source.into()), ..self }
    }
}

/// Prints the error with its causes, and what can be done about it.
pub(crate) fn report(error: &anyhow::Error) {
    if error.is::<NagiosState>() {
        return; // the line that was printed has it
    }
    crate::output::note(&format!("error: {}", chain(error)));
    if let Some(hint) = hint(error) {
        crate::output::note(&format!("hint: {hint}"));
    }
}

/// The exit code.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    let nagios = error.downcast_ref().map(|it: &NagiosState| *it as u8);
    ExitCode::from(nagios.unwrap_or(kind(error) as u8))
}

/// The kind that the outermost of the causes names that names one.
pub(crate) fn kind(error: &anyhow::Error) -> Kind {
    error.chain().find_map(|cause| ending(cause)?.0).unwrap_or(Kind::Failed)
}

/// What can be done about it.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| ending(cause)?.1)
}

/// The kind and the hint of a cause, if it is one of the errors that have them.
fn ending(cause: &(dyn std::error::Error + 'static)) -> Option<(Option<Kind>, Option<String>)> {
    if let Some(it) = cause.downcast_ref::<Refusal>() {
        return Some((it.kind, it.hint.clone()));
    }
    if let Some(it) = cause.downcast_ref::<config::Error>() {
        return Some((Some(Kind::BadConfiguration), it.hint()));
    }
    if let Some(it) = cause.downcast_ref::<relay::Error>() {
        return Some((Some(of_relay(it)), it.hint()));
    }
    if let Some(it) = cause.downcast_ref::<inbox::Error>() {
        return Some((of_inbox(it), it.hint().map(Into::into)));
    }
    cause.downcast_ref::<servers::Error>().map(|it| (Some(of_servers(it)), it.hint()))
}

fn of_relay(error: &relay::Error) -> Kind {
    use relay::Error as E;
    match error {
        E::Connect(error) => of_servers(error),
        E::NotSetUp { .. } | E::NoDeadLetter { .. } | E::NoReplay { .. } => Kind::NotFound,
        E::SlotBusy { .. }
        | E::NoLogicalDecoding { .. }
        | E::PublicationChanged { .. }
        | E::Unusable { .. }
        | E::Conflict(_)
        | E::Refused(_)
        | E::Table(_)
        | E::Migrate(outbox::Error::Refused(_)) => Kind::Refused,
        other if other.is_forbidden() => Kind::Refused,
        // A transient error is an outage, and any other is a failure.
        other if other.is_transient() => Kind::Unreachable,
        _ => Kind::Failed,
    }
}

fn of_inbox(error: &inbox::Error) -> Option<Kind> {
    use inbox::Error as E;
    let missing = [&SqlState::UNDEFINED_TABLE, &SqlState::UNDEFINED_COLUMN];
    let is_missing = |it: &tokio_postgres::Error| it.code().is_some_and(|it| missing.contains(&it));
    match error {
        E::Config { .. } => Some(Kind::BadConfiguration),
        E::Tables { .. } | E::NoConsumer { .. } => Some(Kind::NotFound),
        E::Refused { .. } => Some(Kind::Refused),
        E::JetStream { .. } => Some(Kind::Unreachable),
        E::Sql { source, .. } if is_missing(source) => Some(Kind::NotFound),
        E::Sql { .. } if error.is_transient() => Some(Kind::Unreachable),
        E::Sql { .. } => Some(Kind::Refused),
        _ => None,
    }
}

fn of_servers(error: &servers::Error) -> Kind {
    if error.is_configuration() {
        Kind::BadConfiguration
    } else if error.is_transient() && !error.is_refusal() {
        Kind::Unreachable
    } else {
        Kind::Refused
    }
}

/// Whether PostgreSQL refused something for lack of rights.
pub(crate) fn is_forbidden(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<relay::Error>().is_some_and(relay::Error::is_forbidden)
            || cause.downcast_ref::<tokio_postgres::Error>().and_then(|it| it.code())
                == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
    })
}

/// Joins the causes. Some libraries repeat the cause in their own text: that is left out.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn code_of(error: impl Into<anyhow::Error>) -> u8 {
        kind(&error.into()) as u8
    }

    fn unreachable_nats() -> servers::Error {
        servers::Error::Nats {
            target: "nats://localhost:4222".into(),
            source: async_nats::ConnectError::with_source(
                async_nats::ConnectErrorKind::Io,
                "connection refused",
            ),
            renewed: servers::Renewed::default(),
        }
    }

    #[test]
    fn kinds_of_errors_have_their_codes() {
        let invalid = "nats://".parse::<servers::NatsTarget>().expect_err("no host");
        assert_eq!(code_of(invalid), 78);
        assert_eq!(code_of(unreachable_nats()), 5);
        assert_eq!(code_of(anyhow::anyhow!("anything else")), 1);
        let refused = servers::Error::Nats {
            target: "nats://localhost:4222".into(),
            source: async_nats::ConnectErrorKind::AuthorizationViolation.into(),
            renewed: servers::Renewed { login: Some("nats.creds"), ..servers::Renewed::default() },
        };
        assert_eq!(code_of(refused), 4);
        assert_eq!(code_of(relay::Error::from(unreachable_nats())), 5);
        assert_eq!(code_of(relay::Error::NotSetUp { missing: "table a".into() }), 3);
        assert_eq!(code_of(relay::Error::SlotBusy { slot: "tailpost".into() }), 4);
    }

    #[test]
    fn context_hides_neither_code_nor_hint() {
        let error = Err::<(), _>(unreachable_nats()).context("while setting up").expect_err("it");
        assert_eq!(kind(&error), Kind::Unreachable);
        assert!(hint(&error).expect("a hint").contains("NATS server"));
    }

    #[test]
    fn no_cause_is_printed_twice() {
        let error = anyhow::Error::from(unreachable_nats());
        assert_eq!(
            chain(&error),
            "could not connect to nats://localhost:4222: IO error: connection refused"
        );
    }
}
