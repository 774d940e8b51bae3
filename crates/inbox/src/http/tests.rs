//! Each row of the table against a real server, and what it is sent.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

mod bodies;
mod callers;
mod proxies;
mod urls;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const LEASE: Duration = Duration::from_secs(30);

/// A request as the server saw it.
#[derive(Clone)]
struct Seen {
    from: SocketAddr,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

type Answer = Arc<dyn Fn() -> Response + Send + Sync>;

/// A service that answers every request the same way.
struct Service {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

#[derive(Clone)]
struct Shared {
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Answer,
}

impl Service {
    async fn answering(answer: impl Fn() -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = Shared { seen: Arc::clone(&seen), answer: Arc::new(answer) };
        let router = Router::new().fallback(serve).with_state(shared);
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, seen }
    }

    async fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self::answering(move || status.into_response()).await
    }

    fn url(&self) -> String {
        format!("http://{}/orders?from=inbox", self.address)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

async fn serve(
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    State(shared): State<Shared>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let path = format!("{} {}", parts.method, parts.uri);
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let seen = Seen { from, path, headers: parts.headers, body };
    shared.seen.lock().expect("not poisoned").push(seen);
    (shared.answer)()
}

fn options(url: &str) -> HttpOptions {
    HttpOptions {
        credentials: Credentials {
            secrets: vec![SECRET.parse().expect("a secret")],
            ..Credentials::default()
        },
        ..HttpOptions::new(url, Duration::from_secs(10))
    }
}

fn handler(url: &str) -> HttpHandler {
    HttpHandler::new(options(url)).expect("valid options")
}

fn event() -> outbox::Event {
    let payload = serde_json::json!({ "total": 42, "customer": "Ada" });
    outbox::Event::new("order", "o-17", "OrderPlaced", &payload).expect("an event")
}

async fn deliver_with(
    handler: &HttpHandler,
    event: &outbox::Event,
    headers: &async_nats::HeaderMap,
    lease: Duration,
) -> Verdict {
    let delivery = Delivery {
        consumer: "billing",
        event,
        subject: "outbox.order.OrderPlaced",
        headers,
        stream: "OUTBOX",
        stream_seq: 7,
        attempt: 2,
        max_attempts: 5,
        lease,
        span: None,
    };
    handler.handle(delivery).await
}

async fn deliver(handler: &HttpHandler) -> Verdict {
    deliver_with(handler, &event(), &async_nats::HeaderMap::new(), LEASE).await
}

#[derive(Debug, PartialEq)]
enum Kind {
    Processed,
    Already,
    Retry,
    Outage,
    Misconfigured,
    Dead,
}

fn kind(verdict: &Verdict) -> Kind {
    match verdict {
        Verdict::Processed { outcome: None } => Kind::Processed,
        Verdict::Processed { outcome: Some(_) } => Kind::Already,
        Verdict::Retry { .. } => Kind::Retry,
        Verdict::Outage { .. } => Kind::Outage,
        Verdict::Misconfigured { .. } => Kind::Misconfigured,
        Verdict::Dead { .. } => Kind::Dead,
    }
}

async fn check(status: u16, expected: Kind) {
    let service = Service::status(status).await;
    let verdict = deliver(&handler(&service.url())).await;
    assert_eq!(kind(&verdict), expected, "{status}: {verdict:?}");
    assert_eq!(service.seen().len(), 1, "{status} is one request");
}

#[tokio::test]
async fn success_is_processed() {
    for status in [200, 201, 204] {
        check(status, Kind::Processed).await;
    }
}

#[tokio::test]
async fn a_conflict_is_processed_already() {
    check(409, Kind::Already).await;
}

#[tokio::test]
async fn unprocessable_is_dead() {
    check(422, Kind::Dead).await;
}

#[tokio::test]
async fn trouble_of_the_service_is_retried() {
    for status in [425, 500, 501, 505, 507, 599] {
        check(status, Kind::Retry).await;
    }
}

/// A service that is away says nothing about the event.
#[tokio::test]
async fn a_service_that_is_away_or_overloaded_is_an_outage() {
    for status in [408, 429, 502, 503, 504] {
        check(status, Kind::Outage).await;
    }
}

#[tokio::test]
async fn other_refusals_are_a_misconfiguration() {
    for status in
        [400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 418, 426, 428, 431, 451]
    {
        check(status, Kind::Misconfigured).await;
    }
}

/// A 202 says that nothing has happened yet.
#[tokio::test]
async fn other_kinds_of_success_are_a_misconfiguration() {
    for status in [202, 203, 205, 206] {
        check(status, Kind::Misconfigured).await;
    }
}

#[tokio::test]
async fn redirects_are_a_misconfiguration_and_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let elsewhere = Service::status(200).await;
        let (to, code) = (elsewhere.url(), StatusCode::from_u16(status).expect("a status"));
        let location = to.clone();
        let answer = move || (code, [("location", location.clone())]).into_response();
        let service = Service::answering(answer).await;
        let verdict = deliver(&handler(&service.url())).await;
        let Verdict::Misconfigured { reason } = verdict else { panic!("{status}: {verdict:?}") };
        assert!(reason.contains(&to), "{reason}");
        assert!(elsewhere.seen().is_empty(), "{status} was followed");
    }
}

