//! Ways to read the log, from the barest to the relay's, each to nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::{Buf, BufMut, BytesMut};
use pgwire_replication::{ReplicationClient, ReplicationConfig, ReplicationEvent};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bench_env::BenchEnv;

/// As much as the replication client reads at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// As many messages as the relay lets the client read ahead.
const BUFFER_EVENTS: usize = 512;

/// Messages before the thread's other tasks get their turn, as in the relay.
const MESSAGES_AT_ONCE: usize = 256;

/// What a reader needs, without the environment that it reads from.
#[derive(Clone)]
pub(crate) struct Target {
    port: u16,
    database: String,
    slot: String,
    rows: u32,
}

/// Wall time, and processor time of the reading thread.
pub(crate) struct Read {
    pub(crate) elapsed: Duration,
    pub(crate) used: Duration,
}

impl Target {
    pub(crate) fn new(env: &BenchEnv<'_>, slot: &str, rows: u32) -> Self {
        let port = env.servers.postgres.port();
        Self { port, database: env.name.clone(), slot: slot.to_owned(), rows }
    }

    /// Everything off the socket, and no more looked at than tells rows from other messages.
    pub(crate) async fn socket(self) -> Result<Read> {
        on_a_thread(move || async move { self.read_socket().await }).await
    }

    /// Through the replication client, and with `decode` through the relay's decoder.
    pub(crate) async fn client(self, decode: bool) -> Result<Read> {
        on_a_thread(move || async move { self.read_client(decode).await }).await
    }

    async fn read_socket(&self) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
        stream.write_all(&startup(&self.database)).await?;
        while frame(&mut stream, &mut buffer).await?.0 != b'Z' {}
        let sql = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', \
             publication_names 'tailpost', binary 'true')",
            self.slot
        );
        stream.write_all(&query(&sql)).await?;
        let mut rows = 0;
        while rows < self.rows {
            let (tag, body) = frame(&mut stream, &mut buffer).await?;
            ensure!(tag != b'E', "the server says: {}", String::from_utf8_lossy(&body));
            // 'w', three numbers of eight bytes, and the message, of which 'I' is an insert.
            rows += u32::from(tag == b'd' && body.first() == Some(&b'w') && body[25] == b'I');
        }
        Ok(())
    }

    async fn read_client(&self, decode: bool) -> Result<()> {
        let config = ReplicationConfig::new(
            "127.0.0.1",
            "postgres",
            "",
            &self.database,
            &self.slot,
            "tailpost",
        );
        let config = config.with_port(self.port).with_binary(true).with_buffer_size(BUFFER_EVENTS);
        let mut client = ReplicationClient::connect(config).await?;
        let (mut rows, mut turn) = (0, 0);
        while rows < self.rows {
            let event = client.recv().await?.context("the server ended it")?;
            if let ReplicationEvent::XLogData { data, .. } = event {
                rows += u32::from(data.first() == Some(&b'I'));
                if decode {
                    std::hint::black_box(pgoutput::Message::decode(data)?);
                }
            }
            turn += 1;
            if turn % MESSAGES_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
        }
        client.shutdown().await.context("stop the client")
    }
}

/// Like the relay: one thread does everything.
async fn on_a_thread<F, W>(work: F) -> Result<Read>
where
    F: FnOnce() -> W + Send + 'static,
    W: Future<Output = Result<()>>,
{
    let read = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (started, before) = (Instant::now(), clock_gettime(ClockId::ThreadCPUTime));
        runtime.block_on(work())?;
        let used = clock_gettime(ClockId::ThreadCPUTime) - before;
        let used = Duration::try_from(used).map_err(|_| anyhow!("the clock went back"))?;
        Ok(Read { elapsed: started.elapsed(), used })
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(read()));
    receiver.await.context("the reading thread panicked")?
}

/// <https://www.postgresql.org/docs/current/protocol-message-formats.html>
fn startup(database: &str) -> BytesMut {
    let mut message = BytesMut::new();
    message.put_u32(0);
    message.put_u32(196_608); // version 3.0
    for text in ["user", "postgres", "database", database, "replication", "database", ""] {
        message.put_slice(text.as_bytes());
        message.put_u8(0);
    }
    set_length(&mut message, 0);
    message
}

fn query(sql: &str) -> BytesMut {
    let mut message = BytesMut::new();
    message.put_u8(b'Q');
    message.put_u32(0);
    message.put_slice(sql.as_bytes());
    message.put_u8(0);
    set_length(&mut message, 1);
    message
}

fn set_length(message: &mut BytesMut, at: usize) {
    let length = u32::try_from(message.len() - at).unwrap_or(u32::MAX);
    message[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// The next message: its kind, and what follows its length.
async fn frame(stream: &mut TcpStream, buffer: &mut BytesMut) -> Result<(u8, BytesMut)> {
    loop {
        if let Some(&[tag, a, b, c, d]) = buffer.first_chunk::<5>() {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if buffer.len() > length {
                buffer.advance(5);
                return Ok((tag, buffer.split_to(length.saturating_sub(4))));
            }
        }
        buffer.reserve(BUFFER_BYTES);
        ensure!(stream.read_buf(buffer).await? > 0, "the server closed the connection");
    }
}
