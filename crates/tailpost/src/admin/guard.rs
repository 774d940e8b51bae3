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

use tokio::time::timeout;

use super::access::{self, Caller};
use super::connections::{Local, Peer};
use super::problem::ApiError;
use super::{Admin, REQUEST_TIMEOUT, TURN_MAX, TURNS};

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Finds out who asks, and whether they may.
pub(super) async fn authorize(
    State(admin): State<Admin>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().map(|it| it.0);
    let Some(caller) = admin.access.caller(request.headers(), peer) else {
        let detail = "a bearer token is needed, or a user's name from a trusted proxy";
        let hint = "admin.token, admin.tokens and admin.trusted_proxy say who comes in";
        let error = ApiError::new(StatusCode::UNAUTHORIZED, detail).with_hint(hint);
        return ([(header::WWW_AUTHENTICATE, "Bearer")], error).into_response();
    };
    let needed = access::needed(request.method(), request.uri().path());
    if let Err(error) = caller.must_be(needed) {
        return error.into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Refuses names that are not ours, unless somebody has to say who they are.
pub(super) async fn check_host(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    if !admin.access.is_closed() && !is_ours(&request) {
        let detail = "this is no host of that name: ask 127.0.0.1, or set admin.token";
        return ApiError::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response();
    }
    next.run(request).await
}

/// A change has a JSON body, which a page of another origin cannot send without being asked first,
/// and comes from no other origin, unless it has the token. A proxy knows its users by cookies,
/// which browsers send along for any page.
pub(super) async fn check_change(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    // Nothing is done with others.
    if !matches!(*request.method(), Method::POST | Method::DELETE) {
        return next.run(request).await;
    }
    let is_user = request.extensions().get::<Caller>().is_some_and(|it| it.user.is_some());
    let is_foreign = !admin.access.is_closed() && !is_same_origin(&request)
        || is_user && !is_same_site(request.headers());
    if is_foreign {
        let detail = "a change must not come from another origin";
        return ApiError::new(StatusCode::FORBIDDEN, detail).into_response();
    }
    if !is_json(request.headers()) {
        let detail = "a change needs `Content-Type: application/json`";
        return ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).into_response();
    }
    next.run(request).await
}

/// Lets a few at a time ask the servers.
pub(super) async fn wait_for_turn(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(Ok(_turn)) = timeout(TURN_MAX, admin.turns.acquire()).await else {
        let detail = format!("{TURNS} requests are at work, and one waited for {TURN_MAX:?}");
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    };
    next.run(request).await
}

/// Says so when an answer is not there in time.
pub(super) async fn be_in_time(request: Request, next: Next) -> Response {
    match timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("there is no answer within {REQUEST_TIMEOUT:?}");
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, detail).into_response()
        }
    }
}

impl Admin {
    /// Whether somebody has to say who they are, and this one did.
    pub(super) fn is_authorized(&self, headers: &HeaderMap, peer: Option<Peer>) -> bool {
        self.access.is_closed() && self.access.caller(headers, peer.map(|it| it.0)).is_some()
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

/// Browsers say where a request comes from; other programs do not.
fn is_same_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    sites.all(|it| matches!(it.as_bytes(), b"same-origin" | b"none"))
}

fn is_same_origin(request: &Request) -> bool {
    let headers = request.headers();
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let same_origin = origins.all(|origin| {
        let origin = origin.to_str().ok().and_then(|it| it.strip_prefix("http://"));
        matches!((origin, called(request)), (Some(origin), Called::Host(host))
            if origin.eq_ignore_ascii_case(host))
    });
    is_same_site(headers) && same_origin
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case(super::JSON)
}
