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
/// How often a collector is called slow, or choosy.
const SAID_EVERY: Duration = Duration::from_mins(10);
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
            state: State::Fine,
            seen_dropped: dropped(),
            slow_said: None,
            rejected: 0,
            rejection_said: None,
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

/// On the exporter's own thread. Somebody who looks up the collector's name may still be at it: no
/// process waits for that.
fn run(runtime: Runtime, work: impl Future<Output = ()>, ended: oneshot::Sender<()>) {
    runtime.block_on(work);
    runtime.shutdown_background();
    let _ = ended.send(()); // fails when nobody waits any more
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

/// `None` if everything was taken.
fn rejected(told: ExportTracePartialSuccess, sent: u64) -> Option<Rejected> {
    let spans = told.rejected_spans.max(0).unsigned_abs().min(sent);
    let line = told.error_message.lines().next().unwrap_or_default();
    let reason = line.chars().take(REASON_CHARS_MAX).collect();
    (spans > 0).then_some(Rejected { spans, reason })
}

struct Work {
    client: Http,
    url: Uri,
    headers: HeaderMap,
    resource: Vec<(&'static str, String)>,
    state: State,
    seen_dropped: u64,
    slow_said: Option<Instant>,
    /// Spans that the collector rejected, since that was said.
    rejected: u64,
    rejection_said: Option<Instant>,
}

/// What a collector did not take of a request, and why.
struct Rejected {
    spans: u64,
    reason: String,
}

/// What an operator was told last.
#[derive(Debug, Clone, Copy)]
enum State {
    Fine,
    /// Requests fail. So many spans had been dropped when that began.
    Failing {
        dropped: u64,
    },
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
        loop {
            let gathered = async {
                queue.recv_many(&mut batch, BATCH).await;
                let until = Instant::now() + LINGER;
                while batch.len() < BATCH
                    && let Ok(Some(span)) = timeout_at(until, queue.recv()).await
                {
                    batch.push(span);
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = gathered => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.export(&batch) => batch.clear(),
            }
        }
        let flushed = async {
            loop {
                while batch.len() < BATCH
                    && let Ok(span) = queue.try_recv()
                {
                    batch.push(span);
                }
                if batch.is_empty() {
                    return;
                }
                match self.attempt(&batch).await {
                    Ok(rejected) => self.succeeded(rejected),
                    Err(Failure::Passing(why, _) | Failure::Final(why)) => {
                        return self.failed(&why);
                    }
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

    /// Exports spans or gives them up.
    async fn export(&mut self, batch: &[Span]) {
        let mut pause = PAUSE.0;
        for attempt in 1.. {
            let (why, named) = match self.attempt(batch).await {
                Ok(rejected) => return self.succeeded(rejected),
                Err(Failure::Passing(why, named)) if attempt < ATTEMPTS_MAX => (why, named),
                Err(Failure::Passing(why, _) | Failure::Final(why)) => {
                    self.failed(&why);
                    DROPPED.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    return;
                }
            };
            self.failed(&why);
            sleep(named.unwrap_or(pause).min(PAUSE.1)).await;
            pause *= 2;
        }
    }

    async fn attempt(&self, batch: &[Span]) -> Result<Option<Rejected>, Failure> {
        let body = Bytes::from(proto::request(&self.resource, batch).encode_to_vec());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let passing = |why: String| Failure::Passing(why, None);
        let exchange = async {
            let response = (self.client)(request).await;
            let response = response.map_err(|error| passing(crate::exit::chain(&error.into())))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            Ok((parts, body.map(|it| it.to_bytes()).unwrap_or_default()))
        };
        let late = || Err(passing(format!("no answer within {TIMEOUT:?}")));
        let (parts, body) = timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| late())?;
        if parts.status.is_success() {
            let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
            let rejected = response.partial_success.and_then(|it| rejected(it, batch.len() as u64));
            let spans = rejected.as_ref().map_or(0, |it| it.spans);
            DROPPED.fetch_add(spans, Ordering::Relaxed);
            EXPORTED.fetch_add(batch.len() as u64 - spans, Ordering::Relaxed);
            return Ok(rejected);
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
        if !matches!(self.state, State::Failing { .. }) {
            self.state = State::Failing { dropped: dropped() };
            warn!(
                error,
                hint = "see that a collector takes OTLP over HTTP at telemetry.otlp_endpoint, \
                        usually on port 4318, or remove the setting",
                "spans cannot be exported: events go on, and spans that do not fit are dropped"
            );
        }
    }

    fn succeeded(&mut self, rejected: Option<Rejected>) {
        let is_due = |said: Option<Instant>| said.is_none_or(|it| it.elapsed() > SAID_EVERY);
        if let Some(Rejected { spans, reason }) = rejected {
            self.seen_dropped += spans;
            self.rejected += spans;
            if is_due(self.rejection_said) {
                self.rejection_said = Some(Instant::now());
                let rejected = std::mem::take(&mut self.rejected);
                warn!(
                    rejected,
                    reason,
                    hint = "see the collector's own log and limits",
                    "spans are dropped: the collector rejects them"
                );
            }
        }
        let dropped_now = dropped();
        if let State::Failing { dropped } = std::mem::replace(&mut self.state, State::Fine) {
            info!(dropped = dropped_now - dropped, "spans are exported again");
        } else if dropped_now > self.seen_dropped && is_due(self.slow_said) {
            self.slow_said = Some(Instant::now());
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
