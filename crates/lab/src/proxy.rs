//! A TCP proxy that makes the network misbehave.

mod framing;
mod meter;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::port::Port;

pub use framing::Protocol;
use meter::{Meter, Talk};

/// Chunks that may wait for their delay in one direction of one connection; then reading stops.
const DELAYED_CHUNKS_MAX: usize = 256;
const CHUNK_BYTES: usize = 16 * 1024;

/// For how long a reserved port may be in use yet.
const IN_USE_MAX: Duration = Duration::from_secs(10);
const IN_USE_POLL: Duration = Duration::from_millis(5);

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client: swallowing here loses answers to requests that took effect.
    ToClient,
    /// Both ways.
    Both,
}

impl Direction {
    fn opposite(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
            Self::Both => Self::Both,
        }
    }
}

/// What becomes of a connection on which a number of messages were passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Nothing more is passed on, either way, nor the connection's end: it looks alive.
    Silence,
    /// It is closed, in good order.
    Close,
    /// Everything comes so much later.
    Delay(Duration),
}

/// A TCP proxy on a free port of 127.0.0.1 that passes bytes on until told otherwise.
///
/// Dropping it resets its connections.
pub struct Proxy {
    port: Port,
    protocol: Option<Protocol>,
    rules: watch::Sender<Rules>,
    counts: Arc<Counts>,
    // `None` while cut.
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy)]
struct Rules {
    upstream: SocketAddr,
    cut: bool,
    delay: Duration,
    swallow_to_server: bool,
    swallow_to_client: bool,
    limit: Option<Limit>,
    // How often the network was made well.
    restored: u64,
    limits_set: u64,
}

/// How many messages a connection may carry.
#[derive(Debug, Clone, Copy)]
struct Limit {
    number: u64,
    messages: u64,
    after: After,
}

impl Rules {
    fn swallows(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.swallow_to_server,
            Direction::ToClient => self.swallow_to_client,
            Direction::Both => self.swallow_to_server && self.swallow_to_client,
        }
    }
}

#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    accepted: AtomicUsize,
    limited: AtomicUsize,
}

impl Proxy {
    /// Starts a proxy before `upstream`, which need not be there yet.
    ///
    /// # Errors
    ///
    /// When no port is free.
    pub async fn start(upstream: SocketAddr) -> Result<Self> {
        Self::open(upstream, None).await
    }

    /// Starts a proxy that understands what the connections speak, so that it can count their
    /// messages: see [`Proxy::after`].
    ///
    /// # Errors
    ///
    /// As [`Proxy::start`].
    pub async fn start_for(protocol: Protocol, upstream: SocketAddr) -> Result<Self> {
        Self::open(upstream, Some(protocol)).await
    }

