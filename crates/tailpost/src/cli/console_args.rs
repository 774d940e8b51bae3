use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

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

/// The name and the port of an API. It has no TLS.
pub(super) fn authority(text: &str) -> Result<String, String> {
    let wanted = || "expected http://HOST:PORT".to_owned();
    if text.starts_with("https://") {
        return Err("the relay and the inbox serve http; reach a proxy's backend itself".into());
    }
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = rest.rsplit_once(':').ok_or_else(wanted)?;
    let is_fit = !host.is_empty() && !rest.contains(['/', '@', ' ']) && port.parse::<u16>().is_ok();
    is_fit.then(|| rest.to_owned()).ok_or_else(wanted)
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
    fn an_api_has_a_name_and_a_port() {
        for text in ["http://relay:9464", "relay:9464", "http://relay:9464/"] {
            assert_eq!(authority(text).as_deref(), Ok("relay:9464"), "{text}");
        }
        assert_eq!(authority("http://[::1]:9464").as_deref(), Ok("[::1]:9464"));
        for text in ["https://relay:443", "http://a@b:1", "relay", "http://h:1/x", ":1", "h:x"] {
            assert!(authority(text).is_err(), "{text}");
        }
    }

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
