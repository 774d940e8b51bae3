//! Who sends a request, and what the sender may do.
//!
//! Without tokens and without a trusted proxy every request may do everything: then the server
//! listens on this machine only. Otherwise a request needs a token, or comes from a proxy that
//! names its user. A proxy's headers count only from its address; from elsewhere they are ignored.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use tracing::{info, warn};
use uuid::Uuid;

use super::problem::ApiError;
use crate::config::{AdminSettings, Header, Role};
use crate::errors::{Kind, Refusal};

/// How often the files are read again.
const READ_EVERY: Duration = Duration::from_secs(1);
/// No token is longer.
const TOKEN_BYTES_MAX: usize = 4096;
/// No name in the audit is longer.
const USER_CHARS_MAX: usize = 200;

/// Which requests the server admits.
pub(crate) struct Access {
    settings: AdminSettings,
    /// What is in the files of `admin.tokens`, in their order; `None` for one that cannot be read.
    secrets: RwLock<Vec<Option<String>>>,
    /// A token for the pages that this process serves beside the API.
    own: Arc<str>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(super) role: Role,
    /// The name that a trusted proxy vouches for.
    pub(super) user: Option<String>,
    /// The file of the token, without folder and ending.
    pub(super) token: Option<String>,
}

impl Access {
    /// Reads the tokens.
    ///
    /// # Errors
    ///
    /// If a file has no token.
    pub(crate) fn new(settings: &AdminSettings) -> Result<Self, Refusal> {
        let secrets = settings.tokens.iter().map(|it| read(&it.file).map(Some));
        let secrets = RwLock::new(secrets.collect::<Result<_, _>>()?);
        let own = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        Ok(Self { settings: settings.clone(), secrets, own: own.into() })
    }

    /// A token that only this process knows; none where nobody needs one.
    pub(crate) fn own(&self) -> Option<Arc<str>> {
        self.is_closed().then(|| Arc::clone(&self.own))
    }

    /// What the pages may do for visitors without a token: as much as all users of the proxy may.
    fn own_role(&self) -> Role {
        let is_same_for_all = self.settings.proxy_role_header.is_none();
        let has_users = !self.settings.trusted_proxy.is_empty() && is_same_for_all;
        if has_users { self.settings.proxy_role.0 } else { Role::Viewer }
    }

    /// Whether a request needs a token or a trusted proxy.
    pub(super) fn is_closed(&self) -> bool {
        self.settings.is_closed()
    }

