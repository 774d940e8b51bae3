//! The events between the log and the broker, in order.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use outbox::Event;
use outbox::wire::{Position, replayed_id};
use pgoutput::Lsn;
use uuid::Uuid;

use crate::engine::backoff;
use crate::status::DeadLetterReason;

/// What may be read but not resolved. Whichever is reached first stops the reading, softly: one event may
/// overshoot bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// Events.
    pub events: usize,
    /// Bytes of payload, and an allowance for subject and headers.
    pub bytes: usize,
}

/// Who brought an event, and with it, who owes it a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The replication slot.
    Log,
    /// The replication slot, as a message of `outbox_emit_wal`: no row owes a mark.
    Emitted,
    /// The scanner, in the batch with this number.
    Scan(u32),
    /// A replay: the row has its mark.
    Replay,
}

/// The last position the log reached, and the event that had it. Scanned events repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastPosition {
    pub(crate) commit_lsn: Lsn,
    pub(crate) ordinal: u32,
    pub(crate) event: Uuid,
}

impl Origin {
    /// Whether the event has a place of its own in the log.
    pub(crate) fn is_logged(self) -> bool {
        matches!(self, Self::Log | Self::Emitted)
    }
}

impl LastPosition {
    pub(crate) fn place(self) -> (Lsn, u32) {
        (self.commit_lsn, self.ordinal)
    }

    /// The later one of two.
    pub(crate) fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).max_by_key(|it| it.place())
    }
}

/// An event with where it goes, or with why it goes nowhere.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub event: Event,
    /// The rendered subject.
    pub subject: Result<String, Unpublished>,
    /// Its row's place in the order of insertion.
    pub(crate) seq: Option<i64>,
    /// It was a dead letter.
    pub(crate) requeued: bool,
    /// By earlier sessions.
    pub(crate) tried: Tried,
    /// It is published once more. Then `event` has the id of this copy.
    pub(crate) replayed: Option<Box<Replayed>>,
}

/// What a copy of an event is a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) event: Uuid,
    pub(crate) replay: Uuid,
    /// Where the event itself came in the log, if that is known.
    pub(crate) position: Option<Position>,
}

impl Outgoing {
    /// The same event, to be published once more.
    pub(crate) fn replayed(mut self, replay: Uuid, position: Option<Position>) -> Self {
        let event = self.event.id;
        self.event.id = replayed_id(event, replay);
        self.replayed = Some(Box::new(Replayed { event, replay, position }));
        (self.requeued, self.tried) = (false, Tried::default());
        self
    }
}

/// How often an event was tried before it came, and how long it is not to be tried again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tried {
    pub(crate) attempts: u32,
    pub(crate) pause: Duration,
}

impl Tried {
    /// From what a row says: how often, and in how many seconds it is due. Others may have written
    /// there, too.
    pub(crate) fn from_row(attempts: Option<i32>, due_seconds: Option<f64>) -> Self {
        let attempts = attempts.and_then(|it| u32::try_from(it).ok()).unwrap_or(0);
        let pause = Duration::try_from_secs_f64(due_seconds.unwrap_or(0.0).max(0.0));
        Self { attempts, pause: pause.unwrap_or_default().min(backoff::EVENT.max) }
    }
}

/// Why an event has no subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpublished {
    /// A route drops it: it is resolved as soon as it is seen.
    Dropped,
    /// It can never be published, for this reason: it is parked.
    Unfit(String),
    /// Somebody wrote it who writes no events, for this reason: it is parked, and none of the
    /// aggregate that it names waits for it.
    NoEvent(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Sent,
    /// Not to be sent before a time, and not to be overtaken.
    Deferred,
    Parking,
    Resolved,
}

/// How an entry was sent last, if it was.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sent {
    /// The stream's last sequence as known then: what was sent last can only be stored above it.
    pub(crate) after: u64,
    /// What was sent of it before can only be stored above this one: no reading had it up to here.
    first_after: Option<u64>,
    /// Keyed mode: somebody says that it is refused, or stored where it is not.
    pub(crate) is_doubted: bool,
    pub(crate) at: Duration,
    /// Fenced mode: the last sequence that the message named.
    pub(crate) expected: u64,
}

