//! Tells the role's holder up to where everything is handled.
//!
//! It writes that down when it renews the role. A message is acknowledged when its record is
//! committed, so whatever state of the database has the place has the records before it.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::Status;
use crate::nats::durable_consumer;
use crate::worker::work::Context;

const LOOK: Duration = Duration::from_secs(1);

/// The consumer's acknowledgement floor.
pub(super) struct Floor<'a> {
    pub(super) context: &'a Context,
    pub(super) stream: Stream,
}

impl Floor<'_> {
    /// Looks while events have their end, and once more: acknowledgements come after that.
    pub(super) async fn follow(&self, status: watch::Receiver<Status>, keeps: bool) {
        let mut seen = [None; 2];
        loop {
            sleep(LOOK).await;
            let counts = Some(status.borrow().counts);
            if keeps && seen != [counts; 2] {
                self.note().await;
            }
            seen = [counts, seen[0]];
        }
    }

    pub(super) async fn note(&self) {
        let Context { config, term, handled, .. } = self.context;
        // Without an answer the next look tells.
        if let Ok(Some(found)) = durable_consumer::find(&self.stream, config).await {
            handled.send_replace(Some((*term, found.ack_floor.stream_sequence)));
        }
    }
}