#[tokio::test]
async fn retry_after_is_honoured_and_capped() {
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (text, seconds) in [("7", 7), ("86400", 300), ("Sun, 06 Nov 1994 08:50:07 GMT", 30)] {
        for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS] {
            let answer = move || (status, [("retry-after", text), ("date", NOW)]).into_response();
            let service = Service::answering(answer).await;
            let verdict = deliver(&handler(&service.url())).await;
            let Verdict::Outage { after, .. } = verdict else { panic!("{verdict:?}") };
            assert_eq!(after, Some(Duration::from_secs(seconds)), "{text}");
        }
    }
}

/// Before the lease ends, however long the handler was allowed to take.
#[tokio::test]
async fn silence_is_an_outage_before_the_lease_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let started = Instant::now();
    let lease = Duration::from_millis(500);
    let headers = async_nats::HeaderMap::new();
    let verdict = deliver_with(&handler(&url), &event(), &headers, lease).await;
    let expected = Verdict::Outage { reason: "no answer within 400ms".into(), after: None };
    assert_eq!(verdict, expected);
    assert!(started.elapsed() >= Duration::from_millis(400) && started.elapsed() < LEASE / 3);
    let short = HttpOptions { timeout: Duration::from_millis(50), ..options(&url) };
    let verdict = deliver(&HttpHandler::new(short).expect("valid options")).await;
    assert_eq!(kind(&verdict), Kind::Outage, "{verdict:?}");
}

#[tokio::test]
async fn no_connection_is_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let verdict = deliver(&handler(&url)).await;
    let Verdict::Outage { reason, after: None } = verdict else { panic!("{verdict:?}") };
    assert!(reason.starts_with("could not connect") && reason.contains("refused"), "{reason}");
}

/// What is no answer, and what is half of one.
#[tokio::test]
async fn a_connection_that_breaks_is_an_outage() {
    for answer in ["", "HTTP/1.1 20", "this is not http\r\n\r\n"] {
        let url = raw(answer, false).await;
        let verdict = deliver(&handler(&url)).await;
        let Verdict::Outage { reason, .. } = verdict else { panic!("{answer:?}: {verdict:?}") };
        assert!(reason.starts_with("no answer: "), "{reason}");
    }
}

/// The status has decided: asking again would double the effect.
#[tokio::test]
async fn a_success_whose_body_breaks_or_hangs_is_processed() {
    for hang in [false, true] {
        let url = raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this", hang).await;
        assert_eq!(kind(&deliver(&handler(&url)).await), Kind::Processed, "hangs: {hang}");
    }
}

