//! Hands events to an HTTP service, and reads its answer as a [`Verdict`].
//!
//! ```text
//! POST /orders HTTP/1.1                                 200, 201, 204   processed
//! Content-Type: application/json                        409             processed already
//! webhook-id: <event id>                                422             dead
//! Tailpost-Attempt: 2                                   500, 425        retry, after Retry-After
//! Event-Type: OrderPlaced                      ──▶      502–504, 408,   outage: not counted
//! Aggregate-Id: o-17                                    429, silence
//!                                                       anything else   misconfigured: not counted
//! traceparent: 00-…
//! webhook-timestamp, webhook-signature
//!
//! {"order_id": "o-17", "total_cents": 4200}
//! ```
//!
//! The service may see an event more than once: after a lost answer, or when the worker dies while
//! it waits for one. `webhook-id` is the same each time (so is `Idempotency-Key`), and 409 says "I know this one".

mod body;
mod credentials;
mod excerpt;
mod proxy;
mod request;
mod response;
mod server_errors;
mod signature;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use hyper::{StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use outbox::wire::CloudEvents;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::{Delivery, LeasedHandler, Verdict};

pub use self::body::BodyForm;
use self::credentials::Keyring;
pub use self::credentials::{Credentials, HeaderError, Headers};
use self::excerpt::Sent;
use self::proxy::Route;
pub use self::proxy::{Proxy, ProxyError};
use self::server_errors::Failing;
pub use self::signature::{Secret, SecretError};

/// Time allowed to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time allowed to read an answer's body. The verdict does not depend on it.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// What is read of an answer's body. A longer one costs the connection.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Idle connections are closed before the service does it: its own limit is 2 s with gunicorn, 5 s
/// with Node.js and uvicorn, and a request that meets the closing would count as an attempt.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1500);
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Where events go, and how.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// `http://` or `https://`, without credentials: requests are signed instead.
    pub url: String,
    /// How long an answer may take. In any case less than the lease is allowed.
    pub timeout: Duration,
    /// What requests prove themselves with.
    pub credentials: Credentials,
    /// Which answers say that an event has had its effect.
    pub accept: Accept,
    /// What is sent of an event.
    pub body: BodyForm,
    /// How events become CloudEvents, where their messages do not say it.
    pub cloudevents: CloudEvents,
    /// Through which the service is called.
    pub proxy: Option<Proxy>,
    /// Whom to trust, and as whom to appear. Needed for `https://`.
    pub tls: Option<ClientConfig>,
}

/// Which answers say that an event has had its effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Accept {
    /// 200, 201 and 204: 202 of a service of one's own would say that nothing has happened yet.
    #[default]
    #[serde(rename = "strict")]
    Strict,
    /// Every 2xx, as gateways and services of others answer.
    #[serde(rename = "2xx")]
    AnySuccess,
}

impl HttpOptions {
    /// Calls this URL, without anything else.
    #[must_use]
    pub fn new(url: impl Into<String>, timeout: Duration) -> Self {
        Self {
            url: url.into(),
            timeout,
            credentials: Credentials::default(),
            accept: Accept::default(),
            body: BodyForm::default(),
            cloudevents: CloudEvents::default(),
            proxy: None,
            tls: None,
        }
    }
}

/// Calls an HTTP service with each event.
///
/// Connections are kept and reused. Redirects are not followed: they would take the event to where
/// nobody meant it to go.
#[derive(Debug)]
pub struct HttpHandler {
    client: Client<HttpsConnector<Route>, Full<Bytes>>,
    url: Uri,
    /// For the proxy, where requests pass it in the clear.
    authorization: Option<HeaderValue>,
    timeout: Duration,
    keyring: Keyring,
    accept: Accept,
    body: BodyForm,
    cloudevents: CloudEvents,
    failing: Failing,
}

/// The options do not make a handler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The URL cannot be called.
    #[error("not a handler's URL: {reason}")]
    Url {
        /// What is wrong with it; does not repeat it.
        reason: &'static str,
    },
    /// Nobody said whom to trust.
    #[error("an https handler needs a TLS configuration")]
    NoTls,
    /// A file of credentials cannot be used.
    #[error("{reason}")]
    File {
        /// Which one, and what is wrong with it; repeats nothing of it.
        reason: String,
    },
}

/// What an operator does about a file of credentials.
const FILE_HINT: &str = "mend the file, which is read again before the next attempt";

impl HttpError {
    fn file(setting: &str, path: &Path, reason: impl Display) -> Self {
        let reason = format!("could not load {setting} from {}: {reason}", path.display());
        Self::File { reason }
    }
}

