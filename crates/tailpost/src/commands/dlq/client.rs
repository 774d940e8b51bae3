//! The admin API of a running relay or inbox, from the other side.

use std::net::SocketAddr;

use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::admin::ApiError;
use crate::config::AdminSettings;
use crate::errors::{API_TIMEOUT, ClientError, Service};

/// Where the API is, and the token for it.
pub(crate) struct Client {
    of: Service,
    address: SocketAddr,
    token: Option<String>,
}

impl Client {
    pub(crate) fn new(settings: &AdminSettings) -> Result<Self, ClientError> {
        Self::of(Service::Relay, *settings.listen, settings)
    }

    /// Of an inbox.
    pub(crate) fn of_inbox(settings: &AdminSettings) -> Result<Self, ClientError> {
        Self::of(Service::Inbox, *settings.inbox_listen, settings)
    }

    fn of(
        of: Service,
        address: Option<SocketAddr>,
        settings: &AdminSettings,
    ) -> Result<Self, ClientError> {
        let address = address.ok_or(ClientError::Off { of })?;
        Ok(Self { of, address, token: settings.own_token() })
    }

    /// What became of something, whatever that is.
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
            .uri(format!("/api/v1/{path}"))
            .header(HOST, address.to_string())
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(json))).context("make a request")?;
        let answered = tokio::time::timeout(API_TIMEOUT, exchange(of, address, request)).await;
        answered.map_err(|_| ClientError::Silent { of, address })?
    }
}

/// A value for a path or a query.
pub(in crate::commands) fn escape(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn refused(status: StatusCode, body: &[u8]) -> ClientError {
    let (error, hint) = match serde_json::from_slice(body) {
        Ok(ApiError { detail, hint, .. }) => (detail, hint),
        Err(_) => without_words(status, body),
    };
    ClientError::Refused { status, error, hint }
}

/// What an answer says that is not the API's own.
fn without_words(status: StatusCode, body: &[u8]) -> (String, Option<String>) {
    let said = String::from_utf8_lossy(body).trim().to_owned();
    let error = if said.is_empty() { format!("it answered {status}") } else { said };
    let is_late = status == StatusCode::GATEWAY_TIMEOUT;
    let hint = is_late.then(|| "--direct asks the database, for as long as it takes".to_owned());
    (error, hint)
}

async fn exchange(
    of: Service,
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let unreachable = |source| ClientError::Unreachable { of, address, source };
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok((status, body))
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
