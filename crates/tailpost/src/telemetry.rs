//! Logging to stderr, as text or as JSON lines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::config::{Error, LogFormat, Origin};

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// Warnings and errors, but for those about the fitness of servers that are thrown away.
    Demo,
    /// What an operator wants to know.
    Normal,
    /// What helps to find a fault.
    Verbose,
    /// The libraries' own messages too.
    Everything,
}

impl Verbosity {
    /// What `demo` logs, unless asked for more: it says itself what happens.
    pub(crate) fn of_demo(self) -> Self {
        if self == Self::Normal { Self::Demo } else { self }
    }
}

/// Filters that replace the one which follows from the verbosity.
const VARIABLE: &str = "TAILPOST_LOG";

/// Sets up logging for the whole process.
///
/// # Errors
///
/// Fails if `TAILPOST_LOG` is not a list of filters.
pub(crate) fn init(format: LogFormat, verbosity: Verbosity) -> Result<(), Error> {
    let asked = std::env::var(VARIABLE).ok().filter(|it| !it.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(asked.as_deref(), verbosity)?)
        .with_writer(std::io::stderr)
        .with_target(verbosity == Verbosity::Everything);
    match format {
        LogFormat::Text => builder.with_ansi(use_colour()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
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
        Verbosity::Demo => {
            "warn,async_nats=off,pgwire_replication=off,tailpost_relay::broker::fitness=error"
        }
        Verbosity::Verbose => "info,async_nats=off,tailpost=debug,tailpost_relay=debug",
        Verbosity::Everything => "debug",
    });
    let filter = EnvFilter::builder()
        .parse(directives)
        .map_err(|error| Error::new(Origin::Variable(VARIABLE.into()), error.to_string()))?;
    // Below this level the SQL client logs the parameters of statements: payloads among them.
    let ceiling: Directive = "tokio_postgres=info".parse().expect("a valid directive");
    Ok(filter.add_directive(ceiling))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_lets_payloads_through() {
        for asked in [None, Some("trace"), Some("debug,tokio_postgres=trace")] {
            let filter = filter(asked, Verbosity::Everything).expect("valid").to_string();
            assert!(filter.contains("tokio_postgres=info"), "{filter}");
            assert!(!filter.contains("tokio_postgres=trace"), "{filter}");
        }
    }

    #[test]
    fn a_wrong_filter_is_an_error() {
        let error = filter(Some("tailpost=loud"), Verbosity::Normal).expect_err("no level");
        assert!(error.to_string().starts_with("TAILPOST_LOG: "), "{error}");
    }
}
