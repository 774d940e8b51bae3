//! What a service's answer means.

use std::error::Error;
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, LOCATION, RETRY_AFTER};
use hyper::http::response::Parts;
use hyper_util::client::legacy;
use jiff::Timestamp;

use super::Accept;
use super::excerpt::{Sent, excerpt};
use crate::Verdict;

/// A service that asks for more patience is asked again after this.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);
/// What is kept with an event that the service knew already.
const ALREADY_PROCESSED: &str = "already_processed";

/// Reads an answer. `body` is its beginning.
pub(super) fn verdict(accept: Accept, answer: &Parts, body: &[u8], sent: Sent<'_>) -> Verdict {
    let told = |said: &str| match excerpt(body, sent) {
        text if text.is_empty() => format!("{}{said}", answer.status),
        text => format!("{}{said}: {text}", answer.status),
    };
    match answer.status.as_u16() {
        200 | 201 | 204 => Verdict::processed(),
        202..300 if accept == Accept::AnySuccess => Verdict::processed(),
        409 => Verdict::Processed { outcome: Some(ALREADY_PROCESSED.into()) },
        422 => Verdict::Dead { reason: told("") },
        // Of the service itself, which has read the event; a proxy's 400 is a page.
        400 if is_json(&answer.headers) => Verdict::Retry { reason: told(""), after: None },
        425 | 500 | 501 | 505..=599 => {
            Verdict::Retry { reason: told(""), after: retry_after(&answer.headers) }
        }
        408 | 429 | 502..=504 => {
            Verdict::Outage { reason: told(""), after: retry_after(&answer.headers) }
        }
        202 => Verdict::Misconfigured {
            reason: told(
                " (accepted is not done: answer 200, 201 or 204 when the effect is there)",
            ),
        },
        300..=399 => Verdict::Misconfigured { reason: told(&redirection(&answer.headers, sent)) },
        _ => Verdict::Misconfigured { reason: told("") },
    }
}

/// No answer within `limit`.
pub(super) fn too_late(limit: Duration) -> Verdict {
    Verdict::Outage { reason: format!("no answer within {limit:?}"), after: None }
}

/// No connection, or one that broke.
pub(super) fn unanswered(error: &legacy::Error) -> Verdict {
    let mut reason =
        String::from(if error.is_connect() { "could not connect" } else { "no answer" });
    let mut cause = error.source();
    while let Some(error) = cause {
        reason.push_str(": ");
        reason.push_str(&error.to_string());
        cause = error.source();
    }
    Verdict::Outage { reason, after: None }
}

fn redirection(headers: &HeaderMap, sent: Sent<'_>) -> String {
    let location = headers.get(LOCATION).map(|it| excerpt(it.as_bytes(), sent));
    let location = location.map(|it| format!(" to {it}")).unwrap_or_default();
    format!(" (redirects{location} are not followed)")
}

/// `Retry-After`, in seconds or as a date, at most [`RETRY_AFTER_MAX`]. None if it is of no use.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wanted = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        // More digits than fit are as good as the maximum.
        Err(_) if text.bytes().all(|it| it.is_ascii_digit()) && !text.is_empty() => RETRY_AFTER_MAX,
        Err(_) => {
            // By the service's own clock, where it tells it.
            let now = date(headers, &DATE).unwrap_or_else(Timestamp::now);
            Duration::try_from(date(headers, &RETRY_AFTER)?.duration_since(now)).ok()?
        }
    };
    Some(wanted.min(RETRY_AFTER_MAX)).filter(|it| !it.is_zero())
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok()).is_some_and(is_json_type)
}

