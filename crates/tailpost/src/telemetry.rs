//! Logging to stderr, as text or as JSON lines.

pub(crate) mod lines;
mod repeats;

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use self::lines::Lines;
use self::repeats::Repeats;
use crate::config::{Error, LogFormat, Origin};

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Warnings and errors.
    Quiet,
    #[cfg(feature = "lab")]
    /// Warnings and errors, but for those about the configuration of servers that are thrown away.
    Demo,
    /// What an operator wants to know.
    Normal,
    /// What helps to find a fault.
    Verbose,
    /// The libraries' own messages too.
    Everything,
}

impl Verbosity {
    /// What `status` logs, unless asked for more: that it connected is no news.
    pub(crate) fn of_status(self) -> Self {
        if self == Self::Normal { Self::Quiet } else { self }
    }

    #[cfg(feature = "lab")]
    /// What `demo` logs, unless asked for more: it says itself what happens.
    pub(crate) fn of_demo(self) -> Self {
        if self == Self::Normal { Self::Demo } else { self }
    }
}

/// Filters that replace the one which follows from the verbosity.
const VARIABLE: &str = "TAILPOST_LOG";

/// What was logged so far.
static REPEATS: OnceLock<Repeats> = OnceLock::new();

/// Sets up logging for the whole process.
///
/// # Errors
///
/// Fails if `TAILPOST_LOG` is not a list of filters.
pub(crate) fn init(format: LogFormat, verbosity: Verbosity) -> Result<(), Error> {
    let asked = std::env::var(VARIABLE).ok().filter(|it| !it.is_empty());
    let lines = fmt::layer().with_writer(|| Lines).with_target(verbosity == Verbosity::Everything);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(use_colour()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let repeats = REPEATS.get_or_init(Repeats::default);
    tracing_subscriber::registry()
        .with(filter(asked.as_deref(), verbosity)?)
        .with(filter_fn(is_harmless))
        .with(lines.with_filter(repeats))
        .init();
    // Without it lines are left out all the same, and nobody says how many.
    let _ = std::thread::Builder::new().name("log".into()).spawn(|| repeats.tell());
    Ok(())
}

/// Says how many lines were left out: nothing is logged any more. Waits until all is written, for a
/// bounded time.
pub(crate) fn finish() {
    if let Some(repeats) = REPEATS.get() {
        repeats.tell_rest();
    }
    lines::flush();
}

/// As [`finish`], at the end of a scope, also of one that panics.
pub(crate) struct Finish;

impl Drop for Finish {
    fn drop(&mut self) {
        finish();
    }
}

fn use_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}

fn filter(asked: Option<&str>, verbosity: Verbosity) -> Result<EnvFilter, Error> {
    let directives = asked.unwrap_or(match verbosity {
        // Both clients report by their own account what we report with more context, and as errors
        // what is worked through.
        Verbosity::Quiet => "warn,async_nats=off,pgwire_replication=off",
        Verbosity::Normal => "info,async_nats=off,pgwire_replication=off",
        #[cfg(feature = "lab")]
        Verbosity::Demo => {
            "warn,async_nats=off,pgwire_replication=off,tailpost_relay::nats::stream_check=error"
        }
        Verbosity::Verbose => {
            "info,async_nats=off,tailpost=debug,operate=debug,inbox=debug,servers=debug"
        }
        Verbosity::Everything => "debug",
    });
    EnvFilter::builder()
        .parse(directives)
        .map_err(|error| Error::new(Origin::Variable(VARIABLE.into()), error.to_string()))
}

/// Holds back what the clients log of payloads and credentials, whatever is asked for.
fn is_harmless(metadata: &Metadata<'_>) -> bool {
    most_verbose(metadata.target()).is_none_or(|it| *metadata.level() <= it)
}

/// How far a client's own messages can be let through.
fn most_verbose(target: &str) -> Option<Level> {
    // Statements with their parameters.
    let sql = target.starts_with("tokio_postgres");
    // Whole answers, messages of the stream among them.
    let jetstream = target.starts_with("async_nats::jetstream");
    if sql || jetstream {
        return Some(Level::INFO);
    }
    // What goes over the wire: the password, then everything else.
    target.starts_with("async_nats").then_some(Level::DEBUG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_and_passwords_are_held_back() {
        for (target, level) in [
            ("tokio_postgres::query", Some(Level::INFO)),
            ("async_nats::jetstream::context", Some(Level::INFO)),
            ("async_nats::connection", Some(Level::DEBUG)),
            ("tailpost_relay::session", None),
        ] {
            assert_eq!(most_verbose(target), level, "{target}");
        }
    }

    #[test]
    fn a_wrong_filter_is_an_error() {
        let error = filter(Some("tailpost=loud"), Verbosity::Normal).expect_err("no level");
        assert!(error.to_string().starts_with("TAILPOST_LOG: "), "{error}");
    }
}
