//! How the process ends: the error on stderr, once, and a code that scripts can tell apart.

use std::process::ExitCode;

use relay::connect;
use tokio_postgres::error::SqlState;

use crate::config;
use crate::errors::{ApiError, DlqError, ListenError};
use crate::refusal::Refusal;

const FAILED: u8 = 1;
pub(crate) const NOT_FOUND: u8 = 3;
pub(crate) const REFUSED: u8 = 4;
pub(crate) const UNREACHABLE: u8 = 5;
const TIMED_OUT: u8 = 6;
const BAD_CONFIGURATION: u8 = 78;

/// Prints the error with its causes, and what can be done about it.
pub(crate) fn report(error: &anyhow::Error) {
    crate::output::note(&format!("error: {}", chain(error)));
    if let Some(hint) = hint(error) {
        crate::output::note(&format!("hint: {hint}"));
    }
}

/// The code that says what kind of error it was.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(number(error))
}

/// The code as a number.
pub(crate) fn number(error: &anyhow::Error) -> u8 {
    error.chain().find_map(kind).unwrap_or(FAILED)
}

fn kind(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if error.is::<config::Error>() {
        return Some(BAD_CONFIGURATION);
    }
    if error.is::<ListenError>() {
        return Some(REFUSED);
    }
    if let Some(error) = error.downcast_ref::<Refusal>() {
        return Some(if error.not_found { NOT_FOUND } else { REFUSED });
    }
    if let Some(error) = error.downcast_ref::<relay::Error>() {
        return Some(relay_kind(error));
    }
    if let Some(error) = error.downcast_ref::<inbox::Error>() {
        return inbox_kind(error);
    }
    if let Some(error) = error.downcast_ref::<ApiError>() {
        return Some(api_kind(error));
    }
    if let Some(error) = error.downcast_ref::<DlqError>() {
        return Some(if matches!(error, DlqError::NotYet { .. }) { TIMED_OUT } else { REFUSED });
    }
    error.downcast_ref::<connect::Error>().map(connect_kind)
}

fn relay_kind(error: &relay::Error) -> u8 {
    match error {
        relay::Error::Connect(error) => connect_kind(error),
        relay::Error::NotSetUp { .. } | relay::Error::NoDeadLetter { .. } => NOT_FOUND,
        relay::Error::SlotBusy { .. }
        | relay::Error::SlotForeign { .. }
        | relay::Error::SlotElsewhere { .. }
        | relay::Error::Stream { .. }
        | relay::Error::Publication { .. }
        | relay::Error::PublicationChanged { .. }
        | relay::Error::Shards { .. }
        | relay::Error::Conflict(_)
        | relay::Error::Refused(_)
        | relay::Error::Table(_) => REFUSED,
        other if other.is_forbidden() => REFUSED,
        // What passes by itself is an outage, and what does not is a failure.
        other if other.is_transient() => UNREACHABLE,
        _ => FAILED,
    }
}

/// None if the cause tells.
fn inbox_kind(error: &inbox::Error) -> Option<u8> {
    match error {
        inbox::Error::Config { .. } => Some(BAD_CONFIGURATION),
        inbox::Error::Tables { .. } => Some(NOT_FOUND),
        inbox::Error::Consumer { .. } => Some(REFUSED),
        inbox::Error::JetStream { .. } => Some(UNREACHABLE),
        inbox::Error::Sql { source, .. } if source.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            Some(NOT_FOUND)
        }
        inbox::Error::Sql { .. } if error.is_transient() => Some(UNREACHABLE),
        inbox::Error::Sql { .. } => Some(REFUSED),
        _ => None,
    }
}

fn api_kind(error: &ApiError) -> u8 {
    match error {
        ApiError::Off | ApiError::Unreachable { .. } => UNREACHABLE,
        ApiError::Silent { .. } => TIMED_OUT,
        ApiError::Refused { status, .. } => match status.as_u16() {
            400 | 401 | 409 | 422 => REFUSED,
            404 => NOT_FOUND,
            503 => UNREACHABLE,
            504 => TIMED_OUT,
            _ => FAILED,
        },
    }
}

fn connect_kind(error: &connect::Error) -> u8 {
    if error.is_configuration() {
        BAD_CONFIGURATION
    } else if error.is_transient() {
        UNREACHABLE
    } else {
        REFUSED
    }
}

/// What can be done about it.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<config::Error>() {
            return error.hint().map(str::to_owned);
        }
        if let Some(error) = cause.downcast_ref::<ListenError>() {
            return Some(error.hint());
        }
        if let Some(error) = cause.downcast_ref::<Refusal>() {
            return error.hint();
        }
        if let Some(error) = cause.downcast_ref::<relay::Error>() {
            return error.hint();
        }
        if let Some(hint) = cause.downcast_ref::<inbox::Error>().and_then(inbox::Error::hint) {
            return Some(hint.into());
        }
        if let Some(error) = cause.downcast_ref::<ApiError>() {
            return error.hint();
        }
        cause.downcast_ref::<connect::Error>().and_then(connect::Error::hint)
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
        error.into().chain().find_map(kind).unwrap_or(FAILED)
    }

    fn unreachable_nats() -> connect::Error {
        connect::Error::Nats {
            target: "nats://localhost:4222".into(),
            source: async_nats::ConnectError::with_source(
                async_nats::ConnectErrorKind::Io,
                "connection refused",
            ),
        }
    }

    #[test]
    fn kinds_of_errors_have_their_codes() {
        let invalid = "nats://".parse::<relay::NatsTarget>().expect_err("no host");
        assert_eq!(code_of(invalid), 78);
        assert_eq!(code_of(unreachable_nats()), 5);
        assert_eq!(code_of(anyhow::anyhow!("anything else")), 1);
        let refused = connect::Error::Nats {
            target: "nats://localhost:4222".into(),
            source: async_nats::ConnectErrorKind::AuthorizationViolation.into(),
        };
        assert_eq!(code_of(refused), 4);
        assert_eq!(code_of(relay::Error::from(unreachable_nats())), 5);
        assert_eq!(code_of(relay::Error::NotSetUp { missing: "table a".into() }), 3);
        assert_eq!(code_of(relay::Error::SlotBusy { slot: "tailpost".into() }), 4);
    }

    #[test]
    fn context_hides_neither_code_nor_hint() {
        let error = Err::<(), _>(unreachable_nats()).context("while setting up").expect_err("it");
        assert_eq!(error.chain().find_map(kind), Some(5));
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