    /// Reads the files again and again, on a thread on which a file system may hang. A token that was
    /// removed from its file admits no request any more.
    pub(super) async fn keep_reading(&self) {
        if self.settings.tokens.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(READ_EVERY).await;
            let files = self.settings.tokens.clone();
            let read = move || files.iter().map(|it| read(&it.file)).collect::<Vec<_>>();
            let Ok(found) = tokio::task::spawn_blocking(read).await else { continue };
            let mut secrets = self.secrets.write().unwrap_or_else(PoisonError::into_inner);
            for ((secret, found), it) in secrets.iter_mut().zip(found).zip(&self.settings.tokens) {
                match found {
                    Ok(found) if secret.as_ref() != Some(&found) => {
                        let (file, role) = (it.file.display(), it.role.name());
                        info!(%file, role, "the token has changed");
                        *secret = Some(found);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        if secret.take().is_some() {
                            let error = crate::errors::chain(&error.into());
                            warn!(error, "this file of admin.tokens admits no request now");
                        }
                    }
                }
            }
        }
    }

    /// The caller, if the headers prove one.
    pub(super) fn caller(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Option<Caller> {
        if !self.is_closed() {
            return Some(Caller { role: Role::Admin, user: None, token: None });
        }
        let is_trusted =
            peer.is_some_and(|it| self.settings.trusted_proxy.iter().any(|net| net.has(it)));
        let user = if is_trusted { self.user(headers) } else { None };
        if let Some((role, token)) = self.by_token(headers) {
            return Some(Caller { role, user, token });
        }
        let role = match &self.settings.proxy_role_header {
            // A header that is doubled or blank names no role: the client may have added one.
            Some(Header(name)) if headers.contains_key(name) => {
                only(headers, name)?.parse().ok()?
            }
            _ => self.settings.proxy_role.0,
        };
        Some(Caller { role, user: Some(user?), token: None })
    }

    fn user(&self, headers: &HeaderMap) -> Option<String> {
        let user = only(headers, &self.settings.proxy_user_header.0)?;
        Some(user.chars().take(USER_CHARS_MAX).collect())
    }

    /// What the token is good for, and what its file is called.
    fn by_token(&self, headers: &HeaderMap) -> Option<(Role, Option<String>)> {
        let given = only(headers, header::AUTHORIZATION.as_str())?;
        let (scheme, given) = given.split_once(' ')?;
        let given = given.trim();
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let of_files = self.settings.tokens.iter().zip(secrets.iter());
        let of_files = of_files.map(|(it, secret)| (it.role, name(&it.file), secret.as_deref()));
        let own = self.settings.token.as_ref().map(|it| it.0.as_str());
        let of_pages = (self.own_role(), Some("console".into()), Some(&*self.own));
        // All of them are compared, whichever it is.
        [(Role::Admin, None, own), of_pages]
            .into_iter()
            .chain(of_files)
            .filter(|(.., secret)| secret.is_some_and(|it| is_same(given, it)))
            .map(|(role, name, _)| (role, name))
            .max_by_key(|(role, _)| *role)
    }
}

/// Looks at every byte: the time taken tells at most the token's length.
fn is_same(given: &str, token: &str) -> bool {
    let differences = given.bytes().zip(token.bytes()).fold(0, |it, (a, b)| it | (a ^ b));
    !token.is_empty() && given.len() == token.len() && std::hint::black_box(differences) == 0
}

/// The value of a header that is given once, and says something.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut given = headers.get_all(name).iter();
    let (Some(given), None) = (given.next(), given.next()) else { return None };
    given.to_str().ok().map(str::trim).filter(|it| !it.is_empty())
}

fn name(file: &Path) -> Option<String> {
    file.file_stem().map(|it| it.to_string_lossy().into_owned())
}

fn read(file: &Path) -> Result<String, Refusal> {
    use std::io::Read;
    let path = file.display();
    let unreadable = |source: std::io::Error| {
        let problem = format!("could not read the token in {path}");
        Refusal::new(Kind::BadConfiguration, problem).because(source)
    };
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    let most = TOKEN_BYTES_MAX as u64 + 1;
    opened.take(most).read_to_string(&mut text).map_err(unreadable)?;
    let token = text.trim();
    let is_fit = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() > TOKEN_BYTES_MAX || !is_fit(token) {
        let problem = format!("{path} has no token: one line of visible ASCII characters");
        return Err(Refusal::new(Kind::BadConfiguration, problem));
    }
    Ok(token.to_owned())
}

/// The role that a request needs.
pub(super) fn needed(method: &Method, path: &str) -> Role {
    match *method {
        _ if path == "/api/v1/config" => Role::Admin,
        Method::GET | Method::HEAD | Method::OPTIONS => Role::Viewer,
        _ => Role::Operator,
    }
}

impl Caller {
    /// # Errors
    ///
    /// If the role is not enough.
    pub(super) fn must_be(&self, needed: Role) -> Result<(), ApiError> {
        if self.role >= needed {
            return Ok(());
        }
        let detail =
            format!("this needs the role {}, and yours is {}", needed.name(), self.role.name());
        let hint = "admin.tokens and admin.proxy_role say who has which role";
        Err(ApiError::new(StatusCode::FORBIDDEN, detail).with_hint(hint))
    }