/// A server that reads a request, writes `answer`, and then closes or hangs.
async fn raw(answer: &'static str, hang: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 8192];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            if hang {
                open.push(stream);
            }
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let answer = || {
        let endless = futures_util::stream::repeat_with(|| Ok::<_, axum::Error>("x".repeat(8192)));
        (StatusCode::BAD_GATEWAY, Body::from_stream(endless)).into_response()
    };
    let service = Service::answering(answer).await;
    let verdict = deliver(&handler(&service.url())).await;
    let Verdict::Outage { reason, .. } = verdict else { panic!("{verdict:?}") };
    assert!(reason.starts_with("502 Bad Gateway: xxx") && reason.len() < 400, "{}", reason.len());
}

#[tokio::test]
async fn the_service_gets_the_event_and_what_belongs_to_it() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = event()
        .with_header("traceparent", PARENT)
        .with_header("tracestate", "a=1,b=2")
        .with_header("baggage", "user=ada")
        .with_header("note", "grüße");
    let mut headers = async_nats::HeaderMap::new();
    outbox::wire::event_headers(&event, |name, value| headers.append(name, value)).expect("valid");
    headers.append("Nats-Expected-Stream", "OUTBOX");
    headers.append("Tailpost-Position", "7/1/0-19212B0/0");
    headers.append("twice", "a");
    headers.append("twice", "b");
    let service = Service::status(200).await;
    let handler = handler(&service.url());
    deliver_with(&handler, &event, &headers, LEASE).await;
    let seen = service.seen().pop().expect("a request");
    assert_eq!(seen.path, "POST /orders?from=inbox");
    assert_eq!(seen.body, event.payload);

    let id = event.id.to_string();
    let occurred_at = event.occurred_at.to_string();
    let length = event.payload.len().to_string();
    let expected = HashMap::from([
        ("content-type", "application/json"),
        ("content-length", &length),
        ("idempotency-key", &id),
        ("tailpost-consumer", "billing"),
        ("tailpost-subject", "outbox.order.OrderPlaced"),
        ("tailpost-stream", "OUTBOX"),
        ("tailpost-stream-seq", "7"),
        ("tailpost-attempt", "2"),
        ("tailpost-max-attempts", "5"),
        ("tailpost-escaped", "Tailpost-Header-note"),
        ("event-type", "OrderPlaced"),
        ("event-version", "1"),
        ("aggregate-type", "order"),
        ("aggregate-id", "o-17"),
        ("occurred-at", &occurred_at),
        ("traceparent", PARENT),
        ("tracestate", "a=1,b=2"),
        ("baggage", "user=ada"),
        ("tailpost-header-note", "gr%C3%BC%C3%9Fe"),
        ("webhook-id", &id),
    ]);
    for (name, value) in expected {
        let values: Vec<_> = seen.headers.get_all(name).iter().collect();
        assert_eq!(values, [value], "{name}");
    }
    let twice: Vec<_> = seen.headers.get_all("tailpost-header-twice").iter().collect();
    assert_eq!(twice, ["a", "b"]);
    for name in ["nats-msg-id", "nats-expected-stream", "tailpost-position"] {
        assert!(!seen.headers.contains_key(name), "{name} is nobody's business");
    }
    check_signature(&seen);
}

