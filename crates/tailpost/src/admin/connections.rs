//! The connections of the admin server: few, short, and none for ever.
//!
//! Whoever reaches the port can use up what is here, and nothing of what the engine needs: not its
//! file descriptors, not its memory.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Connections at a time. Further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 128;
/// Connections of one peer at a time. Further ones are closed.
const PEER_CONNECTIONS_MAX: usize = 32;
/// How long a request's head may take, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// After this a connection takes no more requests. Clients open another.
const AGE_MAX: Duration = Duration::from_secs(60);
/// How long the last request of a connection may take, with the answer's way to a slow reader.
const LAST_TIMEOUT: Duration = Duration::from_secs(10);
/// A request's head. The token, the path and a few headers fit several times.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// When the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// How often it is said that a peer has too many connections.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The address at which a request came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local(pub(super) SocketAddr);

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

/// Serves until `stop`, then ends the connections when their requests under way are answered.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let peers = Peers::default();
    let mut connections = JoinSet::new();
    let mut warned: Option<Instant> = None;
    let next = async || {
        let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
        listener.accept().await.map(|accepted| (slot, accepted))
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = next() => accepted,
        };
        while connections.try_join_next().is_some() {}
        let (slot, (stream, peer)) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "could not accept a connection to the admin port");
                tokio::select! {
                    () = sleep(ACCEPT_PAUSE) => continue,
                    () = stop.cancelled() => break,
                }
            }
        };
        let Some(place) = peers.enter(peer.ip()) else {
            if warned.is_none_or(|at| at.elapsed() > WARN_INTERVAL) {
                warn!(peer = %peer.ip(), "more than {PEER_CONNECTIONS_MAX} connections to the \
                      admin port from one peer: closing those beyond");
                warned = Some(Instant::now());
            }
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        connections.spawn(async move {
            let _held = (slot, place);
            connection(stream, router.layer(Extension(Peer(peer.ip()))), &stop).await;
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, stop: &CancellationToken) {
    let Ok(local) = stream.local_addr() else { return };
    let service = TowerToHyperService::new(router.layer(Extension(Local(local))));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.unwrap_or_else(|error| debug!(%error, "closed")),
        () = sleep(AGE_MAX) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    // Whatever it was: it is over.
    let _ = timeout(LAST_TIMEOUT, connection).await;
}

/// How many connections each peer has.
#[derive(Debug, Clone, Default)]
struct Peers {
    connections: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One of a peer's connections.
struct Place {
    peers: Peers,
    peer: IpAddr,
}

impl Peers {
    /// None if the peer has as many as it may.
    fn enter(&self, peer: IpAddr) -> Option<Place> {
        let peer = network(peer);
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let count = connections.entry(peer).or_default();
        if *count >= PEER_CONNECTIONS_MAX {
            return None;
        }
        *count += 1;
        Some(Place { peers: self.clone(), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let connections = &self.peers.connections;
        let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = connections.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.peer);
            }
        }
    }
}

/// Whoever has one IPv6 address has 2^64 of them.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_so_many_places_and_gets_them_back() {
        let peers = Peers::default();
        let peer: IpAddr = "2001:db8::1".parse().expect("an address");
        let neighbour: IpAddr = "2001:db8::2".parse().expect("an address");
        let mut places: Vec<_> = (0..PEER_CONNECTIONS_MAX).map(|_| peers.enter(peer)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(peers.enter(neighbour).is_none(), "the same network");
        assert!(peers.enter("2001:db8:0:1::1".parse().expect("an address")).is_some());
        places.pop();
        assert!(peers.enter(neighbour).is_some());
        drop(places);
        assert!(peers.connections.lock().expect("not poisoned").is_empty());
    }
}