    /// The name for the audit: what is proven, before what is only said.
    pub(super) fn name(&self, said: Option<String>) -> String {
        let said = said.map(|it| it.chars().take(USER_CHARS_MAX).collect::<String>());
        match (self.user.as_ref().or(self.token.as_ref()), said) {
            (Some(proven), Some(said)) if *proven != said => format!("{proven} for {said}"),
            (Some(proven), _) => proven.clone(),
            (None, Some(said)) => said,
            (None, None) => "unnamed".into(),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::new(StatusCode::UNAUTHORIZED, "nobody knows who asks"))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (
                (*name).parse::<header::HeaderName>().expect("a name"),
                HeaderValue::from_str(value).expect("a value"),
            )
        };
        // Appended: a name may come twice.
        let mut headers = HeaderMap::new();
        for (name, value) in of.iter().map(header) {
            headers.append(name, value);
        }
        headers
    }

    fn behind_a_proxy(role_header: Option<&str>) -> Access {
        let mut given = vec![
            ("ADMIN__TOKEN", "s3cret"),
            ("ADMIN__TRUSTED_PROXY", "10.0.0.0/8"),
            ("ADMIN__PROXY_ROLE", "operator"),
        ];
        given.extend(role_header.map(|it| ("ADMIN__PROXY_ROLE_HEADER", it)));
        let settings = crate::config::tests::of_environment(&given).admin;
        Access::new(&settings).expect("no files")
    }

    #[test]
    fn a_user_header_counts_only_from_the_proxy() {
        let access = behind_a_proxy(None);
        let proxy = Some("10.1.2.3".parse().expect("an address"));
        let other = Some("192.0.2.1".parse().expect("an address"));
        let ada = [("x-forwarded-user", "ada")];
        let caller = access.caller(&headers(&ada), proxy).expect("the proxy says so");
        assert_eq!((caller.role, caller.user.as_deref()), (Role::Operator, Some("ada")));
        assert_eq!(access.caller(&headers(&ada), other), None);
        assert_eq!(access.caller(&headers(&ada), None), None);
        assert_eq!(access.caller(&headers(&[]), proxy), None);
        assert_eq!(access.caller(&headers(&[("x-forwarded-user", " ")]), proxy), None);
        let both = [ada[0], ("authorization", "Bearer s3cret")];
        let caller = access.caller(&headers(&both), other).expect("the token");
        assert_eq!((caller.role, caller.user), (Role::Admin, None), "the header is ignored");
    }

    #[test]
    fn a_role_header_says_the_role_or_lets_nobody_in() {
        let access = behind_a_proxy(Some("X-Role"));
        let proxy = Some("10.1.2.3".parse().expect("an address"));
        let role =
            |of: &[(&'static str, &str)]| access.caller(&headers(of), proxy).map(|it| it.role);
        let user = ("x-forwarded-user", "ada");
        assert_eq!(role(&[user, ("x-role", "admin")]), Some(Role::Admin));
        assert_eq!(role(&[user, ("x-role", "viewer")]), Some(Role::Viewer));
        assert_eq!(role(&[user, ("x-role", "root")]), None);
        assert_eq!(role(&[user]), Some(Role::Operator), "admin.proxy_role");
        assert_eq!(role(&[user, ("x-role", "viewer"), ("x-role", "admin")]), None);
        assert_eq!(role(&[user, ("x-role", " ")]), None);
    }

    #[test]
    fn the_audit_has_what_is_proven_before_what_is_said() {
        let caller = |user: Option<&str>, token: Option<&str>| Caller {
            role: Role::Operator,
            user: user.map(Into::into),
            token: token.map(Into::into),
        };
        assert_eq!(caller(Some("ada"), Some("ci")).name(None), "ada");
        assert_eq!(caller(Some("ada"), None).name(Some("bob".into())), "ada for bob");
        assert_eq!(caller(None, Some("ci")).name(Some("bob".into())), "ci for bob");
        assert_eq!(caller(None, Some("ci")).name(None), "ci");
        assert_eq!(caller(None, None).name(None), "unnamed");
    }
}
