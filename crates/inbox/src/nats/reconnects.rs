//! What was asked for on a connection that is gone has no answer, and is asked for on the next.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Client;

/// How often whoever waits for an answer looks whether the connection is another one.
const LOOK: Duration = Duration::from_millis(100);

/// How often the client has connected.
pub(crate) fn count(nats: &Client) -> u64 {
    nats.statistics().connects.load(Ordering::Relaxed)
}

/// Waits until the client has connected more often than this.
pub(crate) async fn beyond(nats: &Client, count: u64) {
    while self::count(nats) == count {
        tokio::time::sleep(LOOK).await;
    }
}

/// Asks, and once more for each connection that is made while the answer is waited for: what is asked
/// must change nothing.
pub(crate) async fn asked<F: Future>(nats: &Client, ask: impl Fn() -> F) -> F::Output {
    loop {
        let count = count(nats);
        tokio::select! {
            biased;
            answer = ask() => return answer,
            () = beyond(nats, count) => {}
        }
    }
}
