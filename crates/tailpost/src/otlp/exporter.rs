//! The thread that sends spans.

use std::sync::atomic::Ordering;
use std::thread::Builder;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use outbox::spans::{Span, SpanSink};
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::proto;
use super::{DROPPED, EXPORTED, dropped};
use crate::config::Settings;

/// Spans that wait, at most.
const QUEUE: usize = 8_192;
/// Spans in a request.
const BATCH: usize = 512;
/// How long a span waits for company.
const LINGER: Duration = Duration::from_secs(1);
/// How long a collector may take for a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Requests for the same spans, the first one included.
const ATTEMPTS_MAX: u32 = 4;
/// The first pause between two requests, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long a stop waits for what is left.
const FLUSH_MAX: Duration = Duration::from_secs(3);
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// How much is logged of what a collector says.
const REASON_CHARS_MAX: usize = 300;

/// Where OTLP's traces are taken, below an endpoint.
const PATH: &str = "/v1/traces";

/// Sends spans from a thread of its own.
pub(super) struct Exporter {
    sink: SpanSink,
    stop: CancellationToken,
    has_ended: oneshot::Receiver<()>,
}

impl Exporter {
    pub(super) fn start(endpoint: &str, settings: &Settings) -> Result<Self> {
        let url = url(endpoint, settings.telemetry.is_exact);
        let url: Uri = url.parse().context("telemetry.otlp_endpoint")?;
        let mut http = HttpConnector::new();
        http.enforce_http(false); // The TLS connector around it decides.
        let client = if url.scheme_str() == Some("https") {
            let tls = servers::https_config(None, None)?;
            let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
            client(https.enable_http1().wrap_connector(http))
        } else {
            client(http)
        };
        let work = Work {
            client,
            headers: headers(settings)?,
            resource: resource(settings),
            url,
            failing: None,
            seen_dropped: dropped(),
        };
        let (sender, queue) = mpsc::channel(QUEUE);
        let sink = SpanSink::new(move |span| {
            if sender.try_send(span).is_err() {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (ended, has_ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = Builder::new().name("otlp".into());
        let thread = thread.spawn(move || run(runtime, work.run(queue, stopped), ended));
        thread.context("start a thread")?;
        Ok(Self { sink, stop, has_ended })
    }

    pub(super) fn sink(&self) -> SpanSink {
        self.sink.clone()
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        // It ends by itself; the bound is for a machine that stands still.
        let _ = timeout(FLUSH_MAX * 2, self.has_ended).await;
    }
}

/// Where requests go.
fn url(endpoint: &str, is_exact: bool) -> String {
    let base = endpoint.trim_end_matches('/');
    match is_exact {
        true => endpoint.to_owned(),
        false if base.ends_with(PATH) => base.to_owned(),
        false => format!("{base}{PATH}"),
    }
}

/// Runs on the exporter's own thread. A look-up of the collector's name may still block a thread:
/// the runtime does not wait for it.
fn run(runtime: Runtime, work: impl Future<Output = ()>, ended: oneshot::Sender<()>) {
    runtime.block_on(work);
    runtime.shutdown_background();
    let _ = ended.send(()); // fails if the receiver is gone
}

/// Sends a request, with TLS or without.
type Http = Box<dyn Fn(Request<Full<Bytes>>) -> ResponseFuture + Send + Sync>;

fn client<C: Connect + Clone + Send + Sync + 'static>(connector: C) -> Http {
    let client = Client::builder(TokioExecutor::new()).build(connector);
    Box::new(move |request| client.request(request))
}

/// As `OTEL_EXPORTER_OTLP_HEADERS` has them, checked when they were set.
fn headers(settings: &Settings) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let given = settings.telemetry.otlp_headers.iter();
    for (name, value) in given.flat_map(|it| &it.0) {
        let name = HeaderName::from_bytes(name.as_bytes()).context("telemetry.otlp_headers")?;
        let mut value = HeaderValue::from_str(value).context("telemetry.otlp_headers")?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    let agent = HeaderValue::from_static(concat!("tailpost/", env!("CARGO_PKG_VERSION")));
    headers.insert(USER_AGENT, agent);
    Ok(headers)
}

fn resource(settings: &Settings) -> Vec<(&'static str, String)> {
    vec![
        ("service.name", settings.telemetry.service_name.clone()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("deployment.environment.name", settings.metrics.environment.clone()),
    ]
}

struct Work {
    client: Http,
    url: Uri,
    headers: HeaderMap,
    resource: Vec<(&'static str, String)>,
    /// While requests fail: how many spans had been dropped before.
    failing: Option<u64>,
    /// How many of the dropped spans have been logged.
    seen_dropped: u64,
}

enum Failure {
    /// Another request may succeed, after this pause if the collector named one.
    Passing(String, Option<Duration>),
    /// These spans are never taken.
    Final(String),
}

impl Work {
    async fn run(mut self, mut queue: Receiver<Span>, stop: CancellationToken) {
        let mut batch = Vec::new();
        let exported = async {
            loop {
                queue.recv_many(&mut batch, BATCH).await;
                let until = Instant::now() + LINGER;
                while batch.len() < BATCH
                    && let Ok(Some(span)) = timeout_at(until, queue.recv()).await
                {
                    batch.push(span);
                }
                if !self.export(&batch, ATTEMPTS_MAX).await {
                    DROPPED.fetch_add(batch.len() as u64, Ordering::Relaxed);
                }
                batch.clear();
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = exported => {}
        }
        let flushed = async {
            loop {
                while batch.len() < BATCH
                    && let Ok(span) = queue.try_recv()
                {
                    batch.push(span);
                }
                if batch.is_empty() || !self.export(&batch, 1).await {
                    return;
                }
                batch.clear();
            }
        };
        let _ = timeout(FLUSH_MAX, flushed).await;
        let left = batch.len() + queue.len();
        if left > 0 {
            DROPPED.fetch_add(left as u64, Ordering::Relaxed);
            warn!(spans = left, "stopped without exporting the last spans");
        }
    }

    /// Whether the collector took the spans, in so many attempts.
    async fn export(&mut self, batch: &[Span], attempts: u32) -> bool {
        let mut pause = PAUSE.0;
        for attempt in 1.. {
            let (why, named) = match self.attempt(batch).await {
                Ok(partial) => {
                    self.succeeded(&partial.unwrap_or_default(), batch.len() as u64);
                    return true;
                }
                Err(Failure::Passing(why, named)) => (why, (attempt < attempts).then_some(named)),
                Err(Failure::Final(why)) => (why, None),
            };
            self.failed(&why);
            let Some(named) = named else { return false };
            sleep(named.unwrap_or(pause).min(PAUSE.1)).await;
            pause *= 2;
        }
        false
    }

    /// One request. Returns what the collector says of spans that it did not take.
    async fn attempt(&self, batch: &[Span]) -> Result<Option<ExportTracePartialSuccess>, Failure> {
        let body = Bytes::from(proto::request(&self.resource, batch).encode_to_vec());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let passing = |why: String| Failure::Passing(why, None);
        let exchange = async {
            let response = (self.client)(request).await;
            let response = response.map_err(|it| passing(crate::errors::chain(&it.into())))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            Ok((parts, body.map(|it| it.to_bytes()).unwrap_or_default()))
        };
        let late = || Err(passing(format!("no answer within {TIMEOUT:?}")));
        let (parts, body) = timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| late())?;
        if parts.status.is_success() {
            let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
            return Ok(response.partial_success);
        }
        let why = format!("the collector answers {}", parts.status);
        // As OTLP's specification has it.
        let passes = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        if !passes.contains(&parts.status) {
            return Err(Failure::Final(why));
        }
        let named = parts.headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
        Err(Failure::Passing(why, named.map(Duration::from_secs)))
    }

    fn failed(&mut self, error: &str) {
        if self.failing.is_none() {
            self.failing = Some(dropped());
            warn!(
                error,
                hint = "see that a collector takes OTLP over HTTP at telemetry.otlp_endpoint, \
                        usually on port 4318, or remove the setting",
                "spans cannot be exported: events go on, and spans that do not fit are dropped"
            );
        }
    }

    fn succeeded(&mut self, partial: &ExportTracePartialSuccess, sent: u64) {
        let rejected = partial.rejected_spans.max(0).unsigned_abs().min(sent);
        EXPORTED.fetch_add(sent - rejected, Ordering::Relaxed);
        if rejected > 0 {
            DROPPED.fetch_add(rejected, Ordering::Relaxed);
            self.seen_dropped += rejected;
            let line = partial.error_message.lines().next().unwrap_or_default();
            let reason: String = line.chars().take(REASON_CHARS_MAX).collect();
            warn!(
                rejected,
                reason,
                hint = "see the collector's own log and limits",
                "spans are dropped: the collector rejects them"
            );
        }
        let dropped_now = dropped();
        if let Some(before) = self.failing.take() {
            info!(dropped = dropped_now - before, "spans are exported again");
        } else if dropped_now > self.seen_dropped {
            warn!(
                dropped = dropped_now - self.seen_dropped,
                hint = "give the collector more room, or sample fewer traces",
                "spans are dropped: the collector takes them more slowly than they are made"
            );
        }
        self.seen_dropped = dropped_now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_gets_the_path_of_traces_and_an_exact_address_stays_as_it_is() {
        for (endpoint, is_exact, expected) in [
            ("http://c:4318", false, "http://c:4318/v1/traces"),
            ("http://c/otlp/", false, "http://c/otlp/v1/traces"),
            ("http://c/v1/traces/", false, "http://c/v1/traces"),
            ("http://c:4318", true, "http://c:4318"),
            ("http://c/otlp/", true, "http://c/otlp/"),
            ("http://c/v1/traces", true, "http://c/v1/traces"),
        ] {
            assert_eq!(url(endpoint, is_exact), expected);
        }
    }
}
