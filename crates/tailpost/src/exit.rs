//! How the process ends: the error on stderr, once, and a code that scripts can tell apart.

use std::process::ExitCode;

use tokio_postgres::error::SqlState;

use crate::config;
use crate::errors::{ClientError, LacksRights, ListenError, NagiosState, TokenError};
use crate::refusal::{Kind, Refusal};

/// Prints the error with its causes, and what can be done about it.
pub(crate) fn report(error: &anyhow::Error) {
    if error.is::<NagiosState>() {
        return; // told, on the one line that there is
    }
    crate::output::note(&format!("error: {}", chain(error)));
    if let Some(hint) = hint(error) {
        crate::output::note(&format!("hint: {hint}"));
    }
}

/// The code that says what kind of error it was.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    if let Some(state) = error.downcast_ref::<NagiosState>() {
        return ExitCode::from(*state as u8);
    }
    ExitCode::from(kind(error) as u8)
}

/// What kind of error it is.
pub(crate) fn kind(error: &anyhow::Error) -> Kind {
    error.chain().find_map(|cause| told(cause).0).unwrap_or(Kind::Failed)
}

/// What can be done about it.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| told(cause).1)
}

/// What kind of error it is, and what can be done about it, as far as this cause tells.
fn told(cause: &(dyn std::error::Error + 'static)) -> (Option<Kind>, Option<String>) {
    if let Some(it) = cause.downcast_ref::<Refusal>() {
        (Some(it.kind), it.hint.clone())
    } else if let Some(it) = cause.downcast_ref::<config::Error>() {
        (Some(Kind::BadConfiguration), it.hint().map(str::to_owned))
    } else if cause.is::<TokenError>() {
        (Some(Kind::BadConfiguration), None)
    } else if let Some(it) = cause.downcast_ref::<ListenError>() {
        (Some(Kind::Refused), Some(it.hint()))
    } else if let Some(it) = cause.downcast_ref::<LacksRights>() {
        (None, Some(it.hint()))
    } else if let Some(it) = cause.downcast_ref::<relay::Error>() {
        (Some(relay_kind(it)), it.hint())
    } else if let Some(it) = cause.downcast_ref::<inbox::Error>() {
        (inbox_kind(it), it.hint().map(Into::into))
    } else if let Some(it) = cause.downcast_ref::<ClientError>() {
        (Some(client_kind(it)), it.hint())
    } else if let Some(it) = cause.downcast_ref::<servers::Error>() {
        (Some(connect_kind(it)), it.hint())
    } else {
        (None, None)
    }
}

fn relay_kind(error: &relay::Error) -> Kind {
    match error {
        relay::Error::Connect(error) => connect_kind(error),
        relay::Error::NotSetUp { .. }
        | relay::Error::NoDeadLetter { .. }
        | relay::Error::NoReplay { .. } => Kind::NotFound,
        relay::Error::SlotBusy { .. }
        | relay::Error::NoLogicalDecoding { .. }
        | relay::Error::PublicationChanged { .. }
        | relay::Error::Unusable { .. }
        | relay::Error::Conflict(_)
        | relay::Error::Refused(_)
        | relay::Error::Table(_)
        | relay::Error::Migrate(outbox::Error::Refused(_)) => Kind::Refused,
        other if other.is_forbidden() => Kind::Refused,
        // What passes by itself is an outage, and what does not is a failure.
        other if other.is_transient() => Kind::Unreachable,
        _ => Kind::Failed,
    }
}

/// None if the cause tells.
fn inbox_kind(error: &inbox::Error) -> Option<Kind> {
    match error {
        inbox::Error::Config { .. } => Some(Kind::BadConfiguration),
        inbox::Error::Tables { .. } | inbox::Error::NoConsumer { .. } => Some(Kind::NotFound),
        inbox::Error::Refused { .. } => Some(Kind::Refused),
        inbox::Error::JetStream { .. } => Some(Kind::Unreachable),
        inbox::Error::Sql { source, .. } if source.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            Some(Kind::NotFound)
        }
        inbox::Error::Sql { .. } if error.is_transient() => Some(Kind::Unreachable),
        inbox::Error::Sql { .. } => Some(Kind::Refused),
        _ => None,
    }
}

fn client_kind(error: &ClientError) -> Kind {
    match error {
        ClientError::Off { .. } | ClientError::Unreachable { .. } => Kind::Unreachable,
        ClientError::Silent { .. } => Kind::TimedOut,
        ClientError::Refused { status, .. } => match status.as_u16() {
            400 | 401 | 403 | 409 | 422 => Kind::Refused,
            404 => Kind::NotFound,
            503 => Kind::Unreachable,
            504 => Kind::TimedOut,
            _ => Kind::Failed,
        },
    }
}

fn connect_kind(error: &servers::Error) -> Kind {
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
