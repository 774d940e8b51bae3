//! Who may ask for what, and what a browser is told about each page.
//!
//! A console without tokens is reached from this machine alone, under a name of this machine: a page
//! of another origin must not reach it by a name of its own (DNS rebinding). A change comes from no
//! other origin, and carries the token of its form.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use crate::app::{Absence, App};
use crate::frame;
use crate::problem::Problem;
use crate::state::plan::escape;
use crate::visitor::{Peer, Theme, Visitor, said, saying};

/// Nothing but what this server sends, no inline script or style, and no string becomes script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Around every request.
pub(crate) async fn guard(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let theme = Theme::of(request.headers());
    let peer = request.extensions().get::<Peer>().copied();
    let path = request.uri().path().to_owned();
    if let Some(problem) = refusal(&app, &request) {
        return dress(&app, &app.nobody(theme), problem.into_response());
    }
    let visitor = app.visitor(request.headers(), peer).await;
    let is_open = path.starts_with("/assets/") || path == "/sign-in" || path == "/theme";
    let visitor = match visitor {
        Ok(visitor) => Visitor { said: said(request.headers()), ..visitor },
        Err(_) if is_open => app.nobody(theme),
        Err(why) => {
            let response = sign_in_first(&app, &request, why);
            return dress(&app, &app.nobody(theme), response);
        }
    };
    let again = sign_in_path(&request, Absence::Revoked);
    request.extensions_mut().insert(visitor.clone());
    let mut response = next.run(request).await;
    if let Some(problem) = response.extensions_mut().get_mut::<Problem>()
        && problem.status == StatusCode::UNAUTHORIZED
        && let Some(token) = &visitor.token
    {
        problem.sign_in = Some(again);
        // Nobody's name is above what nobody may see. Another process may know the token still.
        if matches!(app.role_of(token).await, Ok(None)) {
            return dress(&app, &app.nobody(theme), response);
        }
    }
    dress(&app, &visitor, response)
}

fn sign_in_first(app: &App, request: &Request, why: Absence) -> Response {
    let is_page = *request.method() == Method::GET && request.uri().path() != "/live";
    let path = sign_in_path(request, why);
    if app.settings.proxy.is_some() || !is_page {
        let detail = why.words().unwrap_or("sign in first: nobody knows who asks");
        let sign_in = app.settings.proxy.is_none().then_some(path);
        let problem = Problem::new(StatusCode::UNAUTHORIZED, detail);
        return Problem { sign_in, ..problem }.into_response();
    }
    Redirect::to(&format!("{}{path}", app.settings.base_path)).into_response()
}

/// The page to sign in at, which leads back: to the page that was asked for, or that had the form.
fn sign_in_path(request: &Request, why: Absence) -> String {
    let wanted = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let next = if *request.method() == Method::GET { wanted.into() } else { page_of(wanted) };
    let next = (next != "/").then(|| format!("next={}", escape(&next)));
    let why = why.name().map(|it| format!("why={it}"));
    let query: Vec<_> = next.into_iter().chain(why).collect();
    if query.is_empty() { "/sign-in".into() } else { format!("/sign-in?{}", query.join("&")) }
}

/// Where a form stood that is sent to this path, about.
fn page_of(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<_> = path.split('/').skip(1).collect();
    match *parts {
        [list @ ("dead-letters" | "consumers"), source, name, ..] => {
            format!("/{list}/{source}/{name}")
        }
        [list, ..] => format!("/{list}"),
        [] => "/".into(),
    }
}

/// Why a request is answered by nobody.
fn refusal(app: &App, request: &Request) -> Option<Problem> {
    if app.settings.is_open() && !is_this_machine(request.headers()) {
        let detail = "this is no host of that name: ask 127.0.0.1, or give the console token files";
        return Some(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail));
    }
    let is_change = !matches!(*request.method(), Method::GET | Method::HEAD);
    if is_change && !is_same_origin(request.headers()) {
        let detail = "a change must not come from another origin";
        return Some(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let is_about_oneself = ["/sign-in", "/sign-out", "/theme"].contains(&request.uri().path());
    if is_change && app.settings.read_only && !is_about_oneself {
        let detail = "this console is read-only";
        return Some(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    None
}

/// Whether a request names this machine as its host.
pub(crate) fn is_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let host = host.to_str().ok().and_then(|it| it.parse::<axum::http::uri::Authority>().ok());
    let Some(host) = host.filter(|it| !it.as_str().contains('@')) else { return false };
    let name = host.host();
    let literal = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    let address = literal.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|it| it.to_canonical().is_loopback())
}

/// Browsers say where a request comes from. Other programs do not, and have nobody's cookies.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter().peekable();
    if sites.peek().is_some() {
        // `Origin` is `null` then: pages send no referrer.
        return sites.all(|it| matches!(it.as_bytes(), b"same-origin" | b"none"));
    }
    let text = |name: HeaderName| headers.get(name).and_then(|it| it.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return true };
    let origin = origin.split_once("://").map(|(_, host)| host);
    let forwarded = text(HeaderName::from_static("x-forwarded-host"));
    let names = [text(header::HOST), forwarded];
    origin.is_some_and(|origin| names.iter().flatten().any(|it| it.eq_ignore_ascii_case(origin)))
}

/// With the headers of every answer. A refusal becomes a page.
fn dress(app: &App, visitor: &Visitor, mut response: Response) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = frame::problem_page(app, visitor, problem);
    }
    let headers = response.headers_mut();
    let is_page =
        headers.get(header::CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"text/html"));
    if let Ok(cookie) = HeaderValue::from_str(&saying(""))
        && is_page
        && visitor.said.is_some()
    {
        headers.append(header::SET_COOKIE, cookie);
    }
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let no_store = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        of.iter().map(pair).collect()
    }

    #[test]
    fn this_machine_has_few_names() {
        for host in ["localhost:9466", "127.0.0.1:9466", "[::1]:9466", "LOCALHOST"] {
            assert!(is_this_machine(&headers(&[("host", host)])), "{host}");
        }
        for host in ["evil.example:9466", "10.0.0.1", "localhost.evil.example", "a@localhost", ""] {
            assert!(!is_this_machine(&headers(&[("host", host)])), "{host}");
        }
        assert!(!is_this_machine(&HeaderMap::new()));
    }

    #[test]
    fn a_change_comes_from_its_own_origin() {
        let host = ("host", "console.example");
        let same =
            |of: &[(&'static str, &'static str)]| is_same_origin(&headers(&[&[host], of].concat()));
        assert!(same(&[("origin", "null"), ("sec-fetch-site", "same-origin")]));
        assert!(same(&[("origin", "https://console.example")]));
        assert!(same(&[]), "no browser");
        assert!(!same(&[("sec-fetch-site", "cross-site")]));
        assert!(!same(&[("sec-fetch-site", "same-site")]));
        assert!(!same(&[("origin", "https://evil.example")]));
        assert!(!same(&[("origin", "null")]));
        let behind = [("origin", "https://a.example"), ("x-forwarded-host", "a.example")];
        assert!(same(&behind));
    }
}
