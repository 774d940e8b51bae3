use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::removed;

/// Where a setting was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A line of a file, counted from one.
    File(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// A command-line flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The configuration cannot be used. Never repeats the value of a secret.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", origin.as_ref().map(|it| format!("{it}: ")).unwrap_or_default())]
pub(crate) struct Error {
    origin: Option<Origin>,
    problem: String,
    hint: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// `problem` must not repeat the value of a secret.
    pub(crate) fn new(origin: Origin, problem: impl Into<String>) -> Self {
        Self::about(Some(origin), problem)
    }

    /// As [`new`](Self::new), for what may come from several places or none.
    pub(super) fn about(origin: Option<Origin>, problem: impl Into<String>) -> Self {
        Self { origin, problem: problem.into(), hint: None, source: None }
    }

    /// A setting that earlier versions had, or this text as its value.
    pub(super) fn removed(origin: &Origin, path: &str, text: Option<&str>) -> Option<Self> {
        let instead = removed::instead_of(path, text)?;
        let what = match text {
            Some(text) if removed::instead_of(path, None).is_none() => {
                format!("{path} = \"{text}\"")
            }
            _ => path.to_owned(),
        };
        let problem = format!("`{what}` is gone");
        Some(Self::new(origin.clone(), problem).with_hint(Some(instead.to_owned())))
    }

    pub(crate) fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    pub(super) fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    pub(super) fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    pub(super) fn unreadable(path: &std::path::Path, source: std::io::Error) -> Self {
        let problem = format!("could not read {}", path.display());
        Self { source: Some(source.into()), ..Self::about(None, problem) }
    }

    pub(super) fn open_admin(origin: Option<Origin>, key: &str, listen: SocketAddr) -> Self {
        let problem = format!("{key}: {listen} is reachable from other machines");
        let hint = "set admin.token or admin.tokens, or listen on 127.0.0.1, or turn it off with \
                    \"off\"";
        Self::about(origin, problem).with_hint(Some(hint.into()))
    }

    pub(crate) fn no_consumer() -> Self {
        let hint = "give --consumer NAME --handler URL, or write [inbox.NAME] with its handler into \
                    tailpost.toml";
        Self::about(None, "no consumer is configured").with_hint(Some(hint.into()))
    }

    pub(crate) fn no_handler(consumer: &str) -> Self {
        let hint = format!("give --handler URL, or set inbox.{consumer}.handler");
        Self::about(None, format!("consumer {consumer} has no handler")).with_hint(Some(hint))
    }

    /// A handler's options that do not make one.
    pub(crate) fn handler(
        origin: Option<Origin>,
        consumer: &str,
        source: inbox::http::HttpError,
    ) -> Self {
        Self::about(origin, format!("consumer {consumer}: {source}"))
    }
}

/// The candidate that `given` was most likely meant to be.
pub(super) fn closest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .into_iter()
        // Not `jaro_winkler`: all of our names begin alike.
        .map(|it| (strsim::normalized_damerau_levenshtein(given, it), it))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, it)| it)
}