impl HttpHandler {
    /// Checks the options. Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// [`HttpError`] if the URL cannot be called.
    pub fn new(options: HttpOptions) -> Result<Self, HttpError> {
        let url = parse_url(&options.url)?;
        let tls = match options.tls {
            Some(tls) => tls,
            None if url.scheme_str() == Some("https") => return Err(HttpError::NoTls),
            None => trusting_nobody(),
        };
        let proxy = options.proxy;
        let is_clear = url.scheme_str() == Some("http");
        let authorization = proxy.as_ref().filter(|_| is_clear);
        let authorization = authorization.and_then(|it| it.authorization.clone());
        let mut http = HttpConnector::new();
        http.enforce_http(false); // The TLS connector around it decides.
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector.wrap_connector(Route { http, proxy }));
        let HttpOptions { timeout, credentials, accept, body, cloudevents, .. } = options;
        let (keyring, failing) = (Keyring::new(credentials), Failing::default());
        Ok(Self {
            client,
            url,
            authorization,
            timeout,
            keyring,
            accept,
            body,
            cloudevents,
            failing,
        })
    }

    /// Reads the files of credentials, which each request needs.
    ///
    /// # Errors
    ///
    /// [`HttpError::File`] if one of them cannot be used. While that is so later, no event is sent:
    /// the handler is misconfigured.
    pub async fn check(&self) -> Result<(), HttpError> {
        self.keyring.current().await.map(|_| ())
    }

    /// What services check signatures with, of the private keys among the secrets.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn public_keys(&self) -> Result<Vec<String>, HttpError> {
        let current = self.keyring.current().await?;
        Ok(current.secrets.iter().filter_map(Secret::public_key).collect())
    }

    /// Changes when the service may let it in that did not: another file of credentials, or of
    /// certificates to trust. Their times are looked at every second, while anybody listens, in a task
    /// of its own: it is called in a Tokio runtime.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.keyring.changes()
    }

    /// As [`handle`](LeasedHandler::handle); also returns the answer's status, if there is an answer.
    pub async fn call(&self, delivery: Delivery<'_>) -> (Option<StatusCode>, Verdict) {
        // The verdict is to be written before the lease ends.
        let limit = self.timeout.min(delivery.lease * 4 / 5);
        let deadline = Instant::now() + limit;
        let current = match self.keyring.current().await {
            Ok(current) => current,
            Err(error) => {
                let reason = format!("{error}; {FILE_HINT}");
                return (None, Verdict::Misconfigured { reason });
            }
        };
        let form = (self.body, &self.cloudevents);
        let mut request = match request::request(&self.url, form, &current, &delivery) {
            Ok(request) => request,
            Err(reason) => return (None, Verdict::Misconfigured { reason }),
        };
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(PROXY_AUTHORIZATION, value.clone());
        }
        let response = match timeout_at(deadline, self.client.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return (None, response::unanswered(&error)),
            Err(_) => return (None, response::too_late(limit)),
        };
        let (parts, body) = response.into_parts();
        let mut text = Vec::new();
        let deadline = deadline.min(Instant::now() + BODY_TIMEOUT);
        // Whatever becomes of the body: the status has decided, the text only explains.
        let _ = timeout_at(deadline, read(body, &mut text)).await;
        let sent = Sent { payload: &delivery.event.payload, credentials: &current.headers };
        let verdict = response::verdict(self.accept, &parts, &text, sent);
        let verdict = self.failing.judge(delivery.event.id, parts.status, verdict);
        (Some(parts.status), verdict)
    }
}

impl LeasedHandler for HttpHandler {
    /// Sends one request and waits for the answer, for less than the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection; the service may have acted all the same.
    async fn handle(&self, delivery: Delivery<'_>) -> Verdict {
        self.call(delivery).await.1
    }
}

fn parse_url(url: &str) -> Result<Uri, HttpError> {
    let refused = |reason| Err(HttpError::Url { reason });
    let Ok(url) = url.parse::<Uri>() else { return refused("it cannot be parsed") };
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return refused("it must begin with http:// or https://");
    }
    match url.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            refused("it must not carry credentials: requests are signed instead")
        }
        Some(authority) if !authority.host().is_empty() => Ok(url),
        _ => refused("no host"),
    }
}

/// For a connector that only ever meets `http://`.
fn trusting_nobody() -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default TLS versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

/// Reads the beginning of a body. To its end if it is short, so that the connection can be used again.
async fn read(mut body: Incoming, text: &mut Vec<u8>) {
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            let room = BODY_BYTES_MAX - text.len();
            text.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
