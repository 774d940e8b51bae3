//! What a console is told when it starts.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::HeaderName;

/// What a console shows, and to whom.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What is shown beside the name, such as `shop-production`.
    pub title: String,
    /// Relays and inboxes. Several may stand behind one name.
    pub upstreams: Vec<Upstream>,
    /// The path below which a proxy serves the pages: empty, or such as `/ops/tailpost`.
    pub base_path: String,
    /// A proxy that says who asks.
    pub proxy: Option<Proxy>,
    /// Nothing can be changed here, whoever asks.
    pub read_only: bool,
    /// The pages are a relay's own: they must cost it little.
    pub is_guest: bool,
}

/// Whose API is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `tailpost relay`.
    Relay,
    /// `tailpost inbox run`.
    Inbox,
}

/// Where an API is, and what it is asked with.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Whose it is.
    pub kind: Kind,
    /// A name or an address, and a port. Every address behind the name is asked.
    pub authority: String,
    /// What it is asked with.
    pub credential: Credential,
}

/// What an API is asked with.
#[derive(Clone, Default)]
pub enum Credential {
    /// It is open to this machine.
    #[default]
    None,
    /// A file with a token. It is read again for each request.
    File(PathBuf),
    /// A token that only this process knows.
    Token(Arc<str>),
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
            Self::Token(_) => f.write_str("Token"),
        }
    }
}

/// A proxy in front of the console that knows the users.
#[derive(Clone)]
pub struct Proxy {
    /// Whether a request from this address comes from the proxy.
    pub trusts: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// The header with the user's name.
    pub user_header: HeaderName,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("user_header", &self.user_header).finish_non_exhaustive()
    }
}

impl Settings {
    /// Whether a visitor has to show a token. Without any credential the upstreams are open to
    /// everybody who reaches them, and so is the console: then only this machine may reach it.
    #[must_use]
    pub fn needs_sign_in(&self) -> bool {
        self.proxy.is_none() && self.has_credentials()
    }

    /// Whether an upstream is asked with a token.
    pub(crate) fn has_credentials(&self) -> bool {
        self.upstreams.iter().any(|it| !matches!(it.credential, Credential::None))
    }

    /// Whether anybody who reaches the port may do everything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.proxy.is_none() && !self.needs_sign_in()
    }
}
