//! A collector of traces, which reads them with the definitions that OpenTelemetry publishes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use support::{DEADLINE, until};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What a collector does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Takes,
    Answers(u16),
    /// Takes requests, and none of their spans.
    Rejects(&'static str),
    Hangs,
}

#[derive(Default)]
pub(super) struct Received {
    pub(super) resource: BTreeMap<String, String>,
    pub(super) spans: Vec<Span>,
    pub(super) tokens: Vec<String>,
    pub(super) paths: Vec<String>,
    pub(super) requests: usize,
}

pub(super) struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Collector {
    pub(super) async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let received = Arc::new(Mutex::new(Received::default()));
        let router = Router::new().fallback(take).with_state((manner, Arc::clone(&received)));
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, received, task }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn with<T>(&self, read: impl FnOnce(&Received) -> T) -> T {
        read(&self.received.lock().expect("not poisoned"))
    }

    /// Waits for so many spans of this name, and returns them.
    pub(super) async fn wait_spans(&self, name: &str, count: usize) -> Vec<Span> {
        let named = || -> Vec<Span> {
            self.with(|it| it.spans.iter().filter(|it| it.name == name).cloned().collect())
        };
        until(DEADLINE, &format!("{count} spans `{name}`"), async || named().len() >= count).await;
        named()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn take(
    State((manner, received)): State<(Manner, Arc<Mutex<Received>>)>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    received.lock().expect("not poisoned").requests += 1;
    match manner {
        Manner::Takes | Manner::Rejects(_) => {}
        Manner::Answers(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, [("retry-after", "0")], Vec::new());
        }
        Manner::Hangs => std::future::pending().await,
    }
    let text = |name: &str| headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or_default();
    assert_eq!(text("content-type"), "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
    let mut received = received.lock().expect("not poisoned");
    received.paths.push(uri.path().to_owned());
    received.tokens.push(text("authorization").to_owned());
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.expect("a resource");
        received.resource = texts(&resource.attributes);
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.expect("a scope").name, "tailpost");
            received.spans.extend(of_scope.spans);
        }
    }
    let answer = match manner {
        Manner::Rejects(reason) => ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: i64::try_from(received.spans.len()).expect("fits"),
                error_message: reason.to_owned(),
            }),
        },
        _ => ExportTraceServiceResponse::default(),
    };
    (StatusCode::OK, [("retry-after", "0")], answer.encode_to_vec())
}

/// Attributes as text.
pub(super) fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |it: &KeyValue| {
        let text = match it.value.as_ref().and_then(|it| it.value.as_ref()) {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => panic!("neither text nor number: {other:?}"),
        };
        (it.key.clone(), text)
    };
    attributes.iter().map(text).collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}
