//! A client of the admin API of a running relay or inbox.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client as Http;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::ApiError;
use crate::config::AdminSettings;
use crate::errors::{Kind, Refusal};

/// The server answers within five seconds, or says that it cannot.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A process that has an API.
#[derive(Debug, Clone, Copy)]
struct Service {
    name: &'static str,
    /// With its article.
    one: &'static str,
    /// The setting with its address.
    key: &'static str,
}

const RELAY: Service = Service { name: "relay", one: "a relay", key: "admin.listen" };
const INBOX: Service = Service { name: "inbox", one: "an inbox", key: "admin.inbox_listen" };

/// Where the API is, and the token for it.
pub(crate) struct Client {
    of: Service,
    address: SocketAddr,
    token: Option<String>,
}

/// Whether the process could not be reached.
pub(crate) fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|it| it.is::<std::io::Error>())
}

impl Client {
    pub(crate) fn new(settings: &AdminSettings) -> Result<Self, Refusal> {
        Self::of(RELAY, *settings.listen, settings)
    }

    pub(crate) fn of_inbox(settings: &AdminSettings) -> Result<Self, Refusal> {
        Self::of(INBOX, *settings.inbox_listen, settings)
    }

    fn of(
        of: Service,
        address: Option<SocketAddr>,
        settings: &AdminSettings,
    ) -> Result<Self, Refusal> {
        let off = || of.away(format!("{} is off, so no {} can be asked", of.key, of.name));
        Ok(Self { of, address: address.ok_or_else(off)?, token: settings.own_token() })
    }

    /// The answer, whatever its status is.
    pub(crate) async fn told<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let (status, body) = self.send(Method::GET, path, None::<&()>).await?;
        match serde_json::from_slice(&body) {
            Ok(told) => Ok(told),
            Err(_) => Err(refused(status, &body).into()),
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let body = self.call(Method::GET, path, None::<&()>).await?;
        serde_json::from_slice(&body).context("the relay's answer is not understood")
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let body = self.call(Method::POST, path, Some(body)).await?;
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).context("the relay's answer is not understood")
    }

    pub(super) async fn delete(&self, path: &str, body: &impl Serialize) -> anyhow::Result<()> {
        self.call(Method::DELETE, path, Some(body)).await.map(drop)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<Bytes> {
        let (status, body) = self.send(method, path, body).await?;
        if status.is_success() { Ok(body) } else { Err(refused(status, &body).into()) }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let Self { of, address, .. } = *self;
        let json = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{address}/api/v1/{path}"))
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(json))).context("make a request")?;
        // The causes between are those of a library.
        let away = |error| {
            let root = anyhow::Error::from(error).root_cause().to_string();
            let problem = format!("could not reach {} at {address}", of.one);
            of.away(problem).because(std::io::Error::other(root))
        };
        let exchange = async {
            let http = Http::builder(TokioExecutor::new()).build_http();
            let answer = http.request(request).await.map_err(away)?;
            let status = answer.status();
            anyhow::Ok((status, answer.into_body().collect().await?.to_bytes()))
        };
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| {
            let problem = format!("the {} at {address} did not answer within {TIMEOUT:?}", of.name);
            Err(Refusal::timed_out(problem).with_hint("--direct asks the database instead").into())
        })
    }
}

/// A value for a path or a query.
pub(in crate::commands) fn escape(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

impl Service {
    /// The process cannot be reached.
    fn away(self, problem: String) -> Refusal {
        let Self { one, key, .. } = self;
        let hint = format!("--direct asks the database instead; {key} says where {one} listens");
        Refusal::new(Kind::Unreachable, problem).with_hint(hint)
    }
}

/// What an answer that is an error says.
fn refused(status: StatusCode, body: &[u8]) -> Refusal {
    let (error, hint) = match serde_json::from_slice(body) {
        Ok(ApiError { detail, hint, .. }) => (detail, hint),
        Err(_) => without_words(status, body),
    };
    let kind = match status.as_u16() {
        400 | 401 | 403 | 409 | 422 => Kind::Refused,
        404 => Kind::NotFound,
        503 => Kind::Unreachable,
        504 => Kind::TimedOut,
        _ => Kind::Failed,
    };
    let is_unknown = status == StatusCode::UNAUTHORIZED;
    let hint = if is_unknown { Some("set admin.token to the relay's".into()) } else { hint };
    hint.into_iter().fold(Refusal::new(kind, error), Refusal::with_hint)
}

/// What an answer says that is no problem document.
fn without_words(status: StatusCode, body: &[u8]) -> (String, Option<String>) {
    let said = String::from_utf8_lossy(body).trim().to_owned();
    let error = if said.is_empty() { format!("it answered {status}") } else { said };
    let is_late = status == StatusCode::GATEWAY_TIMEOUT;
    let hint = is_late.then(|| "--direct asks the database, for as long as it takes".to_owned());
    (error, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_words_is_put_into_words() {
        let (late, hint) = without_words(StatusCode::GATEWAY_TIMEOUT, b"");
        assert_eq!(late, "it answered 504 Gateway Timeout");
        assert!(hint.is_some_and(|it| it.contains("--direct")));
        let (refused, hint) = without_words(StatusCode::UNAUTHORIZED, b"a token is needed\n");
        assert_eq!((refused.as_str(), hint), ("a token is needed", None));
    }
}
