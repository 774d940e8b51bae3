//! Counts the messages of a connection, and says when it has come to its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::framing::{Conversation, Framer, Protocol};
use super::{After, Counts, Direction, Limit};

/// What both directions of a connection know of it.
pub(super) struct Talk {
    protocol: Option<Protocol>,
    conversation: Arc<Conversation>,
    is_silent: Arc<AtomicBool>,
    is_limited: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Talk {
    pub(super) fn begin(protocol: Option<Protocol>, counts: &Arc<Counts>) -> Self {
        Self {
            protocol,
            conversation: Arc::default(),
            is_silent: Arc::default(),
            is_limited: Arc::default(),
            counts: Arc::clone(counts),
        }
    }

    pub(super) fn meter(&self, direction: Direction) -> Meter {
        let from_client = direction == Direction::ToServer;
        let framer = |protocol| Framer::new(protocol, from_client, &self.conversation);
        Meter {
            direction,
            framer: self.protocol.map(framer),
            conversation: Arc::clone(&self.conversation),
            is_silent: Arc::clone(&self.is_silent),
            is_limited: Arc::clone(&self.is_limited),
            counts: Arc::clone(&self.counts),
        }
    }
}

/// Counts the messages of a connection in one direction.
pub(super) struct Meter {
    pub(super) direction: Direction,
    framer: Option<Framer>,
    conversation: Arc<Conversation>,
    pub(super) is_silent: Arc<AtomicBool>,
    is_limited: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Meter {
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }

    /// How many bytes of a chunk pass, and what is to be done then if the connection has come to
    /// its limit.
    pub(super) fn measure(&mut self, chunk: &[u8], limit: Option<Limit>) -> (usize, Option<After>) {
        let Some(framer) = &mut self.framer else { return (chunk.len(), None) };
        let last = limit.map_or(u64::MAX, |it| self.conversation.last(it.number, it.messages));
        let passes = framer.pass(chunk, last);
        let Some(limit) = limit.filter(|_| self.conversation.passed() >= last) else {
            return (passes, None);
        };
        if !self.is_limited.swap(true, Ordering::AcqRel) {
            self.counts.limited.fetch_add(1, Ordering::Release);
        }
        if limit.after == After::Silence {
            self.is_silent.store(true, Ordering::Release);
        }
        if matches!(limit.after, After::Delay(_)) {
            // All of it passes; what is behind the limit has to be understood too.
            let rest = framer.pass(&chunk[passes..], u64::MAX);
            return (passes + rest, Some(limit.after));
        }
        (passes, Some(limit.after))
    }
}
