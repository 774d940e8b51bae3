//! Leaves in the stream what would take the room of others, and reads it when its turn comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Subject};
use futures_util::{StreamExt, stream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{Session, TOLD_DEADLINE, answer};
use crate::engine::{Full, LEFT_MAX, Load};
use crate::error::describe;
use crate::message::{Message, Origin};
use crate::nats::durable_consumer::ACK_PENDING_MAX;
use crate::nats::stored_message;
use crate::worker::work::Work;

/// Messages asked for at a time for one of them.
const READ_AHEAD: usize = 8;

/// Of one aggregate nothing more is read at a time when this is exceeded.
const LOADED_BYTES_MAX: usize = 1024 * 1024;

/// After the stream could not be read.
const PAUSE: Duration = Duration::from_millis(500);

/// The broker delivers again after a day what is left: it is known here, and told so once more. As
/// it goes before what is new, a shorter pause would make others wait for many of them more often.
const LATER: &[u8] = b"-NAK {\"delay\": 86400000000000}";

/// What is being left, and read.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Where to tell the broker that it is not to deliver again soon.
    pub(super) replies: Vec<Subject>,
    pub(super) loads: JoinSet<Loaded>,
    /// More handlers could be at work, and there is nothing for them.
    pub(super) starved: bool,
    said: bool,
}

/// A message, and where to acknowledge it; `None` if the stream has it no more.
type Found = Option<(Arc<Message>, Subject)>;

/// What was read of one aggregate, by sequence, in order.
pub(crate) struct Loaded {
    lane: u64,
    messages: Vec<(u64, Found)>,
}

impl<W: Work> Session<W> {
    /// Makes room, if there is little, and begins to read what is next.
    pub(super) async fn leave(&mut self) {
        let now = Instant::now();
        let starved = self.is_starved();
        self.leaving.replies.extend(self.capacity.trim(&mut self.lanes, starved, now));
        let left = self.lanes.left();
        let was_full = self.capacity.full().is_some();
        self.capacity.measure(&self.lanes);
        if let Some(reason) = self.full().filter(|_| !was_full) {
            warn!(consumer = self.config.consumer, reason, "nothing more is taken in");
        }
        if (left > 0) != self.leaving.said {
            self.leaving.said = left > 0;
            let consumer = &self.config.consumer;
            if left > 0 {
                info!(consumer, "events behind one without progress are left in the stream");
            } else {
                info!(consumer, "all that was left in the stream has been read");
            }
        }
        if !self.leaving.replies.is_empty() {
            let replies = std::mem::take(&mut self.leaving.replies);
            let told = async {
                for reply in &replies {
                    answer(&self.nats, reply, LATER).await;
                }
            };
            // What is not told is delivered again, and told then.
            let _ = timeout(TOLD_DEADLINE, told).await;
        }
        if self.hindrance().is_some() {
            return;
        }
        while let Some(load) = self.capacity.next_load(&mut self.lanes, self.leaving.loads.len()) {
            let (nats, origin) = (self.nats.clone(), self.origin.clone());
            let consumer = self.config.consumer.clone();
            self.leaving.loads.spawn(read(nats, origin, consumer, load));
        }
    }

    /// Where all aggregates make no progress it is nobody's fault.
    fn is_starved(&self) -> bool {
        self.leaving.starved && self.pause().is_none()
    }

    pub(super) fn next_trim(&self, now: Instant) -> Option<Instant> {
        self.capacity.next_trim(&self.lanes, self.is_starved(), now)
    }

    /// Why nothing is taken in, if what is left in the stream is why.
    pub(super) fn full(&self) -> Option<String> {
        let left = self.lanes.left();
        let reason =
            format!("too much is left in the stream: {left} events behind some that fail or wait");
        let mend = "mend what fails, or make dead letters of it by a lower max_attempts";
        Some(match self.capacity.full()? {
            Full::Left => format!("{reason}, as there may be no more than {LEFT_MAX}; {mend}"),
            Full::Unacknowledged { max } => {
                let (stream, consumer) = (&self.config.stream, &self.config.consumer);
                format!(
                    "{reason}, as the durable consumer's max_ack_pending is {max}; {mend}, or \
                     raise it: `nats consumer edit {stream} {consumer} \
                     --max-pending={ACK_PENDING_MAX}`"
                )
            }
        })
    }

    pub(super) fn note_loaded(&mut self, loaded: Loaded) {
        let now = Instant::now();
        for (seq, found) in loaded.messages {
            self.lanes.loaded(loaded.lane, seq, found, now);
        }
        self.lanes.load_ended(loaded.lane, now);
    }
}

async fn read(nats: Client, origin: Origin, consumer: String, load: Load) -> Loaded {
    let Load { lane, seqs } = load;
    let (mut messages, mut bytes) = (Vec::with_capacity(seqs.len()), 0);
    let (nats, name) = (&nats, &origin.stream);
    let get = async |seq| (seq, stored_message::get(nats, name, seq).await);
    let mut found = Box::pin(stream::iter(seqs).map(get).buffered(READ_AHEAD));
    while let Some((seq, stored)) = found.next().await {
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                let error = describe(&error);
                warn!(consumer, error, "could not read what was left in the stream");
                tokio::time::sleep(PAUSE).await;
                break;
            }
        };
        let message = stored.map(|it| {
            let reply = it.ack_subject(name, &consumer);
            (Arc::new(it.understood(&origin)), reply)
        });
        bytes += message.as_ref().map_or(0, |(message, _)| message.bytes());
        messages.push((seq, message));
        if bytes > LOADED_BYTES_MAX {
            break;
        }
    }
    Loaded { lane, messages }
}
