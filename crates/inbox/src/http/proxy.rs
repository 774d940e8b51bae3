//! The way to a service: straight, or through a forward proxy.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use super::CONNECT_TIMEOUT;
use crate::BoxError;

/// What the answer to CONNECT may have.
const ANSWER_BYTES_MAX: usize = 8 << 10;

/// A forward proxy: `http://host:port`, which may have a login. `Debug` does not show its password.
#[derive(Debug, Clone)]
pub struct Proxy {
    url: Uri,
    /// The value of `Proxy-Authorization`.
    pub(super) authorization: Option<HeaderValue>,
}

/// Why a text is no proxy. Does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a proxy is http://host:port, which may have a login, user:password@, before the host")]
pub struct ProxyError;

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let url: Uri = text.parse().map_err(|_| ProxyError)?;
        let authority = url.authority().map_or("", |it| it.as_str());
        if url.scheme_str() != Some("http") || url.path() != "/" || url.query().is_some() {
            return Err(ProxyError);
        }
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let url = format!("http://{host}/").parse().map_err(|_| ProxyError)?;
        let authorization = (!login.is_empty()).then(|| {
            let login: Vec<u8> = percent_decode_str(login).collect();
            let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(login)));
            let mut value = value.expect("Base64 is ASCII");
            value.set_sensitive(true);
            value
        });
        Ok(Self { url, authorization })
    }
}

impl Proxy {
    /// Asks for a connection to a service. What comes behind the answer is the service's.
    async fn tunnel(&self, stream: &mut TcpStream, to: &Uri) -> io::Result<()> {
        let host = to.host().unwrap_or_default();
        let target = format!("{host}:{}", to.port_u16().unwrap_or(443));
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(value) = &self.authorization {
            request.extend([b"Proxy-Authorization: ", value.as_bytes(), b"\r\n"].concat());
        }
        request.extend(b"\r\n");
        stream.write_all(&request).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() == ANSWER_BYTES_MAX {
                return Err(io::Error::other("its answer is too long"));
            }
            // A byte at a time: none of the service's may be read.
            answer.push(stream.read_u8().await?);
        }
        let answer = String::from_utf8_lossy(&answer);
        let said = answer.lines().next().unwrap_or_default();
        let status = said.split_once(' ').map_or("", |it| it.1);
        if said.starts_with("HTTP/1.") && status.starts_with('2') {
            return Ok(());
        }
        let said: String = status.chars().filter(|it| !it.is_control()).take(100).collect();
        Err(io::Error::other(format!("it answers {said:?} to CONNECT")))
    }
}

/// Opens connections to a service.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) http: HttpConnector,
    pub(super) proxy: Option<Proxy>,
}

impl Service<Uri> for Route {
    type Response = Way;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Way, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else {
            let connecting = self.http.call(to);
            return Box::pin(async { Ok(Way { stream: connecting.await?, is_asked: false }) });
        };
        let connecting = self.http.call(proxy.url.clone());
        Box::pin(async move {
            let asked = |it: &dyn std::error::Error| {
                io::Error::other(format!("the proxy {}: {}", proxy.url, servers::describe(it)))
            };
            let stream = connecting.await.map_err(|it| asked(&it))?;
            if to.scheme_str() != Some("https") {
                return Ok(Way { stream, is_asked: true });
            }
            let mut stream = stream.into_inner();
            let tunnel = timeout(CONNECT_TIMEOUT, proxy.tunnel(&mut stream, &to)).await;
            tunnel.unwrap_or_else(|it| Err(it.into())).map_err(|it| asked(&it))?;
            Ok(Way { stream: TokioIo::new(stream), is_asked: false })
        })
    }
}

/// A connection to a service, or to a proxy that is asked for each request.
#[derive(Debug)]
pub(super) struct Way {
    stream: TokioIo<TcpStream>,
    is_asked: bool,
}

impl Connection for Way {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_asked)
    }
}

impl Read for Way {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl Write for Way {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }
}
