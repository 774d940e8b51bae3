//! What stands before the service that an inbox calls, and fails in its place.

use std::net::SocketAddr;
use std::time::Duration;

use crate::port::Port;
use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Between two attempts to listen on the port again.
const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// Larger than the requests of the load.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// How the service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// As it does.
    Well,
    /// Connections are refused.
    Away,
    /// Connections are taken, and nothing else happens.
    Hang,
    /// Each request waits so long.
    Slow(Duration),
    /// The answer comes byte by byte, with so long a pause before each.
    Drip(Duration),
    /// The connection is reset once the request has begun.
    Reset,
    /// The service does its work, and of the answer so many bytes arrive.
    Half(usize),
    /// Another server's business.
    Redirect,
    /// What a proxy says whose service is away, or broken.
    Status(u16),
    /// Something that is no HTTP: the port of another program.
    Garbage,
}

/// A port that leads to the service; gone with this.
pub(super) struct Front {
    port: Port,
    manner: watch::Sender<Manner>,
    task: JoinHandle<()>,
}

impl Front {
    pub(super) fn open(service: SocketAddr) -> Result<Self> {
        let port = Port::reserve().context("find a port for the service")?;
        let manner = watch::Sender::new(Manner::Well);
        let task = tokio::spawn(run(port.addr(), service, manner.subscribe()));
        Ok(Self { port, manner, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.addr()
    }

    /// From now on answers so. Connections that are open end.
    pub(super) fn behave(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(address: SocketAddr, service: SocketAddr, mut manner: watch::Receiver<Manner>) {
    loop {
        let now = *manner.borrow_and_update();
        if now == Manner::Away {
            if manner.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Ok(listener) = TcpListener::bind(address).await else {
            tokio::time::sleep(LISTEN_PAUSE).await;
            continue;
        };
        // Dropped with all of its connections when the manner changes.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    if let Ok((client, _)) = accepted {
                        connections.spawn(serve(client, service, now));
                    }
                }
                Some(_) = connections.join_next() => {}
                changed = manner.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
            }
        }
        connections.shutdown().await;
    }
}

async fn serve(mut client: TcpStream, service: SocketAddr, manner: Manner) -> Result<()> {
    match manner {
        Manner::Away => {}
        Manner::Hang => std::future::pending().await,
        Manner::Well => {
            let mut server = TcpStream::connect(service).await?;
            copy_bidirectional(&mut client, &mut server).await?;
        }
        Manner::Slow(pause) => {
            request(&mut client).await?;
            tokio::time::sleep(pause).await;
            answer(&mut client, "503 Service Unavailable").await?;
        }
        Manner::Drip(pause) => forward(client, service, usize::MAX, pause).await?,
        Manner::Half(bytes) => forward(client, service, bytes, Duration::ZERO).await?,
        Manner::Reset => {
            client.read_u8().await?;
            client.set_zero_linger()?;
        }
        Manner::Redirect => {
            request(&mut client).await?;
            answer(&mut client, "307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/").await?;
        }
        Manner::Status(code) => {
            request(&mut client).await?;
            answer(&mut client, &format!("{code} Not Now")).await?;
        }
        Manner::Garbage => {
            client.read_u8().await?;
            client.write_all(b"\x15\x03\x01\x00\x02\x02\x28").await?;
        }
    }
    Ok(())
}

/// Passes the request on, and of the answer so many bytes, each of them after a pause if there is
/// one.
async fn forward(
    mut client: TcpStream,
    service: SocketAddr,
    mut left: usize,
    pause: Duration,
) -> Result<()> {
    let mut server = TcpStream::connect(service).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let request = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        // The other half says when it is over.
        std::future::pending::<Result<()>>().await
    };
    let answer = async {
        let mut byte = [0];
        while left > 0 && from_server.read(&mut byte).await? > 0 {
            tokio::time::sleep(pause).await;
            to_client.write_all(&byte).await?;
            left -= 1;
        }
        Ok(())
    };
    tokio::select! {
        ended = request => ended,
        ended = answer => ended,
    }
}

/// Reads a request to its end: an answer before that may be lost to a reset.
async fn request(client: &mut (impl AsyncRead + Unpin)) -> Result<()> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while bytes.len() < REQUEST_BYTES_MAX {
        let count = client.read(&mut chunk).await?;
        bytes.extend_from_slice(&chunk[..count]);
        if count == 0 || is_whole(&bytes) {
            break;
        }
    }
    Ok(())
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|it| it.trim().parse::<usize>().ok()).unwrap_or_default();
    body.len() >= length
}

async fn answer(client: &mut (impl AsyncWrite + Unpin), status: &str) -> Result<()> {
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    client.write_all(text.as_bytes()).await?;
    client.shutdown().await?;
    Ok(())
}
