//! Who asks for a page.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use percent_encoding::percent_decode_str;

use crate::client::Token;
use crate::problem::Problem;
use crate::sessions::Role;
use crate::state::figures::short;
use crate::state::plan::escape;

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
    /// What the audit calls the token.
    pub(crate) called: Option<String>,
    /// What each form carries.
    pub(crate) form_token: Arc<str>,
    /// What the visitor has shown.
    pub(crate) token: Option<Arc<str>>,
    pub(crate) theme: Theme,
    /// What came of the change before this page.
    pub(crate) said: Option<String>,
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

    /// What came of the change before this page, and where it is asked what comes of it further.
    pub(crate) fn told(&self) -> Option<(&str, Option<&str>)> {
        let said = self.said.as_deref()?;
        let (said, at) = said.split_once('\n').map_or((said, None), |(said, at)| (said, Some(at)));
        // Others may set cookies too.
        Some((said, at.filter(|it| it.starts_with("/events/"))))
    }

    /// With which token upstreams are asked for this visitor.
    pub(crate) fn token(&self) -> Token {
        self.token.as_ref().map_or(Token::Own, |it| Token::Of(Arc::clone(it)))
    }

    /// Nobody yet: sees the page to sign in at.
    pub(crate) fn nobody(form_token: Arc<str>, theme: Theme) -> Self {
        let role = Role::Viewer;
        let (name, called, token, said) = (None, None, None, None);
        Self { role, is_known: false, name, called, form_token, token, theme, said }
    }
}

/// Has what a change came to, for the page that the browser is sent to.
pub(crate) const SAID_COOKIE: &str = "tailpost-said";

/// Which cookie that is; it lasts no longer than the way there.
pub(crate) fn saying(text: &str) -> String {
    let age = if text.is_empty() { 0 } else { 60 };
    let text = escape(&short(text, 600));
    format!("{SAID_COOKIE}={text}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict")
}

/// What it says.
pub(crate) fn said(headers: &HeaderMap) -> Option<String> {
    let text = percent_decode_str(cookie(headers, SAID_COOKIE)?).decode_utf8().ok()?;
    (!text.is_empty()).then(|| text.into_owned())
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