impl Sent {
    pub(crate) fn again(&mut self, known_seq: u64, now: Duration) {
        (self.after, self.at) = (known_seq, now);
        self.first_after.get_or_insert(known_seq);
    }

    /// Behind which sequence the message is to be looked for.
    pub(crate) fn behind(&self) -> u64 {
        self.first_after.filter(|_| self.is_doubted).unwrap_or(self.after)
    }
}

/// Keyed mode: an entry's place among those of its aggregate.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    key: u64,
    /// The next entry of the aggregate, which waits for this one.
    next: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) outgoing: Outgoing,
    pub(crate) origin: Origin,
    pub(crate) commit_lsn: Lsn,
    pub(crate) commit_time_micros: i64,
    /// How far the log has come with this entry.
    pub(crate) position: Option<LastPosition>,
    pub(crate) stage: Stage,
    pub(crate) sent: Sent,
    pub(crate) received_at: Duration,
    /// Attempts that failed for reasons that may pass.
    pub(crate) attempts: u32,
    /// Once it is to be parked: why.
    pub(crate) parked_for: DeadLetterReason,
    /// While deferred: when to try again.
    pub(crate) not_before: Duration,
    bytes: usize,
    chain: Chain,
    /// No unresolved entry of the same aggregate is before this one.
    pub(crate) is_head: bool,
}

impl Entry {
    /// Whether it is nothing that anybody waits for.
    pub(crate) fn is_no_event(&self) -> bool {
        matches!(self.outgoing.subject, Err(Unpublished::NoEvent(_)))
    }
}

/// What is allowed for subject and headers when the window's bytes are counted.
const HEADERS_ALLOWANCE_BYTES: usize = 512;

/// A queue of numbered entries; resolved ones leave from the front.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    entries: VecDeque<Entry>,
    /// The number of the front entry (or of the next one, if empty).
    first: u64,
    bytes: usize,
    unresolved: usize,
    /// Keyed mode only: the last unresolved entry of each aggregate. A hash collision makes two
    /// aggregates wait for each other, which costs parallelism and nothing else.
    key_tails: Option<HashMap<u64, u64>>,
    hasher: RandomState,
}

