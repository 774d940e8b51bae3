//! A NATS client that sends any bytes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

/// The longest wait for an answer of the server.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Of the server's other operations the payload is not expected to be longer.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// One connection to a NATS server, without TLS or credentials, that publishes bytes as they are.
///
/// Client libraries refuse to send most of what the server takes: this one checks nothing.
pub struct RawNats {
    connection: BufReader<TcpStream>,
    // The subject on which answers come, once there is one.
    inbox: Option<String>,
}

/// A message as the server sent it.
pub(crate) struct RawMessage {
    /// Where its answer goes; the place in the stream, if it comes from one.
    pub(crate) reply: String,
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Vec<u8>,
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
        let mut client = Self { connection: BufReader::new(stream), inbox: None };
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
        self.publish_for(subject, "", headers, body).await
    }

    /// As [`RawNats::publish`], into a stream; returns whether the stream has it now, which it has
    /// not if it has the id of another one.
    ///
    /// # Errors
    ///
    /// When the connection is broken, or no stream takes it.
    pub async fn store(
        &mut self,
        subject: &[u8],
        headers: Option<&[u8]>,
        body: &[u8],
    ) -> Result<bool> {
        let inbox = self.inbox().await?;
        self.publish_for(subject, &inbox, headers, body).await?;
        let answer = self.receive().await?;
        let text = || String::from_utf8_lossy(&answer.body).into_owned();
        let ack: Value = serde_json::from_slice(&answer.body).with_context(text)?;
        ensure!(ack["seq"].is_u64(), "not stored: {ack}");
        Ok(ack["duplicate"] != true)
    }

    async fn publish_for(
        &mut self,
        subject: &[u8],
        reply: &str,
        headers: Option<&[u8]>,
        body: &[u8],
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(subject.len() + body.len() + 64);
        bytes.extend_from_slice(if headers.is_some() { b"HPUB " } else { b"PUB " });
        bytes.extend_from_slice(subject);
        let sizes = match headers {
            Some(headers) => {
                format!(" {reply} {} {}\r\n", headers.len(), headers.len() + body.len())
            }
            None => format!(" {reply} {}\r\n", body.len()),
        };
        bytes.extend_from_slice(sizes.as_bytes());
        bytes.extend_from_slice(headers.unwrap_or_default());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n");
        self.send(&bytes).await
    }

    /// The subject on which answers come.
    async fn inbox(&mut self) -> Result<String> {
        if let Some(inbox) = &self.inbox {
            return Ok(inbox.clone());
        }
        let inbox = format!("_INBOX.raw.{}", Uuid::new_v4().simple());
        self.send(format!("SUB {inbox} 1\r\n").as_bytes()).await?;
        Ok(self.inbox.insert(inbox).clone())
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

    /// Asks a service, and returns the first answer.
    pub(crate) async fn request(&mut self, subject: &str, body: &[u8]) -> Result<RawMessage> {
        self.ask(subject, body).await?;
        self.receive().await
    }

    /// Asks a service; the answers are [received](RawNats::receive).
    pub(crate) async fn ask(&mut self, subject: &str, body: &[u8]) -> Result<()> {
        let inbox = self.inbox().await?;
        self.publish_for(subject.as_bytes(), &inbox, None, body).await
    }

    /// The next message.
    pub(crate) async fn receive(&mut self) -> Result<RawMessage> {
        loop {
            let line = self.line().await?;
            if line == b"PING" {
                self.send(b"PONG\r\n").await?;
            } else if line.starts_with(b"MSG ") || line.starts_with(b"HMSG ") {
                return self.message(&line).await;
            } else if line.starts_with(b"-ERR") {
                bail!("the server refused: {}", String::from_utf8_lossy(&line));
            }
        }
    }

    /// Reads what belongs to `[H]MSG subject sid [reply] [length of headers] length`.
    async fn message(&mut self, line: &[u8]) -> Result<RawMessage> {
        let text = String::from_utf8_lossy(line);
        let words: Vec<&str> = text.split(' ').collect();
        let numbers = if text.starts_with('H') { 2 } else { 1 };
        let number = |word: &str| word.parse::<usize>().context("read the length of a message");
        let total = number(words.last().copied().unwrap_or_default())?;
        let headers = match numbers {
            2 => number(words[words.len().saturating_sub(2)])?,
            _ => 0,
        };
        let reply = words[3..words.len().saturating_sub(numbers).max(3)].concat();
        let mut bytes = vec![0; total + 2];
        let read = timeout(ANSWER_MAX, self.connection.read_exact(&mut bytes)).await;
        read.context("NATS sends half a message")?.context("read from NATS")?;
        bytes.truncate(total);
        let body = bytes.split_off(headers.min(total));
        Ok(RawMessage { reply, headers: bytes, body })
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
