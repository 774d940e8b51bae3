//! Clients and servers that can do nothing more.

use std::time::Duration;

use async_nats::Client;
use futures_util::{FutureExt, SinkExt};
use tracing::warn;

/// A client that has no connection answers no question.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Connects to another server, if more than one is known; to which one is left to chance.
///
/// A server that lost the others of its cluster keeps its clients: it answers their pings, and
/// nothing that needs a stream's leader. What is on its way then may or may not be stored, as after
/// any broken connection.
pub(crate) async fn leave_server(client: &Client) {
    let servers = tokio::time::timeout(ANSWER_MAX, client.server_pool()).await;
    let known = servers.ok().and_then(Result::ok).map_or(0, |servers| servers.len());
    if known < 2 {
        return;
    }
    warn!("the stream stays silent: trying another server of the cluster");
    // Fails only when the client is gone, which everything else tells as well.
    let _ = tokio::time::timeout(ANSWER_MAX, client.force_reconnect()).await;
}

/// Whether the client has ended, which it does not do by itself: its task panics at some bytes that
/// others may send it. It does not connect again then, and another client has to be made.
pub(crate) fn has_ended(client: &Client) -> bool {
    let mut client = client.clone();
    matches!(std::future::poll_fn(|cx| client.poll_ready_unpin(cx)).now_or_never(), Some(Err(_)))
}
