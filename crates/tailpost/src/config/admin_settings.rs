//! `[admin]`: where the HTTP server listens, and whom it lets in.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use axum::http::HeaderName;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::forms::{BearerToken, OrOff, Word, form};

/// What a caller may do. Each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Reads, but for payloads and the configuration.
    Viewer,
    /// Reads payloads; decides about dead letters, consumers and replays.
    Operator,
    /// Reads the configuration.
    Admin,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = [Self::Viewer, Self::Operator, Self::Admin].into_iter();
        found.into_iter().find(|it| it.name() == text).ok_or("viewer, operator or admin")
    }
}

/// A token in a file, and what it is good for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct TokenFile {
    pub(crate) file: PathBuf,
    pub(crate) role: Role,
}

impl TryFrom<Json> for TokenFile {
    type Error = &'static str;

    fn try_from(value: Json) -> Result<Self, Self::Error> {
        let text = |name| value.get(name).and_then(Json::as_str).filter(|it| !it.is_empty());
        let role = text("role").and_then(|it| it.parse().ok());
        let has_more = value.as_object().is_none_or(|it| it.len() != 2);
        text("file")
            .zip(role)
            .filter(|_| !has_more)
            .map(|(file, role)| Self { file: file.into(), role })
            .ok_or(
                "{ file = \"PATH\", role = \"viewer\" }, or operator, or admin; in the environment \
             ROLE:PATH,ROLE:PATH",
            )
    }
}

/// Addresses with the same prefix, as in `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// Whether the address is one of them. An IPv4 address in IPv6's form is the IPv4 address.
    pub(crate) fn has(self, address: IpAddr) -> bool {
        let (ours, theirs) = (self.address, address.to_canonical());
        let number = |it: IpAddr| match it {
            IpAddr::V4(it) => u128::from(u32::from(it)) << 96,
            IpAddr::V6(it) => it.into(),
        };
        let prefix = |it| number(it).checked_shr(128 - self.bits).unwrap_or(0);
        ours.is_ipv4() == theirs.is_ipv4() && prefix(ours) == prefix(theirs)
    }
}

impl TryFrom<Json> for Network {
    type Error = &'static str;

    fn try_from(value: Json) -> Result<Self, Self::Error> {
        value.as_str().unwrap_or_default().parse()
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = "addresses such as \"10.1.2.3\" or \"10.0.0.0/8\"";
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address = address.parse::<IpAddr>().map_err(|_| wanted)?.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wanted)?;
        if bits > most { Err(wanted) } else { Ok(Self { address, bits }) }
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdminSettings {
    pub(crate) listen: OrOff<SocketAddr>,
    /// The same for `inbox run`, which may be on the machine of a relay.
    pub(crate) inbox_listen: OrOff<SocketAddr>,
    /// Good for everything.
    pub(crate) token: Option<BearerToken>,
    #[serde(default)]
    pub(crate) tokens: Vec<TokenFile>,
    /// Where a proxy is that says who asks. No other sender of its headers is believed.
    #[serde(default)]
    pub(crate) trusted_proxy: Vec<Network>,
    /// The header with the user's name.
    pub(crate) proxy_user_header: Header,
    /// The header with the user's role, if the proxy sends one.
    pub(crate) proxy_role_header: Option<Header>,
    /// The role of users without that header.
    pub(crate) proxy_role: Word<Role>,
}

impl AdminSettings {
    /// Whether a request needs a token or a trusted proxy.
    pub(crate) fn is_closed(&self) -> bool {
        self.token.is_some() || !self.tokens.is_empty() || !self.trusted_proxy.is_empty()
    }

    /// The token that commands send: the one that is good for most.
    pub(crate) fn own_token(&self) -> Option<String> {
        let read = |it: &TokenFile| {
            let token = std::fs::read_to_string(&it.file).ok()?;
            let token = token.trim();
            (!token.is_empty()).then(|| token.to_owned())
        };
        let mut files: Vec<_> = self.tokens.iter().collect();
        files.sort_by_key(|it| std::cmp::Reverse(it.role));
        self.token.clone().map(|it| it.0).or_else(|| files.into_iter().find_map(read))
    }
}

form!(
    /// The name of a header.
    Header(String),
    "the name of a header, such as \"X-Forwarded-User\"",
    |it| it.as_str().filter(|it| it.parse::<HeaderName>().is_ok()).map(str::to_owned)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        for (network, address, is_in) in [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:9::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "10.0.0.1", false),
        ] {
            let parsed: Network = network.parse().expect(network);
            assert_eq!(
                parsed.has(address.parse().expect("an address")),
                is_in,
                "{network} {address}"
            );
        }
        for text in ["", "10.0.0.0/33", "10.0.0", "example.com", "10.0.0.0/-1", "::/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn roles_are_ordered_by_what_they_may_do() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        assert!("root".parse::<Role>().is_err());
    }
}
