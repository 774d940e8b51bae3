//! The part of OTLP 1.x that a span needs (opentelemetry/proto/trace/v1, collector/trace/v1). The
//! tests read it with the definitions that OpenTelemetry publishes.

use std::time::{SystemTime, UNIX_EPOCH};

use outbox::spans::{self, SpanKind, SpanValue};
use prost::Message;

/// A parent or a link comes from another process.
const IS_REMOTE: u32 = 0x300;
const SAMPLED: u32 = 1;
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(fixed32, tag = "6")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// What one request says: who the process is, and what it did.
pub(super) fn request(resource: &[(&'static str, String)], spans: &[spans::Span]) -> ExportRequest {
    let attributes = resource.iter().map(|(key, value)| pair(key, value.as_str().into())).collect();
    let scope = Scope { name: "tailpost".into(), version: env!("CARGO_PKG_VERSION").into() };
    let scope_spans =
        vec![ScopeSpans { scope: Some(scope), spans: spans.iter().map(span).collect() }];
    let resource = Some(Resource { attributes });
    ExportRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
}

fn span(span: &spans::Span) -> Span {
    let trace_id = span.context.parent.trace_id.to_bytes().to_vec();
    let link = span.link.map(|it| Link {
        trace_id: trace_id.clone(),
        span_id: it.to_bytes().to_vec(),
        trace_state: span.context.state.clone(),
        flags: SAMPLED | IS_REMOTE,
    });
    let attributes = span.attributes.iter().map(|(key, value)| pair(key, value.clone()));
    let error = span.error.map(|it| pair("error.type", it.into()));
    Span {
        trace_id,
        span_id: span.id.to_bytes().to_vec(),
        trace_state: span.context.state.clone(),
        parent_span_id: span.context.parent.parent_id.to_bytes().to_vec(),
        name: span.name.clone(),
        kind: match span.kind {
            SpanKind::Producer => 4,
            SpanKind::Consumer => 5,
        },
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: attributes.chain(error).collect(),
        links: link.into_iter().collect(),
        status: span.error.map(|_| Status { code: ERROR }),
        flags: SAMPLED | IS_REMOTE,
    }
}

fn pair(key: &str, value: SpanValue) -> KeyValue {
    let value = match value {
        SpanValue::Text(text) => Value::Text(text),
        SpanValue::Number(number) => Value::Number(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
