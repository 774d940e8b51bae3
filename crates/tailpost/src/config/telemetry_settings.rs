//! `[telemetry]`: where spans go.

use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::forms::form;

/// Holds secrets: not `Debug`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "checked, and used by nobody"))]
pub(crate) struct TelemetrySettings {
    /// Spans are made if it is set.
    pub(crate) otlp_endpoint: Option<Endpoint>,
    /// What requests to it carry, such as a token.
    pub(crate) otlp_headers: Option<OtlpHeaders>,
    /// Whose spans they are.
    pub(crate) service_name: String,
    /// Whether the endpoint is the address of requests itself, to which nothing is added.
    #[serde(skip)]
    pub(crate) is_exact: bool,
    /// The variable of OpenTelemetry that was passed over, since it cannot be used.
    #[serde(skip)]
    pub(crate) unusable: Option<&'static str>,
}

form!(
    /// Where requests with spans go.
    #[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "checked, and used by nobody"))]
    Endpoint(String),
    "an http:// or https:// address such as \"http://collector:4318\", without user, password and \
     query (credentials go into telemetry.otlp_headers)",
    |it| it.as_str().filter(|it| is_plain(it)).map(str::to_owned)
);

form!(
    /// `name=value,name=value`, values percent-encoded.
    #[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "checked, and used by nobody"))]
    OtlpHeaders(Vec<(String, String)>),
    "a secret: headers as name=value, separated by commas, percent-encoded",
    |it| it.as_str()?.split(',').map(header).collect()
);

fn is_plain(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|it| {
        let is_host = !it.is_empty() && !it.starts_with(['/', ':']);
        is_host && !it.contains(['@', '?', '#']) && it.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

fn header(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?.into_owned();
    let is_name = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
    let name = name.trim();
    let is_valid = !name.is_empty()
        && name.bytes().all(is_name)
        && value.bytes().all(|it| matches!(it, b' '..=b'~'));
    is_valid.then(|| (name.to_ascii_lowercase(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> Option<Vec<(String, String)>> {
        OtlpHeaders::try_from(serde_json::Value::from(text)).ok().map(|it| it.0)
    }

    #[test]
    fn headers_are_as_opentelemetry_writes_them() {
        let read = headers("Authorization=Bearer%20x, x-tenant=a");
        let expected =
            [("authorization", "Bearer x"), ("x-tenant", "a")].map(|(a, b)| (a.into(), b.into()));
        assert_eq!(read, Some(expected.to_vec()));
        for text in ["x", "=a", "a b=c", "a=%0d", "a=1,"] {
            assert_eq!(headers(text), None, "{text}");
        }
    }

    #[test]
    fn an_endpoint_has_no_secrets() {
        for text in ["http://c:4318", "https://c/otlp", "http://[::1]:4318/v1/traces"] {
            assert!(is_plain(text), "{text}");
        }
        for text in
            ["c:4317", "grpc://c", "http://u:p@c", "https://c?token=x", "http://", "http:///"]
        {
            assert!(!is_plain(text), "{text}");
        }
    }
}
