//! A token, typed once.

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use crate::app::{Absence, App};
use crate::fields::Fields;
use crate::frame::{Frame, Place, page};
use crate::guard::is_this_machine;
use crate::problem::Problem;
use crate::visitor::{PLAIN_COOKIE, Peer, SECURE_COOKIE, THEME_COOKIE, Visitor, cookie};

/// Where somebody wanted to go.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Next {
    next: String,
    why: Option<Absence>,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn {
    frame: Frame,
    next: String,
    problem: Option<String>,
    /// The address is not this machine's and has no TLS that the console knows of.
    needs_tls: bool,
}

pub(crate) async fn sign_in_page(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(next): Query<Next>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let why = next.why.and_then(Absence::words).map(str::to_owned);
    show(&app, &visitor, next.next, why, &headers)
}

fn show(
    app: &App,
    visitor: &Visitor,
    next: String,
    problem: Option<String>,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let frame = Frame::new(app, visitor, Place::Aside, "Sign in");
    let is_tls = headers.get("x-forwarded-proto").is_some_and(|it| it.as_bytes() == b"https");
    let needs_tls = !is_this_machine(headers) && !is_tls;
    page(&SignIn { frame, next, problem, needs_tls })
}

pub(crate) async fn sign_in(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let next = fields.get("next").unwrap_or_default().to_owned();
    let refused = |status: StatusCode, why: &str| {
        let mut response = show(&app, &visitor, next.clone(), Some(why.to_owned()), &headers)?;
        *response.status_mut() = status;
        Ok(response)
    };
    let peer = peer.map(|Extension(Peer(peer))| peer);
    if peer.is_some_and(|it| !app.sessions.may_try(it)) {
        return refused(StatusCode::TOO_MANY_REQUESTS, "Five tokens were wrong. Wait a minute.");
    }
    let token: Arc<str> = fields.get("token").unwrap_or_default().into();
    let is_fit = !token.is_empty() && token.bytes().all(|it| it.is_ascii_graphic());
    let known = if is_fit { app.role_of(&token).await? } else { None };
    let Some(oneself) = known else {
        if let Some(peer) = peer {
            app.sessions.was_wrong(peer);
        }
        return refused(StatusCode::FORBIDDEN, "No relay or inbox knows this token.");
    };
    let id = app.sessions.begin(&token, oneself.role, oneself.name);
    // Only a path of the console itself.
    let is_path = next.starts_with('/') && !next.starts_with("//") && !next.contains('\\');
    let path = if is_path { &*next } else { "/" };
    let response = Redirect::to(&format!("{}{path}", app.settings.base_path));
    Ok(with_cookie(response.into_response(), &session_cookie(&headers, &id, 8 * 3600)))
}

fn session_cookie(headers: &HeaderMap, id: &str, seconds: u32) -> String {
    let rest = format!("Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    if is_this_machine(headers) {
        format!("{PLAIN_COOKIE}={id}; {rest}")
    } else {
        format!("{SECURE_COOKIE}={id}; {rest}; Secure")
    }
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
    response
}

pub(crate) async fn sign_out(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    _: Fields,
) -> Response {
    for name in [SECURE_COOKIE, PLAIN_COOKIE] {
        if let Some(id) = cookie(&headers, name) {
            app.sessions.end(id);
        }
    }
    let response = Redirect::to(&format!("{}/sign-in", app.settings.base_path)).into_response();
    with_cookie(response, &session_cookie(&headers, "", 0))
}

/// The next of the three: those of the system, light, dark.
pub(crate) async fn change_theme(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    fields: Fields,
) -> Response {
    let theme = visitor.theme.next().name();
    let back = fields.get("back").filter(|it| it.starts_with('/') && !it.starts_with("//"));
    let back = format!("{}{}", app.settings.base_path, back.unwrap_or("/"));
    let cookie = format!("{THEME_COOKIE}={theme}; Path=/; SameSite=Strict; Max-Age=31536000");
    with_cookie(Redirect::to(&back).into_response(), &cookie)
}
