//! How the process ends: the error on stderr, once, and a code that scripts can tell apart.

use std::process::ExitCode;

use tokio_postgres::error::SqlState;

use crate::config;
use crate::errors::{ClientError, LacksRights, ListenError, NagiosState, TokenError};
use crate::refusal::{Ending, Kind, Refusal};

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
    error.chain().find_map(|cause| ending(cause)?.kind()).unwrap_or(Kind::Failed)
}

/// What can be done about it.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| ending(cause)?.hint())
}

type Cause = dyn std::error::Error + 'static;
type Downcast = fn(&Cause) -> Option<&dyn Ending>;

/// The cause, if it is one of the errors that say how they end.
fn ending(cause: &Cause) -> Option<&dyn Ending> {
    fn of<T: Ending + std::error::Error + 'static>(cause: &Cause) -> Option<&dyn Ending> {
        cause.downcast_ref::<T>().map(|it| it as &dyn Ending)
    }
    let all: [Downcast; 9] = [
        of::<Refusal>,
        of::<config::Error>,
        of::<TokenError>,
        of::<ListenError>,
        of::<LacksRights>,
        of::<ClientError>,
        of::<relay::Error>,
        of::<inbox::Error>,
        of::<servers::Error>,
    ];
    all.iter().find_map(|of| of(cause))
}

impl Ending for relay::Error {
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Connect(error) => return error.kind(),
            Self::NotSetUp { .. } | Self::NoDeadLetter { .. } | Self::NoReplay { .. } => {
                Kind::NotFound
            }
            Self::SlotBusy { .. }
            | Self::NoLogicalDecoding { .. }
            | Self::PublicationChanged { .. }
            | Self::Unusable { .. }
            | Self::Conflict(_)
            | Self::Refused(_)
            | Self::Table(_)
            | Self::Migrate(outbox::Error::Refused(_)) => Kind::Refused,
            other if other.is_forbidden() => Kind::Refused,
            // What passes by itself is an outage, and what does not is a failure.
            other if other.is_transient() => Kind::Unreachable,
            _ => Kind::Failed,
        })
    }

    fn hint(&self) -> Option<String> {
        Self::hint(self)
    }
}

impl Ending for inbox::Error {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Config { .. } => Some(Kind::BadConfiguration),
            Self::Tables { .. } | Self::NoConsumer { .. } => Some(Kind::NotFound),
            Self::Refused { .. } => Some(Kind::Refused),
            Self::JetStream { .. } => Some(Kind::Unreachable),
            Self::Sql { source, .. } if source.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                Some(Kind::NotFound)
            }
            Self::Sql { .. } if self.is_transient() => Some(Kind::Unreachable),
            Self::Sql { .. } => Some(Kind::Refused),
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        Self::hint(self).map(Into::into)
    }
}

impl Ending for servers::Error {
    fn kind(&self) -> Option<Kind> {
        Some(if self.is_configuration() {
            Kind::BadConfiguration
        } else if self.is_transient() && !self.is_refusal() {
            Kind::Unreachable
        } else {
            Kind::Refused
        })
    }

    fn hint(&self) -> Option<String> {
        Self::hint(self)
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
