//! Spans as OTLP 1.x has them.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use outbox::spans::{self, SpanValue};

/// A parent or a link comes from another process.
const IS_REMOTE: u32 = 0x300;
const SAMPLED: u32 = 1;

/// What one request says: who the process is, and what it did.
pub(super) fn request(
    resource: &[(&'static str, String)],
    spans: &[spans::Span],
) -> ExportTraceServiceRequest {
    let attributes = resource.iter().map(|(key, value)| pair(key, value.as_str().into())).collect();
    let scope = InstrumentationScope {
        name: "tailpost".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let spans = spans.iter().map(span).collect();
    let of_resource = ResourceSpans {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![of_resource] }
}

fn span(span: &spans::Span) -> Span {
    let trace_id = span.context.parent.trace_id.to_bytes().to_vec();
    let link = span.link.map(|it| Link {
        trace_id: trace_id.clone(),
        span_id: it.to_bytes().to_vec(),
        trace_state: span.context.state.clone(),
        flags: SAMPLED | IS_REMOTE,
        ..Link::default()
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
            spans::SpanKind::Producer => SpanKind::Producer.into(),
            spans::SpanKind::Consumer => SpanKind::Consumer.into(),
        },
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: attributes.chain(error).collect(),
        links: link.into_iter().collect(),
        status: span.error.map(|_| Status { code: StatusCode::Error.into(), ..Status::default() }),
        flags: SAMPLED | IS_REMOTE,
        ..Span::default()
    }
}

fn pair(key: &str, value: SpanValue) -> KeyValue {
    let value = match value {
        SpanValue::Text(text) => Value::StringValue(text),
        SpanValue::Number(number) => Value::IntValue(number),
    };
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
