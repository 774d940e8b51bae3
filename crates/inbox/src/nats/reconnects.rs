//! What was asked for on a connection that is gone has no answer, and is asked for on the next.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::connection::State;
use tokio::time::timeout;
use tracing::warn;

use crate::Error;

/// How often whoever waits for an answer looks whether the connection is another one.
const LOOK: Duration = Duration::from_millis(100);

/// For how long a broker that is connected may answer nothing. A server that takes from a user the
/// right to subscribe to answers ends the client's subscription, and does not begin it again with
/// the right.
const UNANSWERED_MAX: Duration = Duration::from_secs(15);

/// How long to wait for a client to take the order.
const ORDER_MAX: Duration = Duration::from_secs(1);

/// Since when questions have had no answer, and how often the client had connected then.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<Option<(Instant, u64)>>);

impl Unanswered {
    pub(crate) fn answered(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Something was asked, and this came of it. Connects anew if that lasts.
    pub(crate) async fn failed(&self, nats: &Client, error: &Error) {
        if error.is_silence() && self.is_over(nats) {
            warn!("the broker is connected and answers nothing: connecting anew");
            // Fails only when the client is gone, which everything else tells as well.
            let _ = timeout(ORDER_MAX, nats.force_reconnect()).await;
        }
    }

    /// True once for all who ask.
    fn is_over(&self, nats: &Client) -> bool {
        let now = (Instant::now(), count(nats));
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, connects) = *since.get_or_insert(now);
        if connects != now.1 {
            *since = Some(now);
        } else if now.0 - began >= UNANSWERED_MAX && nats.connection_state() == State::Connected {
            return since.take().is_some();
        }
        false
    }
}

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
