//! Who asks for a page.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};

use crate::client::Token;
use crate::problem::Problem;
use crate::sessions::Role;

/// The address at which a request came from. Whoever serves the router sets it.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Which colours a visitor wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Theme {
    /// Those of the system.
    #[default]
    Auto,
    Light,
    Dark,
}

impl Theme {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        match cookie(headers, THEME_COOKIE) {
            Some("dark") => Self::Dark,
            Some("light") => Self::Light,
            _ => Self::Auto,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    pub(crate) fn next(self) -> Self {
        match self {
            Self::Auto => Self::Light,
            Self::Light => Self::Dark,
            Self::Dark => Self::Auto,
        }
    }
}

/// Somebody who may look.
#[derive(Debug, Clone)]
pub(crate) struct Visitor {
    pub(crate) role: Role,
    /// Not somebody who has yet to sign in.
    pub(crate) is_known: bool,
    /// The name that a trusted proxy vouches for.
    pub(crate) name: Option<String>,
    /// What each form carries.
    pub(crate) form_token: Arc<str>,
    /// What the visitor has shown.
    pub(crate) token: Option<Arc<str>>,
    pub(crate) theme: Theme,
}

impl Visitor {
    pub(crate) fn is_signed_in(&self) -> bool {
        self.token.is_some()
    }

    /// An upstream says the same, unless it has no tokens: such a one admits everybody.
    ///
    /// # Errors
    ///
    /// If the role is not enough.
    pub(crate) fn must_be_operator(&self) -> Result<(), Problem> {
        if self.role >= Role::Operator {
            return Ok(());
        }
        let detail = format!("this needs the role operator, and yours is {}", self.role.name());
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
    }

    /// With which token upstreams are asked for this visitor.
    pub(crate) fn token(&self) -> Token {
        self.token.as_ref().map_or(Token::Own, |it| Token::Of(Arc::clone(it)))
    }

    /// Nobody yet: sees the page to sign in at.
    pub(crate) fn nobody(form_token: Arc<str>, theme: Theme) -> Self {
        let role = Role::Viewer;
        Self { role, is_known: false, name: None, form_token, token: None, theme }
    }
}

pub(crate) const THEME_COOKIE: &str = "tailpost-theme";
/// Browsers keep `__Host-` only over TLS, or on this machine.
pub(crate) const SECURE_COOKIE: &str = "__Host-tailpost";
/// Over plain HTTP to a loopback address.
pub(crate) const PLAIN_COOKIE: &str = "tailpost";

pub(crate) fn session_cookies() -> [&'static str; 2] {
    [SECURE_COOKIE, PLAIN_COOKIE]
}

/// The value of a cookie.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut pairs = all.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// The value of a header that is given once, and says something.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut given = headers.get_all(name).iter();
    let (Some(given), None) = (given.next(), given.next()) else { return None };
    given.to_str().ok().map(str::trim).filter(|it| !it.is_empty())
}

impl<S: Send + Sync> FromRequestParts<S> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let visitor = parts.extensions.get::<Self>().cloned();
        visitor.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "nobody knows who asks"))
    }
}
