//! `[telemetry]`: where spans go.

use percent_encoding::percent_decode_str;

use super::value::{Value, Wanted};

/// Holds secrets: not `Debug`.
#[derive(Clone, PartialEq)]
#[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "checked, and used by nobody"))]
pub(crate) struct TelemetrySettings {
    /// Spans are made if it is set.
    pub(crate) otlp_endpoint: Option<String>,
    /// Whether it is the address of requests itself, to which nothing is added.
    pub(crate) is_exact: bool,
    /// What requests to it carry, such as a token.
    pub(crate) otlp_headers: Vec<(String, String)>,
    /// Whose spans they are.
    pub(crate) service_name: String,
    /// The variable of OpenTelemetry that was passed over, since it cannot be used.
    pub(crate) unusable: Option<&'static str>,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            is_exact: false,
            otlp_headers: Vec::new(),
            service_name: "tailpost".into(),
            unusable: None,
        }
    }
}

pub(super) fn endpoint(value: Value<'_>) -> Result<Option<String>, Wanted> {
    let wanted = "an http:// or https:// address such as \"http://collector:4318\", without user, \
                  password and query (credentials go into telemetry.otlp_headers)";
    let text = value.text()?;
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_plain = rest.is_some_and(|it| {
        let is_host = !it.is_empty() && !it.starts_with(['/', ':']);
        is_host && !it.contains(['@', '?', '#']) && it.bytes().all(|byte| byte.is_ascii_graphic())
    });
    if is_plain { Ok(Some(text.to_owned())) } else { Err(wanted.into()) }
}

/// `name=value,name=value`, values percent-encoded.
pub(super) fn headers(value: Value<'_>) -> Result<Vec<(String, String)>, Wanted> {
    let wanted = || Wanted::from("headers as name=value, separated by commas, percent-encoded");
    let pair = |text: &str| {
        let (name, value) = text.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?.into_owned();
        let is_name = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
        let name = name.trim();
        let is_valid = !name.is_empty()
            && name.bytes().all(is_name)
            && value.bytes().all(|it| matches!(it, b' '..=b'~'));
        is_valid.then(|| (name.to_ascii_lowercase(), value))
    };
    value.secret()?.split(',').map(|it| pair(it).ok_or_else(wanted)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_opentelemetry_writes_them() {
        let read = headers(Value::Text("Authorization=Bearer%20x, x-tenant=a")).ok();
        let expected =
            [("authorization", "Bearer x"), ("x-tenant", "a")].map(|(a, b)| (a.into(), b.into()));
        assert_eq!(read, Some(expected.to_vec()));
        for text in ["x", "=a", "a b=c", "a=%0d", "a=1,"] {
            assert!(headers(Value::Text(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_endpoint_has_no_secrets() {
        for text in ["http://c:4318", "https://c/otlp", "http://[::1]:4318/v1/traces"] {
            assert!(endpoint(Value::Text(text)).is_ok(), "{text}");
        }
        for text in
            ["c:4317", "grpc://c", "http://u:p@c", "https://c?token=x", "http://", "http:///"]
        {
            assert!(endpoint(Value::Text(text)).is_err(), "{text}");
        }
    }
}
