//! Asking HTTP servers.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What an HTTP server says, head and body, if there is one.
pub async fn get(address: SocketAddr, path: &str) -> Option<String> {
    ask(TcpStream::connect(address).await.ok()?, "GET", path, &format!("Host: {address}"), "").await
}

/// What an HTTP server says, head and body, to a request with these headers, separated by line
/// ends, and this body.
pub async fn ask(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Option<String> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n");
    let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
