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

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::ApiError;

/// Connections at a time. On further ones only probes are answered.
const CONNECTIONS_MAX: usize = 128;
/// Connections of one peer at a time. On further ones only probes are answered.
const PEER_CONNECTIONS_MAX: usize = 32;
/// Connections at a time on which only probes are answered. Further ones are closed.
const PROBES_MAX: usize = 32;
/// Those of one peer.
const PEER_PROBES_MAX: usize = 8;
/// What probes ask for.
const PROBED: [&str; 3] = ["/livez", "/readyz", "/metrics"];
/// How long the head of a probe may take, and the rest of it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
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
pub(crate) struct Peer(pub(crate) IpAddr);

/// Serves until `stop`, then ends the connections when their requests under way are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let (all, probes) = (Room::new(CONNECTIONS_MAX), Room::new(PROBES_MAX));
    let of_probes = router.clone().layer(middleware::from_fn(only_probes));
    let mut connections = JoinSet::new();
    let mut warned: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "could not accept a connection to the admin port");
                tokio::select! {
                    () = sleep(ACCEPT_PAUSE) => continue,
                    () = stop.cancelled() => break,
                }
            }
        };
        let peer = peer.ip();
        let (held, router, limits) = match all.enter(peer, PEER_CONNECTIONS_MAX) {
            Some(place) => (place, &router, (HEAD_TIMEOUT, AGE_MAX)),
            None => {
                if warned.is_none_or(|at| at.elapsed() > WARN_INTERVAL) {
                    warn!(%peer, "more than {CONNECTIONS_MAX} connections to the admin port, or \
                          {PEER_CONNECTIONS_MAX} from one peer: only probes are answered on those \
                          beyond");
                    warned = Some(Instant::now());
                }
                let Some(place) = probes.enter(peer, PEER_PROBES_MAX) else { continue };
                (place, &of_probes, (PROBE_TIMEOUT, PROBE_TIMEOUT))
            }
        };
        let (router, stop) = (router.clone().layer(Extension(Peer(peer))), stop.clone());
        connections.spawn(async move {
            let _held = held;
            connection(stream, router, limits, &stop).await;
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// There is no room for anything else.
async fn only_probes(request: Request, next: Next) -> Response {
    if PROBED.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let detail = "there are too many connections: only probes are answered".to_owned();
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response()
}

/// `head` and `age` limit how long a request's head may take, and the connection.
async fn connection(
    stream: TcpStream,
    router: Router,
    (head, age): (Duration, Duration),
    stop: &CancellationToken,
) {
    let Ok(local) = stream.local_addr() else { return };
    let router = router.layer(Extension(Local(local)));
    let router = router.layer(Extension(console::ClosesAt(Instant::now() + age)));
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.unwrap_or_else(|error| debug!(%error, "closed")),
        () = sleep(age) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    // Whatever it was: it is over.
    let _ = timeout(LAST_TIMEOUT, connection).await;
}

/// Room for connections, and how many each peer has.
#[derive(Debug, Clone)]
struct Room {
    slots: Arc<Semaphore>,
    peers: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One of a peer's connections.
struct Place {
    room: Room,
    peer: IpAddr,
    _slot: OwnedSemaphorePermit,
}

impl Room {
    fn new(connections: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(connections)), peers: Arc::default() }
    }

    /// None if there is no room, or the peer has as many connections as it may.
    fn enter(&self, peer: IpAddr, max: usize) -> Option<Place> {
        let peer = network(peer);
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        let mut connections = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = connections.entry(peer).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Place { room: self.clone(), peer, _slot: slot })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let connections = &self.room.peers;
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
        let room = Room::new(CONNECTIONS_MAX);
        let peer: IpAddr = "2001:db8::1".parse().expect("an address");
        let neighbour: IpAddr = "2001:db8::2".parse().expect("an address");
        let enter = |peer| room.enter(peer, PEER_CONNECTIONS_MAX);
        let mut places: Vec<_> = (0..PEER_CONNECTIONS_MAX).map(|_| enter(peer)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(enter(neighbour).is_none(), "the same network");
        let others = "2001:db8:0:1::1".parse().expect("an address");
        assert!(enter(others).is_some());
        places.pop();
        assert!(enter(neighbour).is_some());
        drop(places);
        assert!(room.peers.lock().expect("not poisoned").is_empty());
        assert_eq!(room.slots.available_permits(), CONNECTIONS_MAX);
    }
}
