use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::config::authority;

/// Arguments of `console`.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// A relay: http://HOST:PORT. Can be repeated [default: admin.listen]
    ///
    /// Every address behind the name is asked, so a headless Service shows all its pods.
    #[arg(long = "relay-url", value_name = "URL", value_parser = authority)]
    pub(crate) relays: Vec<String>,
    /// An inbox: http://HOST:PORT. Can be repeated [default: admin.inbox_listen]
    #[arg(long = "inbox-url", value_name = "URL", value_parser = authority)]
    pub(crate) inboxes: Vec<String>,
    /// A file with a token for them [default: that of admin.tokens with the lowest role]
    ///
    /// One for all, or one for each, first the relays, then the inboxes. A viewer's is enough: what a
    /// visitor changes is asked for with the visitor's token.
    #[arg(long = "token-file", value_name = "FILE")]
    pub(crate) token_files: Vec<PathBuf>,
    /// Where the console listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9466")]
    pub(crate) listen: SocketAddr,
    /// The path below which a proxy serves it, such as /ops/tailpost
    #[arg(long, value_name = "PATH", default_value = "", value_parser = base_path)]
    pub(crate) base_path: String,
    /// What is shown beside the name [default: metrics.environment]
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Change nothing, whoever asks
    #[arg(long)]
    pub(crate) read_only: bool,
}

fn base_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let is_fit = |it: char| it.is_ascii_alphanumeric() || matches!(it, '/' | '-' | '_' | '.' | '~');
    let is_path = path.is_empty() || path.starts_with('/') && !path.contains("//");
    (is_path && path.chars().all(is_fit))
        .then(|| path.to_owned())
        .ok_or_else(|| "expected a path such as /ops/tailpost".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_path_is_a_path() {
        for (text, path) in [("", ""), ("/", ""), ("/ops/tailpost/", "/ops/tailpost")] {
            assert_eq!(base_path(text).as_deref(), Ok(path));
        }
        for text in ["ops", "/a//b", "/{a}", "/a?b", "//evil"] {
            assert!(base_path(text).is_err(), "{text}");
        }
    }
}
