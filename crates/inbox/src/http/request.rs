//! The request that an event becomes.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use jiff::Timestamp;
use outbox::wire::header;

use super::signature::{Secret, sign};
use crate::Delivery;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const CONSUMER: &str = "tailpost-consumer";
const SUBJECT: &str = "tailpost-subject";
const STREAM: &str = "tailpost-stream";
const STREAM_SEQ: &str = "tailpost-stream-seq";
const ATTEMPT: &str = "tailpost-attempt";
const MAX_ATTEMPTS: &str = "tailpost-max-attempts";
const WEBHOOK_ID: &str = "webhook-id";
const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
const WEBHOOK_SIGNATURE: &str = "webhook-signature";

/// Headers that say how this request travels, whatever the event says.
const OF_THE_CONNECTION: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// Makes the request. The payload is sent as it is.
pub(super) fn request(
    url: &Uri,
    secrets: &[Secret],
    delivery: &Delivery<'_>,
) -> Request<Full<Bytes>> {
    let payload = delivery.event.payload.clone();
    let mut request = Request::new(Full::new(payload.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.clone();
    let headers = request.headers_mut();
    // Ours come last and win.
    pass_on(delivery.headers, headers);
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("tailpost/", env!("CARGO_PKG_VERSION"))),
    );
    let id = delivery.event.id.to_string();
    let mut set = |name: &'static str, value: &str| {
        // Only a foreign consumer's or stream's name could fail; an event is not stopped by that.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    set(IDEMPOTENCY_KEY, &id);
    set(CONSUMER, delivery.consumer);
    set(SUBJECT, delivery.subject);
    set(STREAM, delivery.stream);
    set(STREAM_SEQ, &delivery.stream_seq.to_string());
    set(ATTEMPT, &delivery.attempt.to_string());
    set(MAX_ATTEMPTS, &delivery.max_attempts.to_string());
    if !secrets.is_empty() {
        let timestamp = Timestamp::now().as_second();
        set(WEBHOOK_ID, &id);
        set(WEBHOOK_TIMESTAMP, &timestamp.to_string());
        set(WEBHOOK_SIGNATURE, &sign(secrets, &id, timestamp, &payload));
    }
    request
}

/// Passes on what the message says about the event: `Event-Type` and its companions, `traceparent`,
/// the user's own. What it says about its way through the broker stays behind.
fn pass_on(from: &async_nats::HeaderMap, to: &mut HeaderMap) {
    for (name, values) in from.iter() {
        // Valid in HTTP if the event came from an outbox; of others, what cannot travel is left out.
        let Ok(name) = HeaderName::from_bytes(AsRef::<[u8]>::as_ref(name)) else { continue };
        if stays_behind(name.as_str()) {
            continue;
        }
        for value in values {
            if let Ok(value) = HeaderValue::from_bytes(value.as_str().as_bytes()) {
                to.append(name.clone(), value);
            }
        }
    }
}

/// `name` is in lower case.
fn stays_behind(name: &str) -> bool {
    let tells_escapes = name.eq_ignore_ascii_case(header::ESCAPED);
    name.starts_with("nats-")
        || name.starts_with("webhook-")
        || (name.starts_with("tailpost-") && !tells_escapes)
        || OF_THE_CONNECTION.contains(&name)
}
