//! What is left in the stream: the followers of an event that makes no progress.
//!
//! They would take the room of all other aggregates. So only their sequences are kept, and they are
//! read from the stream when their turn comes. As long as an aggregate has events that are left,
//! later ones are left too: what is held of an aggregate is always before what is left of it.

mod seqs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Subject;
use jiff::Timestamp;

use self::seqs::Seqs;
use super::{Item, Lane, Lanes, Offered, Path};
use crate::message::{Message, MessageId, Whence};

/// After so long without an end of any of its events an aggregate makes no progress.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// An aggregate with fewer events in memory is given more of what is left of it.
const HUNGRY_BELOW: usize = 8;

/// Events of one aggregate that are read at a time.
const LOADED_MAX: usize = 64;

/// The events of one aggregate that are left in the stream.
#[derive(Debug, Default)]
pub(super) struct Left {
    seqs: Seqs,
    /// When the stream of which these are the sequences was created.
    stream_created: Option<Timestamp>,
    /// Up to this one they are handled with care.
    careful_until: u64,
    /// Some are being read.
    loading: bool,
}

/// What is to be read from the stream.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) lane: u64,
    pub(crate) seqs: Vec<u64>,
}

/// A message, and where to acknowledge it; `None` if the stream has it no more.
type Found = Option<(Arc<Message>, Subject)>;

/// What was read of one aggregate, by sequence, in order.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) lane: u64,
    pub(crate) messages: Vec<(u64, Found)>,
}

impl Left {
    pub(super) fn first(&self) -> Option<u64> {
        self.seqs.first()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.seqs.iter().count()
    }

    /// Whether this event has to wait for one of these, or is one of them.
    pub(super) fn is_before(&self, id: MessageId) -> bool {
        let first = self.seqs.first().map(|seq| (self.stream_created, seq));
        first.is_some_and(|first| (id.stream_created, id.seq) >= first)
    }

    /// False if it was left before.
    fn insert(&mut self, message: &Message, path: Path) -> bool {
        self.stream_created = message.stream_created;
        if path != Path::Fast {
            self.careful_until = self.careful_until.max(message.stream_seq);
        }
        self.seqs.insert(message.stream_seq)
    }
}

impl Item {
    /// Whether it can be read from the stream again, and nothing is known about it that would be
    /// forgotten.
    fn can_be_left(&self) -> bool {
        self.message.whence == Whence::Stream
            && self.at_fault.is_none()
            && self.not_before.is_none()
            && self.path != Path::Alone
    }
}

impl Lane {
    /// Whether its first event waits for a time, or for longer than usual for anything else.
    fn is_stalled(&self, now: Instant) -> bool {
        self.waits(now) || self.moved_at.is_some_and(|at| at + STALLED_AFTER <= now)
    }

    fn waits(&self, now: Instant) -> bool {
        let until = self.queue.front().and_then(|first| first.not_before);
        self.busy == 0 && until.is_some_and(|until| until > now)
    }

    /// Not while its first event is only tried again: what is read would have to be left again.
    pub(super) fn is_hungry(&self, now: Instant) -> bool {
        !self.left.is_empty()
            && !self.left.loading
            && self.queue.len() < HUNGRY_BELOW
            && (self.queue.is_empty() || !self.is_stalled(now))
    }
}

impl Lanes {
    pub(super) fn leave(&mut self, key: u64, message: &Message, path: Path) -> Offered {
        if message.whence != Whence::Stream {
            return Offered::Passed;
        }
        let lane = self.lanes.get_mut(&key).expect("it has events that are left");
        self.left += usize::from(lane.left.insert(message, path));
        Offered::Left
    }

    /// Leaves in the stream what aggregates without progress hold beyond their first `kept` events.
    /// Returns where these were to be acknowledged, as far as that is known.
    pub(crate) fn trim(&mut self, kept: usize, now: Instant) -> Vec<Subject> {
        let stalled = |lane: &Lane| lane.queue.len() > kept && lane.is_stalled(now);
        let lanes = self.lanes.iter().filter(|(_, lane)| stalled(lane));
        let keys: Vec<u64> = lanes.map(|(key, _)| *key).collect();
        let mut replies = Vec::new();
        for key in keys {
            self.unlist(key);
            let lane = self.lanes.get_mut(&key).expect("just found");
            while lane.queue.len() > kept.max(1)
                && lane.queue.back().is_some_and(Item::can_be_left)
                && let Some(item) = lane.queue.pop_back()
            {
                self.known.remove(&item.id());
                self.bytes -= item.message.bytes();
                self.left += usize::from(lane.left.insert(&item.message, item.path));
                replies.extend(item.reply);
            }
            self.list(key, now);
        }
        replies
    }

    /// What is to be read next, if anything is. [`Lanes::load_ended`] says that it was.
    pub(crate) fn next_load(&mut self) -> Option<Load> {
        let key = self.hungry.pop_first()?;
        let lane = self.lanes.get_mut(&key)?;
        lane.left.loading = true;
        let seqs = lane.left.seqs.iter().take(LOADED_MAX).collect();
        Some(Load { lane: key, seqs })
    }

    /// Takes in what was read, in the order of the stream: the message with this sequence and where
    /// to acknowledge it; `None` if the stream has it no more.
    pub(crate) fn loaded(&mut self, key: u64, seq: u64, found: Found, now: Instant) {
        // Everything may have been released meanwhile, or an earlier one may have been left.
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.left.seqs.first() != Some(seq) {
            return;
        }
        lane.left.seqs.pop_first();
        self.left -= 1;
        let is_new = seq > lane.left.careful_until;
        let Some((message, reply)) = found else { return };
        let path = if is_new { Path::Fast } else { Path::Careful };
        self.hold(key, Item::new(message, path, Some(reply)), now);
    }

    pub(crate) fn load_ended(&mut self, key: u64, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        lane.left.loading = false;
        self.unlist(key);
        self.list(key, now);
    }

    /// Events that are left in the stream.
    pub(crate) fn left(&self) -> usize {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lanes::{Delivered, Ending};
    use crate::engine::simulation::{delivered, message};

    /// A million behind one that waits, with an event of another aggregate between any two.
    #[test]
    fn a_million_followers_take_little_memory_and_nobodys_room() {
        const FOLLOWERS: u64 = 1_000_000;
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        for seq in [2, 4, 6] {
            lanes.offer(delivered(seq, 1, None, Path::Careful), now);
        }
        let first = lanes.take(1, |_| true).remove(0);
        let again = Ending::Again { after: Duration::from_secs(60), path: Path::Careful };
        lanes.ended(first.id(), again, now);
        lanes.trim(1, now);

        // One that is left is let go of, so that it can be made the next.
        let mut next = message(6, 1);
        for at in 4..=FOLLOWERS + 1 {
            Arc::get_mut(&mut next).expect("nobody has it").stream_seq = 2 * at;
            let message = Arc::clone(&next);
            let delivered = Delivered { message, reply: None, path: Path::Fast };
            let offered = lanes.offer(delivered, now);
            assert_eq!(offered, Offered::Left);
        }
        assert_eq!((lanes.held(), lanes.left() as u64), (1, FOLLOWERS));
        let words = lanes.lanes[&first.message.lane()].left.seqs.words();
        assert!(words * size_of::<(u64, u64)>() < 1 << 20, "{words} words");
    }
}
