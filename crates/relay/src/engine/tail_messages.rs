//! What a reading of the stream's end brings, in little memory: it may be a million messages, after
//! a transaction of a million rows was interrupted.

use std::collections::HashMap;

use outbox::wire::Position;
use pgoutput::Lsn;
use uuid::Uuid;

use super::last_event::LastEvent;
use super::window::LastPosition;

/// A message in the stream.
#[derive(Debug, Clone)]
pub(crate) struct TailMessage {
    pub(crate) seq: u64,
    pub(crate) id: Option<Uuid>,
    pub(crate) position: Option<Position>,
    /// The event that had the position, where it is not the message's own.
    pub(crate) position_event: Option<Uuid>,
    /// The replay that stored it. Then `id` is that of the copy, and `position` says how far the log
    /// had come.
    pub(crate) replay: Option<Uuid>,
    /// The broker stored it itself.
    pub(crate) is_marker: bool,
}

/// A message's id, where it is stored, and what transaction its own position names.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    /// The event's.
    pub id: Uuid,
    /// Its sequence in the stream.
    pub seq: u64,
    /// Zero if it has no position of its own.
    pub commit_lsn: Lsn,
}

/// The end of the stream, as its leader knows it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tail {
    /// It was made anew, or has another message where the last event was that is known: it has lost its
    /// end, and has grown again.
    pub(crate) is_other: bool,
    /// Where that event is.
    pub(crate) known_seq: u64,
    /// It takes no batches.
    pub(crate) refuses_batches: bool,
    /// The sequence that the stream gave out last.
    pub(crate) last_seq: u64,
    /// Messages read.
    pub(crate) read: usize,
    /// Those that have ids, in any order.
    pub(crate) stored: Vec<Stored>,
    /// The last one of these.
    pub(crate) last: Option<LastEvent>,
    /// Messages of other writers.
    pub(crate) foreign: usize,
    /// The last message that is not of this database's log: of another writer, or the broker's own.
    pub(crate) last_foreign: u64,
    /// The broker stores messages itself, which go again: sequences cannot be counted.
    pub(crate) has_markers: bool,
    /// The highest position of this database's log.
    pub(crate) position: Option<LastPosition>,
}

impl Tail {
    /// Nothing of the stream is read yet.
    pub(crate) fn ending_at(last_seq: u64) -> Self {
        Self { last_seq, ..Self::default() }
    }

    /// Takes in messages, in any order. Positions of other systems than `system_id` are foreign.
    pub(crate) fn add(&mut self, system_id: u64, messages: impl IntoIterator<Item = TailMessage>) {
        for message in messages {
            self.read += 1;
            let event = message.id.map(|id| LastEvent { seq: message.seq, id });
            self.last = LastEvent::later(self.last, event);
            let own = message.position.filter(|_| message.position_event.is_none());
            let commit_lsn = own.map_or(Lsn::ZERO, |position| Lsn(position.lsn));
            self.stored.extend(message.id.map(|id| Stored { id, seq: message.seq, commit_lsn }));
            match message.position.filter(|position| position.system_id == system_id) {
                // Sent before the log had brought anything.
                Some(Position { lsn: 0, .. }) => {}
                Some(position) => {
                    self.position = highest(self.position, &message, position);
                }
                None => {
                    self.foreign += usize::from(!message.is_marker);
                    self.last_foreign = self.last_foreign.max(message.seq);
                }
            }
        }
    }
}

fn highest(
    highest: Option<LastPosition>,
    message: &TailMessage,
    position: Position,
) -> Option<LastPosition> {
    let Some(event) = message.position_event.or(message.id) else { return highest };
    let (commit_lsn, ordinal) = (Lsn(position.lsn), position.ordinal);
    let is_higher = highest.is_none_or(|it| (commit_lsn, ordinal) > (it.commit_lsn, it.ordinal));
    if is_higher { Some(LastPosition { commit_lsn, ordinal, event }) } else { highest }
}

/// Ids that the stream has.
#[derive(Debug, Default, Clone)]
pub(in crate::engine) struct Seen {
    /// Sorted: a map of a million ids would take twice the memory.
    read: Vec<(Uuid, u64)>,
    /// Those that came later.
    added: HashMap<Uuid, u64>,
    /// No event that committed behind this is among them.
    before: Lsn,
}

impl Seen {
    /// Takes in messages, none of an event that committed behind `before`.
    pub(super) fn add(&mut self, stored: Vec<Stored>, before: Lsn) {
        self.before = self.before.max(before);
        // In place, since the new items are smaller.
        let mut stored: Vec<_> = stored.into_iter().map(|it| (it.id, it.seq)).collect();
        if stored.len() > self.read.len() {
            std::mem::swap(&mut self.read, &mut stored);
            self.read.sort_unstable();
        }
        self.added.extend(stored);
    }

    /// Forgets everything if the log has come so far that it brings none of it any more.
    pub(super) fn forget_if_passed(&mut self, commit_lsn: Lsn) {
        let is_empty = self.read.is_empty() && self.added.is_empty();
        if !is_empty && commit_lsn > self.before {
            *self = Self::default();
        }
    }

    /// Forgets what is stored before `seq`.
    pub(super) fn forget_before(&mut self, seq: u64) {
        self.read.retain(|it| it.1 >= seq);
        self.added.retain(|_, at| *at >= seq);
    }

    /// Where an id is stored.
    pub(super) fn get(&self, id: &Uuid) -> Option<u64> {
        self.added.get(id).copied().or_else(|| {
            let at = self.read.binary_search_by_key(id, |(id, _)| *id).ok()?;
            Some(self.read[at].1)
        })
    }
}
