//! Asks the API of one relay or inbox.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::settings::{Credential, Kind, Upstream};
use crate::state::answers::Refused;
use crate::state::picture::Failure;

/// How long an answer may take: a little longer than a process takes to say that it is late.
const ANSWER_MAX: Duration = Duration::from_secs(7);
/// How large an answer may be: a payload may have 2 MiB, and more when it is escaped.
const BYTES_MAX: usize = 16 << 20;
/// How long a name's addresses are believed.
const RESOLVE_EVERY: Duration = Duration::from_secs(15);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("the name {authority} has no address")]
    Unknown { authority: String },
    #[error("{authority} cannot be reached: {why}")]
    Unreachable { authority: String, why: String },
    #[error("{authority} did not answer within {} s", ANSWER_MAX.as_secs())]
    Silent { authority: String },
    #[error("{}", refused.detail)]
    Refused { status: StatusCode, refused: Refused },
    #[error("the answer of {authority} is not understood")]
    Garbled { authority: String, source: serde_json::Error },
}

impl AskError {
    pub(crate) fn failure(&self, kind: Kind) -> Failure {
        let hint = match self {
            Self::Refused { status: StatusCode::UNAUTHORIZED, .. } => {
                Some("the console's --token-file has no token that this process knows".into())
            }
            Self::Refused { refused, .. } => refused.hint.clone(),
            Self::Unknown { .. } => Some("--relay-url and --inbox-url say where they are".into()),
            Self::Garbled { .. } => Some("is it an API of Tailpost?".into()),
            Self::Unreachable { .. } | Self::Silent { .. } => Some(match kind {
                Kind::Relay => {
                    "is `tailpost relay` running? admin.listen says where it listens".into()
                }
                Kind::Inbox => {
                    "is `tailpost inbox run` running? admin.inbox_listen says where it listens"
                        .into()
                }
            }),
        };
        Failure { error: self.to_string(), hint }
    }
}

/// With which token a question is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// The console's own.
    Own,
    /// A visitor's.
    Of(Arc<str>),
}

/// The processes behind one URL.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) key: String,
    pub(crate) kind: Kind,
    upstream: Upstream,
    http: Http<HttpConnector, Full<Bytes>>,
    resolved: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Client {
    pub(crate) fn new(key: String, upstream: Upstream) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        let http = Http::builder(TokioExecutor::new())
            // The other side closes an idle connection after five seconds.
            .pool_idle_timeout(Duration::from_secs(4))
            .build(connector);
        Self { key, kind: upstream.kind, upstream, http, resolved: Mutex::default() }
    }

    /// Every address behind the name, in order.
    pub(crate) async fn addresses(&self) -> Result<Vec<SocketAddr>, AskError> {
        let authority = &self.upstream.authority;
        if let Some((at, known)) = &*self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
            && at.elapsed() < RESOLVE_EVERY
        {
            return Ok(known.clone());
        }
        let unknown = || AskError::Unknown { authority: authority.clone() };
        let found = tokio::net::lookup_host(authority).await.map_err(|_| unknown())?;
        let mut found: Vec<_> = found.collect();
        found.sort();
        found.dedup();
        if found.is_empty() {
            return Err(unknown());
        }
        let known = Some((Instant::now(), found.clone()));
        *self.resolved.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(found)
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        address: SocketAddr,
        path: &str,
        token: &Token,
    ) -> Result<T, AskError> {
        let to = (address, path);
        let (status, body) = self.send(Method::GET, to, (token, None), None::<&()>).await?;
        if !status.is_success() {
            return Err(refused(status, &body));
        }
        self.read(&body)
    }

    /// An answer in JSON, whatever its status is: `/readyz`.
    pub(crate) async fn look<T: DeserializeOwned>(
        &self,
        address: SocketAddr,
        path: &str,
    ) -> Result<T, AskError> {
        let with = (&Token::Own, None);
        let (_, body) = self.send(Method::GET, (address, path), with, None::<&()>).await?;
        self.read(&body)
    }

    /// Sends a change, of what was `seen` if that is given. An answer without a body is `null`.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        (method, address, path): (Method, SocketAddr, &str),
        (token, seen): (&Token, Option<&str>),
        body: &impl Serialize,
    ) -> Result<T, AskError> {
        let (status, body) = self.send(method, (address, path), (token, seen), Some(body)).await?;
        if !status.is_success() {
            return Err(refused(status, &body));
        }
        self.read(if body.is_empty() { b"null" } else { &body })
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, AskError> {
        let authority = self.upstream.authority.clone();
        serde_json::from_slice(body).map_err(|source| AskError::Garbled { authority, source })
    }

    async fn send(
        &self,
        method: Method,
        (address, path): (SocketAddr, &str),
        (token, seen): (&Token, Option<&str>),
        body: Option<&impl Serialize>,
    ) -> Result<(StatusCode, Bytes), AskError> {
        let authority = || address.to_string();
        let unreachable = |why: String| AskError::Unreachable { authority: authority(), why };
        let json =
            body.map(serde_json::to_vec).transpose().map_err(|it| unreachable(it.to_string()))?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{address}{path}"))
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = self.token(token).await? {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(seen) = seen {
            request = request.header(IF_MATCH, seen);
        }
        let request = request.body(Full::new(Bytes::from(json.unwrap_or_default())));
        let request = request.map_err(|it| unreachable(it.to_string()))?;
        let exchange = async {
            let answer = self.http.request(request).await.map_err(|it| unreachable(chain(&it)))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), BYTES_MAX).collect().await;
            Ok((status, body.map_err(|it| unreachable(it.to_string()))?.to_bytes()))
        };
        match tokio::time::timeout(ANSWER_MAX, exchange).await {
            Ok(answered) => answered,
            Err(_) => Err(AskError::Silent { authority: authority() }),
        }
    }

    async fn token(&self, token: &Token) -> Result<Option<String>, AskError> {
        let file = match (token, &self.upstream.credential) {
            (Token::Of(token), _) | (Token::Own, Credential::Token(token)) => {
                return Ok(Some((**token).to_owned()));
            }
            (Token::Own, Credential::None) => return Ok(None),
            (Token::Own, Credential::File(file)) => file,
        };
        let read = tokio::fs::read_to_string(file).await;
        let token = read.map_err(|error| AskError::Unreachable {
            authority: self.upstream.authority.clone(),
            why: format!("no token in {}: {error}", file.display()),
        })?;
        Ok(Some(token.trim().to_owned()))
    }
}

fn refused(status: StatusCode, body: &[u8]) -> AskError {
    let refused = serde_json::from_slice(body)
        .unwrap_or_else(|_| Refused { detail: format!("it answered {status}"), hint: None });
    AskError::Refused { status, refused }
}

/// An error with its causes, without repeating what one says of the next.
fn chain(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