    async fn open(upstream: SocketAddr, protocol: Option<Protocol>) -> Result<Self> {
        let rules = Rules {
            upstream,
            cut: true,
            delay: Duration::ZERO,
            swallow_to_server: false,
            swallow_to_client: false,
            limit: None,
            restored: 0,
            limits_set: 0,
        };
        let mut proxy = Self {
            port: Port::reserve()?,
            protocol,
            rules: watch::Sender::new(rules),
            counts: Arc::default(),
            acceptor: None,
        };
        proxy.restore().await?;
        Ok(proxy)
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// How many connections are open now.
    pub fn connections(&self) -> usize {
        self.counts.open.load(Ordering::Acquire)
    }

    /// How many connections were taken so far.
    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::Acquire)
    }

    /// Resets every connection and refuses new ones, until [`Proxy::restore`].
    pub async fn cut(&mut self) {
        self.rules.send_modify(|it| it.cut = true);
        if let Some(acceptor) = self.acceptor.take() {
            // It ends after its connections have.
            let _ = acceptor.await;
        }
    }

    /// Makes the network well: no delay, nothing swallowed, connections taken. Connections that
    /// lost bytes are reset.
    ///
    /// # Errors
    ///
    /// When the proxy was cut and cannot listen on its port again.
    pub async fn restore(&mut self) -> Result<()> {
        self.rules.send_modify(|it| {
            it.cut = false;
            it.delay = Duration::ZERO;
            it.swallow_to_server = false;
            it.swallow_to_client = false;
            it.limit = None;
            it.restored += 1;
        });
        if self.acceptor.is_none() {
            let listener = listen(self.addr()).await.context("listen as a proxy")?;
            let (rules, counts) = (self.rules.subscribe(), Arc::clone(&self.counts));
            self.acceptor = Some(tokio::spawn(accept(listener, self.protocol, rules, counts)));
        }
        Ok(())
    }

    /// Delays bytes by `delay` each way. What is under way already keeps its delay.
    pub fn set_delay(&self, delay: Duration) {
        self.rules.send_modify(|it| it.delay = delay);
    }

    /// Swallows bytes and ends of connections that flow in `direction`, until [`Proxy::restore`]:
    /// connections look alive.
    pub fn blackhole(&self, direction: Direction) {
        self.rules.send_modify(|it| {
            it.swallow_to_server |= direction != Direction::ToClient;
            it.swallow_to_client |= direction != Direction::ToServer;
        });
    }

    /// Lets each connection carry so many messages more, both ways together, and then does `then`
    /// to it, until [`Proxy::restore`]. On connections that are open it counts from the next bytes
    /// on, on new ones from their beginning. A request for encryption and its answer count too;
    /// what is encrypted is passed on.
    ///
    /// # Panics
    ///
    /// When the proxy does not know what is spoken: see [`Proxy::start_for`].
    pub fn after(&self, messages: u64, then: After) {
        assert!(self.protocol.is_some(), "this proxy cannot tell messages");
        self.rules.send_modify(|it| {
            it.limits_set += 1;
            it.limit = Some(Limit { number: it.limits_set, messages, after: then });
        });
    }

    /// Ends [`Proxy::after`] for connections that are not at their limit. Those that are silent stay
    /// so until [`Proxy::restore`]: their ends have to find out by themselves.
    pub fn lift_limit(&self) {
        self.rules.send_modify(|it| it.limit = None);
    }

    /// How many connections came to the limit of [`Proxy::after`] so far.
    pub fn limited(&self) -> usize {
        self.counts.limited.load(Ordering::Acquire)
    }

    /// Connects clients to another server from now on; connections that are open stay with theirs.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.rules.send_modify(|it| it.upstream = upstream);
    }
}

/// Listens on a reserved port. A process that is being forked holds our other sockets until its
/// exec, a former listener on this port among them: the port is in use until then.
async fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + IN_USE_MAX;
    loop {
        match TcpListener::bind(addr).await {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(IN_USE_POLL).await;
            }
            bound => return bound,
        }
    }
}

async fn accept(
    listener: TcpListener,
    protocol: Option<Protocol>,
    mut rules: watch::Receiver<Rules>,
    counts: Arc<Counts>,
) {
    let mut connections = JoinSet::new();
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = cut(rules.clone()) => break,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((client, _)) = client else { continue };
        let upstream = rules.borrow_and_update().upstream;
        counts.accepted.fetch_add(1, Ordering::Release);
        let open = Open::new(&counts);
        connections.spawn(connection(client, upstream, protocol, rules.clone(), open));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Counts a connection for as long as it lives.
struct Open(Arc<Counts>);

impl Open {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.open.fetch_add(1, Ordering::Release);
        Self(Arc::clone(counts))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Release);
    }
}

/// Returns when the proxy is cut, or gone.
async fn cut(mut rules: watch::Receiver<Rules>) {
    // An error means that the proxy was dropped.
    let _ = rules.wait_for(|it| it.cut).await;
}

