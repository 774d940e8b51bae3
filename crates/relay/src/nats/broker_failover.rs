//! Clients and servers that can do nothing more.

use async_nats::Client;
use futures_util::{FutureExt, SinkExt};
use tracing::warn;

/// Connects to another server, if more than one is known; to which one is left to chance.
///
/// A server that lost the others of its cluster keeps its clients: it answers their pings, and
/// nothing that needs a stream's leader. What is on its way then may or may not be stored, as after
/// any broken connection.
pub(crate) async fn leave_server(client: &Client) {
    let known = client.server_pool().await.map_or(0, |servers| servers.len());
    if known < 2 {
        return;
    }
    warn!("the stream stays silent: trying another server of the cluster");
    // Fails only when the client is gone, which everything else tells as well.
    let _ = client.force_reconnect().await;
}

/// Whether the client has ended, which it does not do by itself: its task panics at some bytes that
/// others may send it. It does not connect again then, and another client has to be made.
pub(crate) fn has_ended(client: &Client) -> bool {
    let mut client = client.clone();
    matches!(std::future::poll_fn(|cx| client.poll_ready_unpin(cx)).now_or_never(), Some(Err(_)))
}
