//! Who may ask, and what a page in somebody's browser may not.
//!
//! A browser on the relay's machine reaches its loopback port, for any page: under a name of the
//! page's own that suddenly means 127.0.0.1 (DNS rebinding), or across origins. Where there is no
//! token, a request has to name a host that can only be this one, and a change has to come from no
//! other origin. A token is a better proof than either: no page has it, and a proxy or a scraper may
//! call us what it likes.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Admin;
use super::connections::Local;

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Requires the token, if there is one.
pub(super) async fn authorize(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    if admin.token.is_some() && !admin.is_authorized(request.headers()) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "a bearer token is needed\n").into_response();
    }
    next.run(request).await
}

/// Refuses names that are not ours, unless there is a token.
pub(super) async fn check_host(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    if admin.token.is_none() && !is_ours(&request) {
        let told = "this is no host of that name: ask 127.0.0.1, or set admin.token\n";
        return (StatusCode::MISDIRECTED_REQUEST, told).into_response();
    }
    next.run(request).await
}

/// A change has a JSON body, which a page of another origin cannot send without being asked first,
/// and comes from no other origin, unless it has the token.
pub(super) async fn check_change(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return next.run(request).await;
    }
    if admin.token.is_none() && !is_same_origin(&request) {
        let told = "a change must not come from another origin\n";
        return (StatusCode::FORBIDDEN, told).into_response();
    }
    if !is_json(request.headers()) {
        let told = "a change needs `Content-Type: application/json`\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, told).into_response();
    }
    next.run(request).await
}

/// Lets a few at a time ask the database.
pub(super) async fn wait_for_turn(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(_turn) = admin.queries.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    next.run(request).await
}

impl Admin {
    /// Whether the request has the token. Never if there is none to have.
    pub(super) fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(token) = self.token.as_deref() else { return false };
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let given = given.to_str().ok().and_then(|it| it.split_once(' '));
        let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let given = given.map_or("", |(_, given)| given.trim());
        // Looks at every byte: the time taken tells at most the token's length.
        let differences = given.bytes().zip(token.bytes()).fold(0, |it, (a, b)| it | (a ^ b));
        !token.is_empty() && given.len() == token.len() && std::hint::black_box(differences) == 0
    }
}

/// What the request calls us. Browsers always say it, and once.
enum Called<'a> {
    Nothing,
    Host(&'a str),
    Unclear,
}

fn called(request: &Request) -> Called<'_> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (request.uri().authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) => Called::Unclear,
        (Some(authority), ..) => Called::Host(authority.as_str()),
        (None, Some(host), None) => host.to_str().map_or(Called::Unclear, Called::Host),
        (None, None, None) => Called::Nothing,
    }
}

/// Whether the host that is named is `localhost`, a loopback address, or the one that was reached.
fn is_ours(request: &Request) -> bool {
    let host = match called(request) {
        Called::Nothing => return true,
        Called::Unclear => return false,
        Called::Host(host) => host,
    };
    let Ok(authority) = host.parse::<axum::http::uri::Authority>() else { return false };
    if authority.as_str().contains('@') {
        return false;
    }
    let name = authority.host();
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let literal = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    let Ok(address) = literal.parse::<std::net::IpAddr>() else { return false };
    let reached = request.extensions().get::<Local>();
    address.to_canonical().is_loopback()
        || reached.is_some_and(|it| it.0.ip().to_canonical() == address.to_canonical())
}

/// Browsers say where a change comes from; other programs do not.
fn is_same_origin(request: &Request) -> bool {
    let headers = request.headers();
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    let same_site = sites.all(|it| matches!(it.as_bytes(), b"same-origin" | b"none"));
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let same_origin = origins.all(|origin| {
        let origin = origin.to_str().ok().and_then(|it| it.strip_prefix("http://"));
        matches!((origin, called(request)), (Some(origin), Called::Host(host))
            if origin.eq_ignore_ascii_case(host))
    });
    same_site && same_origin
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case(super::JSON)
}