/// What a producer wrote has no meaning to the service that is not meant.
#[tokio::test]
async fn a_producers_headers_are_not_those_of_the_request() {
    const HEADERS: [(&str, &str); 10] = [
        ("Connection", "close"),
        ("Idempotency-Key", "forged"),
        ("webhook-signature", "forged"),
        ("Authorization", "Bearer forged"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("Cookie", "session=forged"),
        ("Host", "evil.example"),
        ("event-type", "Forged"),
        ("a b", "odd"),
    ];
    let event = HEADERS.iter().fold(event(), |it, (name, value)| it.with_header(name, value));
    let mut headers = async_nats::HeaderMap::new();
    outbox::wire::event_headers(&event, |name, value| headers.append(name, value)).expect("valid");
    headers.append("aggregate-id", "forged"); // by another client
    let service = Service::status(200).await;
    deliver_with(&handler(&service.url()), &event, &headers, LEASE).await;
    let seen = service.seen().pop().expect("a request");
    let values = |name: &str| {
        let values = seen.headers.get_all(name).iter();
        values.map(|it| it.to_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    for (name, value) in HEADERS {
        let name = format!("tailpost-header-{}", name.replace(' ', "%20"));
        assert_eq!(values(&name), [value], "{name}");
    }
    for name in ["connection", "authorization", "cookie", "x-forwarded-for", "a%20b", "x-a%20b"] {
        assert_eq!(values(name), [""; 0], "{name} may mean something to the service");
    }
    for (name, value) in [
        ("host", service.address.to_string()),
        ("idempotency-key", event.id.to_string()),
        ("event-type", "OrderPlaced".to_owned()),
        ("aggregate-id", "o-17".to_owned()),
    ] {
        assert_eq!(values(name), [value], "{name}");
    }
    check_signature(&seen);
}

fn check_signature(seen: &Seen) {
    let text = |name: &str| seen.headers[name].to_str().expect("text");
    let timestamp: i64 = text("webhook-timestamp").parse().expect("seconds");
    let age = jiff::Timestamp::now().as_second() - timestamp;
    assert!((0..5).contains(&age), "{age} s old");
    let secret: Secret = SECRET.parse().expect("a secret");
    let expected = signature::sign(&[secret], text("webhook-id"), timestamp, &seen.body);
    assert_eq!(text("webhook-signature"), expected);
}

#[tokio::test]
async fn without_a_secret_nothing_is_signed() {
    let service = Service::status(200).await;
    let credentials = Credentials::default();
    let handler =
        HttpHandler::new(HttpOptions { credentials, ..options(&service.url()) }).expect("valid");
    deliver(&handler).await;
    let seen = service.seen().pop().expect("a request");
    assert!(!seen.headers.contains_key("webhook-signature"));
    assert_eq!(seen.headers["webhook-id"], seen.headers["idempotency-key"]);
}

#[tokio::test]
async fn connections_are_used_again() {
    let service = Service::answering(|| (StatusCode::OK, "done").into_response()).await;
    let handler = handler(&service.url());
    for _ in 0..20 {
        assert_eq!(kind(&deliver(&handler).await), Kind::Processed);
    }
    let ports: std::collections::HashSet<_> =
        service.seen().iter().map(|seen| seen.from.port()).collect();
    assert_eq!(ports.len(), 1);
}

#[tokio::test]
async fn tls_is_spoken_with_those_who_are_trusted() {
    let (address, trusted) = tls_server().await;
    let url = format!("https://localhost:{}", address.port());
    assert_eq!(HttpHandler::new(options(&url)).err(), Some(HttpError::NoTls));
    let with = |tls| HttpHandler::new(HttpOptions { tls: Some(tls), ..options(&url) });
    let verdict = deliver(&with(trusted).expect("valid options")).await;
    assert_eq!(kind(&verdict), Kind::Processed, "{verdict:?}");
    let verdict = deliver(&with(trusting_nobody()).expect("valid options")).await;
    let Verdict::Outage { reason, .. } = verdict else { panic!("{verdict:?}") };
    assert!(reason.contains("certificate"), "{reason}");
}

/// A server that says 204 over TLS, and a configuration that trusts it.
async fn tls_server() -> (SocketAddr, ClientConfig) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let own = rcgen::generate_simple_self_signed(["localhost".into()]).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).expect("a usable certificate");
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring supports them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports them")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.expect("a key"))
        .expect("they belong together");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 8192];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    (address, client)
}
