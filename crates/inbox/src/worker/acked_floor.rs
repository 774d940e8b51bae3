//! Tells the role's holder up to where everything is handled.
//!
//! It writes that down when it renews the role. A message is acknowledged when its record is
//! committed, so whatever state of the database has the place has the records before it. Others may
//! acknowledge what was delivered: the place is before every event that has no end here. While the
//! consumer is for other subjects it passes over events, and the place stays.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Stream;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Status;
use crate::nats::source::made_at;
use crate::nats::{durable_consumer, stored_message};
use crate::unread::Seen;
use crate::worker::work::Context;

const LOOK: Duration = Duration::from_secs(1);

/// How often to look what left the stream.
const LOOK_AT_STREAM: Duration = Duration::from_secs(10);

const LAST_LOOK_MAX: Duration = Duration::from_secs(2);

/// The consumer's acknowledgement floor.
pub(super) struct Floor<'a> {
    pub(super) context: &'a Context,
    pub(super) stream: Stream,
    pub(super) nats: &'a async_nats::Client,
    /// Where it began, if the records knew the end of everything up to there.
    pub(super) level: Option<u64>,
    /// When it was made: one that others made in its place may have passed over events.
    pub(super) made: Option<Timestamp>,
    /// Up to where all that was delivered since has its end.
    pub(super) ended: watch::Receiver<u64>,
    /// What this session has seen of the stream, and up to where that is written down.
    pub(super) seen: Option<(Seen, u64)>,
}

impl Floor<'_> {
    /// Looks while events have their end, and once more: acknowledgements come after that.
    pub(super) async fn follow(&mut self, status: watch::Receiver<Status>) {
        let (mut seen, mut looked) = ([None; 2], Instant::now());
        loop {
            sleep(LOOK).await;
            let ends = Some((status.borrow().counts, *self.ended.borrow()));
            if seen != [ends; 2] {
                self.note().await;
            }
            seen = [ends, seen[0]];
            if looked.elapsed() >= LOOK_AT_STREAM {
                looked = Instant::now();
                // What is not seen now is at the next look.
                let _ = self.look(false).await;
            }
        }
    }

    /// The session is over. Who has lost the role has nothing to say of what is handled; what it saw of
    /// the stream counts until another worker takes the role, which a worker that stops has given back.
    pub(super) async fn end(&mut self, is_active: bool) {
        if is_active {
            self.note().await;
        }
        // The next session looks too, and others wait for the role.
        let _ = timeout(LAST_LOOK_MAX, self.look(true)).await;
    }

    async fn note(&self) {
        let Context { config, term, handled, .. } = self.context;
        let Some(level) = self.level else { return };
        // Without an answer the next look tells.
        if let Ok(Some(found)) = durable_consumer::find(&self.stream, config).await
            && made_at(&found) == self.made
            && !durable_consumer::is_for_others(&found.config, config)
        {
            let ended = level.max(*self.ended.borrow()).min(found.ack_floor.stream_sequence);
            let Ok(at) = stored_message::at(self.nats, &config.stream, ended).await else { return };
            handled.send_replace(Some((*term, (ended, at))));
        }
    }
}