/// Whether what has this type is JSON, if it is what it says.
pub(super) fn is_json_type(media_type: &str) -> bool {
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json") || media_type.ends_with("+json")
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(headers.get(name)?.to_str().ok()?.trim()).ok()?;
    Timestamp::try_from(date).ok()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use hyper::{Response, StatusCode};

    use super::*;
    use crate::record::Failed;

    fn answer(status: u16, headers: &[(HeaderName, &str)]) -> Parts {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).expect("a value");
            response.headers_mut().insert(name, value);
        }
        response.into_parts().0
    }

    fn read(answer: &Parts, body: &[u8], payload: &[u8]) -> Verdict {
        verdict(Accept::Strict, answer, body, Sent { payload, credentials: &HeaderMap::new() })
    }

    fn kind(accept: Accept, status: u16) -> &'static str {
        let sent = Sent { payload: b"", credentials: &HeaderMap::new() };
        match verdict(accept, &answer(status, &[]), b"", sent) {
            Verdict::Processed { outcome: None } => "processed",
            Verdict::Processed { outcome: Some(_) } => "already",
            Verdict::Retry { .. } => "retry",
            Verdict::Outage { .. } => "outage",
            Verdict::Misconfigured { .. } => "misconfigured",
            Verdict::Dead { .. } => "dead",
        }
    }

    #[test]
    fn every_status_has_one_meaning() {
        for status in 100..=999 {
            let expected = match status {
                200 | 201 | 204 => "processed",
                409 => "already",
                422 => "dead",
                408 | 429 | 502 | 503 | 504 => "outage",
                425 | 500..=599 => "retry",
                _ => "misconfigured",
            };
            assert_eq!(kind(Accept::Strict, status), expected, "{status}");
            let any = if (200..300).contains(&status) { "processed" } else { expected };
            assert_eq!(kind(Accept::AnySuccess, status), any, "{status}");
        }
    }

    /// A service that refuses an event explains itself; a proxy that does not know the way sends a page.
    #[test]
    fn a_bad_request_is_about_the_event_if_the_service_says_why() {
        for (media_type, about_the_event) in [
            ("application/problem+json", true),
            ("application/json; charset=utf-8", true),
            ("text/html", false),
        ] {
            let verdict = read(&answer(400, &[(CONTENT_TYPE, media_type)]), b"{}", b"");
            let retried = matches!(verdict, Verdict::Retry { .. });
            assert_eq!(retried, about_the_event, "{media_type}");
        }
    }

    #[test]
    fn retry_after_is_understood_and_capped() {
        const DATE_NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        let after = |text: &str| {
            retry_after(&answer(503, &[(RETRY_AFTER, text), (DATE, DATE_NOW)]).headers)
        };
        for (text, seconds) in [
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("0", None),
            ("299", Some(299)),
            ("301", Some(300)),
            ("99999999999999999999999", Some(300)),
            ("-1", None),
            ("soon", None),
            ("", None),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)), // the two older forms
            ("Sun Nov  6 08:50:07 1994", Some(30)),
            ("Sun, 06 Nov 1994 08:49:07 GMT", None), // past
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(300)),
        ] {
            assert_eq!(after(text), seconds.map(Duration::from_secs), "{text:?}");
        }
        assert_eq!(retry_after(&answer(503, &[]).headers), None);
    }

    #[test]
    fn without_a_date_our_clock_counts() {
        let past = answer(503, &[(RETRY_AFTER, "Sun, 06 Nov 1994 08:49:37 GMT")]);
        assert_eq!(retry_after(&past.headers), None);
        let future = answer(503, &[(RETRY_AFTER, "Fri, 06 Nov 2893 08:49:37 GMT")]);
        assert_eq!(retry_after(&future.headers), Some(RETRY_AFTER_MAX));
    }

    #[test]
    fn the_reason_says_what_the_service_said_but_not_what_it_was_sent() {
        let payload = br#"{"customer": "Ada Lovelace"}"#;
        let parts = answer(422, &[]);
        let Verdict::Dead { reason } = read(&parts, b"no customer ada", payload) else {
            panic!("422 is dead");
        };
        assert_eq!(reason, "422 Unprocessable Entity: no customer …");
        let failed = Failed { reason: &reason, took: Duration::ZERO };
        assert_eq!(failed.code(), Some(422));
        let parts = answer(308, &[(LOCATION, "https://b.example/orders")]);
        let Verdict::Misconfigured { reason } = read(&parts, b"", payload) else {
            panic!("308 is a misconfiguration");
        };
        let expected =
            "308 Permanent Redirect (redirects to https://b.example/orders are not followed)";
        assert_eq!(reason, expected);
    }
}
