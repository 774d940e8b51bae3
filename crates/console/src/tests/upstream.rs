//! A relay and an inbox that answer what they are told to.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;

use super::{HOSTILE, ID};

/// What an upstream was asked to change.
pub(super) type Changes = Arc<Mutex<Vec<(String, String)>>>;

/// An upstream whose names are hostile, with the tokens `viewer`, `operator` and `admin`.
pub(super) async fn upstream() -> (String, Changes) {
    let changes = Changes::default();
    let router = Router::new().fallback(answer).with_state(Arc::clone(&changes));
    (serve(router).await, changes)
}

/// One without tokens: whoever asks is admin.
pub(super) async fn open_upstream() -> (String, Changes) {
    let changes = Changes::default();
    let as_admin = middleware::map_request(async |mut request: Request| {
        let bearer = header::HeaderValue::from_static("Bearer admin");
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        request
    });
    let router = Router::new().fallback(answer).layer(as_admin).with_state(Arc::clone(&changes));
    (serve(router).await, changes)
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let authority = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    authority
}

fn role(headers: &HeaderMap) -> Option<&str> {
    let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    ["viewer", "operator", "admin"].contains(&token).then_some(token)
}

async fn answer(State(changes): State<Changes>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let problem = |status: StatusCode, detail: &str| {
        let body = format!(r#"{{"detail": "{detail}", "hint": "a hint"}}"#);
        (status, body).into_response()
    };
    if path == "/readyz" {
        return r#"{"ready": true}"#.into_response();
    }
    let Some(role) = role(&parts.headers) else {
        return problem(StatusCode::UNAUTHORIZED, "a bearer token is needed");
    };
    if path == "/api/v1/config" && role != "admin" {
        return problem(StatusCode::FORBIDDEN, "this needs the role admin");
    }
    if parts.method != "GET" {
        if role == "viewer" {
            return problem(
                StatusCode::FORBIDDEN,
                "this needs the role operator, and yours is viewer",
            );
        }
        let body = body.collect().await.expect("whole").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("text");
        changes.lock().expect("no panic").push((format!("{} {path}", parts.method), body.clone()));
        if body.contains("too late") {
            return problem(StatusCode::CONFLICT, "GET /api/v1/consumers lists what waits");
        }
        return r#"{"operation": 7}"#.into_response();
    }
    if path == "/api/v1/me" {
        return format!(r#"{{"role": "{role}", "name": "ada"}}"#).into_response();
    }
    if path == "/api/v1/audit" {
        return audit(parts.uri.query().unwrap_or_default()).into_response();
    }
    match told(&path) {
        Some(body) => body.into_response(),
        None => problem(StatusCode::NOT_FOUND, "unknown"),
    }
}

/// What there is at a path, with hostile names.
fn told(path: &str) -> Option<String> {
    let letter = format!(
        r#"{{"id": "{ID}", "consumer": "{HOSTILE}", "aggregate_type": "{HOSTILE}",
            "aggregate_id": "../{HOSTILE}", "event_type": "{HOSTILE}", "reason": "{HOSTILE}",
            "dead_at": "2026-11-26T16:48:07Z", "attempts": 1}}"#
    );
    let failed = format!(r#"[{{"attempt": 1, "reason": "{HOSTILE}", "worker": "{HOSTILE}"}}]"#);
    let story = format!(
        r#"{{"record": {{"status": "FAILED", "attempts": 1, "last_error": "{HOSTILE}"}},
            "failed_attempts": {failed}}}"#
    );
    let body = match path {
        "/api/v1/status" => format!(
            r#"{{"role": "active", "postgres_connected": true, "nats_connected": true,
                "last_error": "{HOSTILE}", "waiting_for": "{HOSTILE}", "consumers":
                {{"{HOSTILE}": {{"state": "active", "pending": 3, "paused": "{HOSTILE}",
                    "held_up": [{{"event_id": "{ID}", "aggregate": "{HOSTILE}",
                        "event_type": "{HOSTILE}", "waiting": 17}}]}}}}}}"#
        ),
        "/api/v1/consumers" => {
            format!(r#"{{"consumers": [{{"name": "{HOSTILE}", "pause": {{"by": "{HOSTILE}"}}}}]}}"#)
        }
        "/api/v1/replays" => format!(
            r#"{{"replays": [{{"id": "{ID}", "status": "running", "asked_by": "{HOSTILE}",
                "reason": "{HOSTILE}", "aggregate_type": "{HOSTILE}", "aggregate_id": "1"}}]}}"#
        ),
        "/api/v1/outbox/dead-letter" | "/api/v1/inbox/dead-letter" => format!(
            r#"{{"total": 1, "groups": [{{"fingerprint": "{HOSTILE}", "count": 1}}],
                "dead_letters": [{letter}]}}"#
        ),
        "/api/v1/events" => format!(
            r#"{{"events": [{{"id": "{ID}", "state": "{HOSTILE}",
            "aggregate_type": "{HOSTILE}", "event_type": "{HOSTILE}"}}]}}"#
        ),
        "/api/v1/doctor" => format!(
            r#"{{"checks": [{{"severity": "error", "title": "t", "evidence": "{HOSTILE}",
                "remedies": [{{"kind": "shell", "text": "{HOSTILE}"}}]}}]}}"#
        ),
        "/api/v1/config" => {
            format!(r#"{{"settings": [{{"key": "a.b", "value": "{HOSTILE}", "origin": "x"}}]}}"#)
        }
        path if path.ends_with("/operations") => format!(
            r#"{{"operations": [{{"operation": 7, "began_at": "2026-11-26T16:48:07Z",
                "ended_at": "2026-11-26T16:48:19Z", "request": {{"action": "requeue", "by":
                "{HOSTILE}", "why": "{HOSTILE}", "filter": {{"reason": "{HOSTILE}"}}}}}}]}}"#
        ),
        path if path.contains("dead-letter/") => format!(
            r#"{{"state": "dead", "dead_letter": {letter}, "payload": {{"n": 9007199254740993}},
                "history": [{{"action": "requeue", "actor": "{HOSTILE}"}}],
                "failed_attempts": {failed}}}"#
        ),
        path if path.starts_with("/api/v1/events/") => format!(
            r#"{{"id": "{ID}", "dead_letter": {letter}, "notes": ["{HOSTILE}"],
                "consumers": {{"{HOSTILE}": {story}}}}}"#
        ),
        path if path.starts_with("/api/v1/replays/") => format!(
            r#"{{"id": "{ID}", "status": "paused", "reason": "{HOSTILE}", "failed": 1,
                "failures": [{{"event": "{ID}", "reason": "{HOSTILE}"}}]}}"#
        ),
        path if path.starts_with("/api/v1/consumers/") => {
            format!(
                r#"{{"name": "{HOSTILE}", "last_error": "{HOSTILE}", "failed": 1, "failing":
                    [{{"event_id": "{ID}", "attempts": 2, "last_error": "{HOSTILE}\\n{HOSTILE}",
                        "next_attempt_at": "2126-11-26T16:48:07Z"}}]}}"#
            )
        }
        path => return of_upkeep(path),
    };
    Some(body)
}

