//! The request that an event becomes.

use std::borrow::Cow;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use jiff::Timestamp;
use outbox::wire::cloudevents::Added;
use outbox::wire::{CloudEvents, escape_name, header, name_from_wire};

use super::body::{BodyForm, body};
use super::credentials::Current;
use super::signature::sign;
use crate::Delivery;

/// What begins the names of all headers of the event that have no meaning here. As themselves they
/// could have one for whoever takes the request: `Authorization`, `X-Forwarded-For`, `Cookie`.
const OF_THE_EVENT: &str = "Tailpost-Header-";

/// What has the same meaning in HTTP, in any case.
const OF_HTTP: [&str; 4] = ["traceparent", "tracestate", "baggage", "content-type"];

/// Makes the request.
///
/// # Errors
///
/// Why the event cannot be sent in the form that is configured.
pub(super) fn request(
    url: &Uri,
    form: (BodyForm, &CloudEvents),
    current: &Current,
    delivery: &Delivery<'_>,
) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::new(Full::default());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.clone();
    let headers = request.headers_mut();
    headers.reserve(24); // as many as there are, mostly
    // Ours come last and win.
    pass_on(delivery.headers, headers);
    let body = body(form, delivery, headers)?;
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
    set("webhook-id", &id);
    // The same for those who look there. The signature does not cover it.
    set("idempotency-key", &id);
    set("tailpost-consumer", delivery.consumer);
    set("tailpost-subject", delivery.subject);
    set("tailpost-stream", delivery.stream);
    set("tailpost-stream-seq", &delivery.stream_seq.to_string());
    set("tailpost-attempt", &delivery.attempt.to_string());
    if let Some(span) = delivery.span {
        set("traceparent", &span.to_string());
    }
    set("tailpost-max-attempts", &delivery.max_attempts.to_string());
    if !current.secrets.is_empty() {
        let timestamp = Timestamp::now().as_second();
        set("webhook-timestamp", &timestamp.to_string());
        set("webhook-signature", &sign(&current.secrets, &id, timestamp, &body));
    }
    for (name, value) in &current.headers {
        headers.insert(name, value.clone());
    }
    *request.body_mut() = Full::new(body);
    Ok(request)
}

/// Passes on what the message says about the event: `Event-Type` and its companions, `traceparent`,
/// and the user's own under [`OF_THE_EVENT`]. What it says about its way through the broker stays
/// behind.
fn pass_on(from: &async_nats::HeaderMap, to: &mut HeaderMap) {
    let added = from.get(header::CLOUDEVENTS).map(|it| Added::parse(it.as_str()));
    for (name, values) in from.iter() {
        if added.is_some_and(|it| it.has(name.as_ref())) {
            continue;
        }
        let Some(name) = name_in_http(name.as_ref()) else { continue };
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        for value in values {
            // Valid in HTTP if the event came from an outbox; of others, what cannot travel is left
            // out.
            let Ok(value) = HeaderValue::from_bytes(value.as_str().as_bytes()) else { continue };
            if name == CONTENT_TYPE {
                to.insert(name.clone(), value);
            } else {
                to.append(name.clone(), value);
            }
        }
    }
    let escaped = from.get(header::ESCAPED).map_or("", |it| it.as_str());
    let escaped: Vec<_> = escaped.split(',').filter_map(name_in_http).collect();
    let value = HeaderValue::from_str(&escaped.join(","));
    if let (false, Ok(value)) = (escaped.is_empty(), value) {
        to.insert(HeaderName::from_static("tailpost-escaped"), value);
    }
}

/// Under which name a header of the message travels in HTTP; None for those that stay behind.
fn name_in_http(name: &str) -> Option<Cow<'_, str>> {
    let has_a_meaning = header::OF_THE_EVENT.contains(&name)
        || OF_HTTP.iter().any(|known| name.eq_ignore_ascii_case(known));
    if has_a_meaning {
        return Some(Cow::Borrowed(name));
    }
    // As the producer wrote it. What begins with `Nats-` or `Tailpost-` is no producer's.
    let name = name_from_wire(name).filter(|it| !it.is_empty())?;
    Some(Cow::Owned(format!("{OF_THE_EVENT}{}", escape_name(&name))))
}