impl Window {
    pub(crate) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            bytes: 0,
            unresolved: 0,
            key_tails: None,
            hasher: RandomState::new(),
        }
    }

    /// From now on the entries of an aggregate form a chain. Returns the heads of the chains.
    pub(crate) fn chain_by_key(&mut self) -> Vec<u64> {
        self.key_tails = Some(HashMap::new());
        let indices: Vec<u64> = self.iter_unresolved().map(|(index, _)| index).collect();
        indices.into_iter().filter(|&index| self.chain(index)).collect()
    }

    pub(crate) fn has_room(&self, limits: WindowLimits) -> bool {
        self.entries.len() < limits.events && self.bytes < limits.bytes
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn unresolved(&self) -> usize {
        self.unresolved
    }

    /// The number of the first unresolved entry, or of the next one to come.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next entry will get.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(self.slot(index)?)
    }

    pub(crate) fn get_mut(&mut self, index: u64) -> Option<&mut Entry> {
        let slot = self.slot(index)?;
        self.entries.get_mut(slot)
    }

    /// Unresolved entries with their numbers, in order.
    pub(crate) fn iter_unresolved(&self) -> impl Iterator<Item = (u64, &Entry)> {
        let numbered = (self.first..).zip(&self.entries);
        numbered.filter(|(_, entry)| entry.stage != Stage::Resolved)
    }

    /// Everything sent and unanswered goes back to waiting: the stream was read from sequence `from` up
    /// to `last_seq`.
    pub(crate) fn go_back(&mut self, from: u64, last_seq: u64) {
        for entry in &mut self.entries {
            if let Some(after) = &mut entry.sent.first_after
                && from <= *after + 1
            {
                *after = last_seq;
            }
            if entry.stage == Stage::Sent {
                entry.stage = Stage::Waiting;
            }
        }
    }

    /// Appends an entry. Says its number, and whether no unresolved one of its aggregate is before
    /// it (always so while entries are not chained).
    pub(crate) fn push(
        &mut self,
        outgoing: Outgoing,
        origin: Origin,
        at: (Lsn, i64),
        position: Option<LastPosition>,
        received_at: Duration,
    ) -> (u64, bool) {
        let index = self.end();
        let headers = outgoing.event.headers.as_ref().map_or(0, bytes::Bytes::len);
        let bytes = outgoing.event.payload.len() + headers + HEADERS_ALLOWANCE_BYTES;
        let (commit_lsn, commit_time_micros) = at;
        self.entries.push_back(Entry {
            outgoing,
            origin,
            commit_lsn,
            commit_time_micros,
            position,
            stage: Stage::Waiting,
            sent: Sent::default(),
            received_at,
            attempts: 0,
            parked_for: DeadLetterReason::Unfit,
            not_before: Duration::ZERO,
            bytes,
            chain: Chain::default(),
            is_head: true,
        });
        self.bytes += bytes;
        self.unresolved += 1;
        (index, self.chain(index))
    }

    /// Links an entry behind the last one of its aggregate, if there is one. Says whether it is the
    /// head of its chain.
    fn chain(&mut self, index: u64) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        let key = match &self.key_tails {
            Some(_) => key_of(&self.hasher, &self.entries[slot].outgoing.event),
            None => return true,
        };
        let predecessor = self.key_tails.as_mut().and_then(|tails| tails.insert(key, index));
        let predecessor = predecessor.and_then(|predecessor| self.get_mut(predecessor));
        let is_head = predecessor.map(|it| it.chain.next = Some(index)).is_none();
        let entry = &mut self.entries[slot];
        (entry.chain, entry.is_head) = (Chain { key, next: None }, is_head);
        is_head
    }

    /// Marks an entry resolved and lets it leave when it reaches the front. Says which entry of the
    /// same aggregate need not wait any more. Entries may be resolved in any order: one that is
    /// parked, or found in the stream, releases nobody while another is before it.
    pub(crate) fn resolve(&mut self, index: u64) -> Option<u64> {
        let entry = self.get_mut(index)?;
        if entry.stage == Stage::Resolved {
            return None;
        }
        entry.stage = Stage::Resolved;
        let released = if entry.is_head { self.release(index) } else { None };
        self.unresolved -= 1;
        while let Some(front) = self.entries.front()
            && front.stage == Stage::Resolved
        {
            self.bytes -= front.bytes;
            self.entries.pop_front();
            self.first += 1;
        }
        released
    }

    /// The first unresolved entry behind a resolved head becomes the head.
    fn release(&mut self, head: u64) -> Option<u64> {
        let mut at = head;
        loop {
            let entry = self.get(at)?;
            let Chain { key, next } = entry.chain;
            let Some(next) = next else {
                if let Some(tails) = &mut self.key_tails {
                    tails.remove(&key);
                }
                return None;
            };
            let entry = self.get_mut(next)?;
            if entry.stage != Stage::Resolved {
                entry.is_head = true;
                return Some(next);
            }
            at = next;
        }
    }

    pub(super) fn assert_holds(&self) {
        let counted = self.entries.iter().fold((0, 0), |(unresolved, bytes), it| {
            (unresolved + usize::from(it.stage != Stage::Resolved), bytes + it.bytes)
        });
        assert_eq!(counted, (self.unresolved, self.bytes), "unresolved entries, and bytes");
        let front = self.entries.front();
        assert!(front.is_none_or(|it| it.stage != Stage::Resolved), "a resolved entry is in front");
        if self.key_tails.is_some() {
            let key = |it: &Entry| it.chain.key;
            let mut seen = std::collections::BTreeSet::new();
            for (index, entry) in self.iter_unresolved() {
                let is_first = seen.insert(key(entry));
                assert_eq!(is_first, entry.is_head, "entry {index} as the first of its aggregate");
            }
        }
    }

    fn slot(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.first)?).ok()
    }
}

fn key_of(hasher: &RandomState, event: &Event) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(event.aggregate_type.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(event.aggregate_id.as_bytes());
    hasher.finish()
}