fn of_upkeep(path: &str) -> Option<String> {
    let body = match path {
        "/api/v1/slots" => format!(
            r#"{{"slots": [{{"name": "{HOSTILE}", "database": "{HOSTILE}"}}], "oldest_transaction":
                {{"pid": 17, "name": "{HOSTILE}", "seconds": 7200.5}}}}"#
        ),
        "/api/v1/rewinds" => format!(
            r#"{{"rewinds": [{{"consumer": "{HOSTILE}", "requested_by": "{HOSTILE}",
                "event_type": "{HOSTILE}", "why": "{HOSTILE}"}}]}}"#
        ),
        "/api/v1/retention" => format!(
            r#"{{"failure": "{HOSTILE}", "partitions": [{{"name": "{HOSTILE}", "range": "{HOSTILE}", "rows": -1}}]}}"#
        ),
        _ => return None,
    };
    Some(body)
}

/// A requeue of many, then 60 pauses, and a discard of the day before.
fn audit(query: &str) -> String {
    const ALL: usize = 1_261;
    let given = |name: &str| query.split('&').find_map(|it| it.strip_prefix(name));
    let number =
        |name, otherwise| given(name).map_or(otherwise, |it| it.parse().expect("a number"));
    let (from, limit) = (number("cursor=", 0), number("limit=", 100));
    let entry = |place: usize| {
        let action = match place {
            ..1_200 => "requeue",
            1_200..1_260 => "pause",
            _ => "discard",
        };
        let event = if action == "pause" { "null".into() } else { format!("\"{ID}\"") };
        let at = jiff::Timestamp::from_second(1_795_000_000 - place as i64).expect("a time");
        format!(
            r#"{{"at": "{at}", "action": "{action}", "actor": "{HOSTILE}", "why": "{HOSTILE}",
                "event_id": {event}}}"#
        )
    };
    let end = ALL.min(from + limit);
    let entries: Vec<_> = (from..end).map(entry).collect();
    let next = if end < ALL { format!("\"{end}\"") } else { "null".into() };
    format!(r#"{{"entries": [{}], "next": {next}}}"#, entries.join(","))
}
