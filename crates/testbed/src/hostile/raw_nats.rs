//! A NATS client that sends any bytes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest wait for an answer of the server.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Of the server's other operations the payload is not expected to be longer.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// One connection to a NATS server, without TLS or credentials, that publishes bytes as they are.
///
/// Client libraries refuse to send most of what the server takes: this one checks nothing.
pub struct RawNats {
    connection: BufReader<TcpStream>,
}

impl RawNats {
    /// Connects to the server at `url`, such as `nats://127.0.0.1:4222`.
    ///
    /// # Errors
    ///
    /// When the server does not take the connection.
    pub async fn connect(url: &str) -> Result<Self> {
        let address = url.strip_prefix("nats://").unwrap_or(url);
        let stream = TcpStream::connect(address).await.context("connect to NATS")?;
        let mut client = Self { connection: BufReader::new(stream) };
        let info = client.line().await?;
        if !info.starts_with(b"INFO ") {
            bail!("the server said {:?} first", String::from_utf8_lossy(&info));
        }
        let hello = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\
                      \"no_responders\":true,\"lang\":\"raw\",\"version\":\"0\"}\r\n";
        client.send(hello).await?;
        client.flush().await?;
        Ok(client)
    }

    /// Publishes a message. `headers` is the whole block, `NATS/1.0\r\n` and the empty line at its
    /// end included, if it has those; with `None` the message has no headers.
    ///
    /// # Errors
    ///
    /// When the connection is broken. What the server thinks of it, [`RawNats::flush`] says.
    pub async fn publish(
        &mut self,
        subject: &[u8],
        headers: Option<&[u8]>,
        body: &[u8],
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(subject.len() + body.len() + 64);
        bytes.extend_from_slice(if headers.is_some() { b"HPUB " } else { b"PUB " });
        bytes.extend_from_slice(subject);
        let sizes = match headers {
            Some(headers) => format!(" {} {}\r\n", headers.len(), headers.len() + body.len()),
            None => format!(" {}\r\n", body.len()),
        };
        bytes.extend_from_slice(sizes.as_bytes());
        bytes.extend_from_slice(headers.unwrap_or_default());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n");
        self.send(&bytes).await
    }

    /// Waits until the server has read everything.
    ///
    /// # Errors
    ///
    /// With the server's words, when it refused something; mostly it closes the connection then.
    pub async fn flush(&mut self) -> Result<()> {
        self.send(b"PING\r\n").await?;
        loop {
            let line = self.line().await?;
            match line.as_slice() {
                b"PONG" => return Ok(()),
                b"PING" => self.send(b"PONG\r\n").await?,
                line if line.starts_with(b"-ERR") => {
                    bail!("the server refused: {}", String::from_utf8_lossy(line));
                }
                _ => {} // +OK, INFO
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = timeout(ANSWER_MAX, self.connection.write_all(bytes)).await;
        sent.context("NATS reads nothing")?.context("write to NATS")
    }

    async fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.connection).take(LINE_BYTES_MAX);
        let read = timeout(ANSWER_MAX, limited.read_until(b'\n', &mut line)).await;
        if read.context("NATS does not answer")?.context("read from NATS")? == 0 {
            bail!("NATS closed the connection");
        }
        line.truncate(line.trim_ascii_end().len());
        Ok(line)
    }
}