async fn connection(
    mut client: TcpStream,
    upstream: SocketAddr,
    protocol: Option<Protocol>,
    rules: watch::Receiver<Rules>,
    open: Open,
) {
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let talk = Talk::begin(protocol, &open.0);
    let passed = async {
        tokio::try_join!(
            pass(from_client, to_server, rules.clone(), talk.meter(Direction::ToServer)),
            pass(from_server, to_client, rules.clone(), talk.meter(Direction::ToClient)),
        )
    };
    let ended_well = tokio::select! {
        passed = passed => passed.is_ok(),
        () = cut(rules.clone()) => false,
    };
    if !ended_well {
        // Closing then sends a reset, as from a peer that is gone, and not an orderly end.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Passes bytes on until the end of the stream; fails when the connection must be reset.
async fn pass(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    rules: watch::Receiver<Rules>,
    meter: Meter,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(DELAYED_CHUNKS_MAX);
    let (mut back, opposite) = (rules.clone(), meter.direction.opposite());
    let is_silent = Arc::clone(&meter.is_silent);
    let send = async {
        let sent = send(to, receiver).await;
        if sent.is_err() {
            // That the other end is dead is news that comes back the other way.
            let restored = back.borrow().restored;
            let silent = || is_silent.load(Ordering::Acquire);
            let is_told =
                |it: &Rules| !it.swallows(opposite) && (it.restored != restored || !silent());
            let _ = back.wait_for(is_told).await;
        }
        sent
    };
    tokio::try_join!(receive(from, sender, rules, meter), send)?;
    Ok(())
}

type Delayed = (Instant, Vec<u8>);

async fn receive(
    mut from: impl AsyncRead + Unpin,
    queue: mpsc::Sender<Delayed>,
    mut rules: watch::Receiver<Rules>,
    mut meter: Meter,
) -> io::Result<()> {
    let direction = meter.direction;
    let mut buffer = vec![0; CHUNK_BYTES];
    let (end, restored) = loop {
        let read = from.read(&mut buffer).await;
        let now = *rules.borrow();
        let count = match read {
            _ if now.swallows(direction) || meter.is_silent() => break (None, now.restored),
            Ok(0) => break (Some(Ok(())), now.restored),
            Ok(count) => count,
            Err(error) => break (Some(Err(error)), now.restored),
        };
        let (count, after) = meter.measure(&buffer[..count], now.limit);
        let delay = match after {
            Some(After::Delay(delay)) => now.delay.max(delay),
            _ => now.delay,
        };
        let chunk = (Instant::now() + delay, buffer[..count].to_vec());
        // Closed when sending failed, which is reported there.
        if queue.send(chunk).await.is_err() {
            return Ok(());
        }
        match after {
            Some(After::Silence) => break (None, now.restored),
            Some(After::Close) => break (Some(Ok(())), now.restored),
            Some(After::Delay(_)) | None => {}
        }
    };
    if let Some(end) = end {
        return end;
    }
    // Bytes, or the end, are lost: the connection is of no use after this, but looks alive until
    // the network is well.
    let drain = async {
        while from.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        std::future::pending::<()>().await
    };
    let silent = meter.is_silent();
    let is_well = |it: &Rules| !it.swallows(direction) && (it.restored != restored || !silent);
    tokio::select! {
        () = drain => {}
        _ = rules.wait_for(is_well) => {}
    }
    Err(io::ErrorKind::ConnectionReset.into())
}

async fn send(
    mut to: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Delayed>,
) -> io::Result<()> {
    while let Some((at, chunk)) = queue.recv().await {
        if at > Instant::now() {
            tokio::time::sleep_until(at).await;
        }
        to.write_all(&chunk).await?;
    }
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a fork beside it does to the port, for as long as it takes.
    #[tokio::test]
    async fn a_port_that_is_held_for_a_moment_is_waited_for() {
        let mut proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], 1))).await.unwrap();
        proxy.cut().await;
        let held = listen(proxy.addr()).await.unwrap();
        let (restored, ()) = tokio::join!(proxy.restore(), async {
            tokio::time::sleep(2 * IN_USE_POLL).await;
            drop(held);
        });
        restored.expect("it listens once the port is free");
    }
}
