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

mod excerpt;
mod request;
mod response;
mod server_errors;
mod signature;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Uri;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout_at};

use crate::{Delivery, LeasedHandler, Verdict};

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
    /// Requests carry a signature for each, so that a secret can be replaced while both are known.
    pub secrets: Vec<Secret>,
    /// Whom to trust, and as whom to appear. Needed for `https://`.
    pub tls: Option<ClientConfig>,
}

/// Calls an HTTP service with each event.
///
/// Connections are kept and reused. Redirects are not followed: they would take the event to where
/// nobody meant it to go.
#[derive(Debug)]
pub struct HttpHandler {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    timeout: Duration,
    secrets: Vec<Secret>,
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
            .build(connector.wrap_connector(http));
        let (timeout, secrets) = (options.timeout, options.secrets);
        Ok(Self { client, url, timeout, secrets, failing: Failing::default() })
    }
}

impl LeasedHandler for HttpHandler {
    /// Sends one request and waits for the answer, for less than the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection; the service may have acted all the same.
    async fn handle(&self, delivery: Delivery<'_>) -> Verdict {
        // The verdict is to be written before the lease ends.
        let limit = self.timeout.min(delivery.lease * 4 / 5);
        let deadline = Instant::now() + limit;
        let request = request::request(&self.url, &self.secrets, &delivery);
        let response = match timeout_at(deadline, self.client.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return response::unanswered(&error),
            Err(_) => return response::too_late(limit),
        };
        let (parts, body) = response.into_parts();
        let mut text = Vec::new();
        let deadline = deadline.min(Instant::now() + BODY_TIMEOUT);
        // Whatever becomes of the body: the status has decided, the text only explains.
        let _ = timeout_at(deadline, read(body, &mut text)).await;
        let verdict = response::verdict(&parts, &text, &delivery.event.payload);
        self.failing.judge(delivery.event.id, parts.status, verdict)
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
