//! What is said of an event, given all that is known of it.

use std::cmp::Ordering;

use uuid::Uuid;

use super::cut::Cut;
use super::finding::Kind;
use super::spilled::{MessageRecord, Named, OrderRecord, OrphanRecord, Place, RowRecord};

const NOT_THERE: &str = "the row names a sequence that has no message of this event";
const NOWHERE: &str = "the row is marked as published, and no message has its id";
const NOT_STORED: &str = "the relay is done with the row, and no message has its id";
const REMOVED: &str = "the message is gone, and no limit of the stream removes it";
const UNREAD: &str = "the stream removed the message before a consumer got it";

/// A finding, unless a second look finds a reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) kind: Kind,
    pub(crate) id: Option<Uuid>,
    pub(crate) at: Option<Place>,
    /// What else it is about: another message, or the place that the row names.
    pub(crate) other: Option<Place>,
    /// The row's mark when the table was read; `None` if it had none, or there was no row.
    pub(crate) named: Option<Named>,
    pub(crate) why: &'static str,
}

/// How many of what there was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) rows: u64,
    pub(crate) dead_letters: u64,
    /// Rows that have their message.
    pub(crate) matched: u64,
    /// Rows without a mark or a watermark.
    pub(crate) pending: u64,
    /// When the oldest of them happened, in microseconds from 1970 on.
    pub(crate) oldest_pending_micros: Option<i64>,
    /// Rows whose messages lie before what was read.
    pub(crate) out_of_reach: u64,
    /// Rows that name a stream that was not read.
    pub(crate) elsewhere: u64,
    /// Rows that another program marked.
    pub(crate) marked_by_others: u64,
    /// Rows that a route dropped.
    pub(crate) dropped: u64,
    /// Stored events that the present routes drop.
    pub(crate) routed_away: u64,
    /// Messages of events that never had a row.
    pub(crate) emitted: u64,
    /// Messages of a relay that came after the table was read.
    pub(crate) younger: u64,
    /// Messages of other writers.
    pub(crate) foreign: u64,
    /// Messages that the stream stores under other subjects than those of the events.
    pub(crate) transformed: u64,
    /// What replays stored of events that are there without it, or have no row.
    pub(crate) replayed: u64,
}

/// Compares the rows and the messages of one partition after the other.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    cut: &'a Cut,
    pub(crate) counts: Counts,
    /// The lowest sequence of each stream that has a row.
    pub(crate) lowest_with_row: Vec<Option<u64>>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) orphans: Vec<OrphanRecord>,
    pub(crate) orders: Vec<OrderRecord>,
}

/// All that PostgreSQL knows of an event.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    row: Option<RowRecord>,
    is_dead: bool,
    /// There is a decision about the dead letter.
    is_discarded: bool,
}

impl Known {
    /// From the records with the same id: a row, a dead letter, a row's debt, each at most once.
    fn of(records: &[RowRecord]) -> Self {
        let is_row = |it: &&RowRecord| !it.is(RowRecord::DEAD | RowRecord::OWED);
        let mut row = records.iter().find(is_row).copied();
        let owed = records.iter().find(|it| it.is(RowRecord::OWED));
        if let (Some(row), Some(owed)) = (&mut row, owed) {
            // As if it were marked already.
            row.flags |= RowRecord::OWED | RowRecord::MARKED | owed.flags & RowRecord::DROPPED;
            row.named = owed.named;
        }
        let has = |flag| records.iter().any(|it| it.is(flag));
        let (is_dead, is_discarded) = (has(RowRecord::DEAD), has(RowRecord::DISCARDED));
        Self { row, is_dead, is_discarded }
    }
}

impl<'a> Judge<'a> {
    pub(crate) fn new(cut: &'a Cut) -> Self {
        Self {
            cut,
            counts: Counts::default(),
            lowest_with_row: vec![None; cut.streams.len()],
            candidates: Vec::new(),
            orphans: Vec::new(),
            orders: Vec::new(),
        }
    }

    /// Joins the records of a partition by the event's id.
    pub(crate) fn partition(&mut self, mut rows: Vec<RowRecord>, mut messages: Vec<MessageRecord>) {
        rows.sort_unstable_by_key(|it| it.id);
        messages.sort_unstable_by_key(|it| (it.id, it.at));
        let mut rows = rows.chunk_by(|a, b| a.id == b.id).peekable();
        let mut messages = messages.chunk_by(|a, b| a.id == b.id).peekable();
        loop {
            let order = match (rows.peek(), messages.peek()) {
                (Some(rows), Some(messages)) => rows[0].id.cmp(&messages[0].id),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return,
            };
            let rows = if order == Ordering::Greater { None } else { rows.next() };
            let messages = if order == Ordering::Less { None } else { messages.next() };
            self.event(Known::of(rows.unwrap_or_default()), messages.unwrap_or_default());
        }
    }

    /// One event, with its messages in the order of their places. What replays stored counts where
    /// nothing else is left of it.
    fn event(&mut self, known: Known, messages: &[MessageRecord]) {
        if messages.iter().all(|it| it.replay() == 0) {
            return self.event_of(known, messages);
        }
        let (copies, originals): (Vec<MessageRecord>, Vec<MessageRecord>) =
            messages.iter().partition(|it| it.replay() > 0);
        self.replayed_twice(&copies);
        if known.row.is_none() || !originals.is_empty() {
            self.counts.replayed += copies.len() as u64;
            if known.row.is_some() || known.is_dead || !originals.is_empty() {
                self.event_of(known, &originals);
            }
            return;
        }
        self.counts.replayed += copies.len() as u64 - 1;
        self.event_of(known, &copies[..1]);
    }

    /// A replay stores an event once.
    fn replayed_twice(&mut self, copies: &[MessageRecord]) {
        for (at, copy) in copies.iter().enumerate() {
            let number = copy.replay();
            let former = copies[..at].iter().find(|it| it.replay() == number);
            if let Some(former) = former.filter(|_| number < MessageRecord::REPLAY_MAX) {
                let (why, other) = ("one replay stored the event more than once", former.at);
                self.found(Kind::Duplicate, copy, why).other = Some(other);
            }
        }
    }

    fn event_of(&mut self, known: Known, messages: &[MessageRecord]) {
        self.counts.dead_letters += u64::from(known.is_dead);
        match known {
            Known { is_dead: true, is_discarded, .. } => self.dead(messages, is_discarded),
            Known { row: Some(row), .. } => {
                self.counts.rows += 1;
                match messages.split_first() {
                    Some((first, again)) => self.stored(&row, first, again, messages),
                    None => self.not_stored(&row),
                }
            }
            Known { row: None, .. } => self.without_row(messages),
        }
    }

    fn found(&mut self, kind: Kind, message: &MessageRecord, why: &'static str) -> &mut Candidate {
        let (id, at) = (Some(message.id), Some(message.at));
        self.candidates.push(Candidate { kind, id, at, other: None, named: None, why });
        self.candidates.last_mut().expect("just pushed")
    }

    fn was_before(&self, message: &MessageRecord) -> bool {
        let stream = self.cut.stream(message.at.stream);
        stream.is_some_and(|it| message.at.sequence <= it.before)
    }

    fn dead(&mut self, messages: &[MessageRecord], is_discarded: bool) {
        let before = messages.iter().find(|it| self.was_before(it));
        if let Some(message) = before.filter(|_| !is_discarded) {
            self.found(Kind::Parked, message, "the event is a dead letter, and the stream has it");
        }
        self.again(messages);
    }

    fn again(&mut self, messages: &[MessageRecord]) {
        let Some((first, again)) = messages.split_first() else { return };
        for message in again {
            let why = "the stream has the event's id more than once";
            self.found(Kind::Duplicate, message, why).other = Some(first.at);
        }
    }

    fn without_row(&mut self, messages: &[MessageRecord]) {
        let ours: Vec<MessageRecord> =
            messages.iter().filter(|it| it.is(MessageRecord::OURS)).copied().collect();
        self.counts.foreign += (messages.len() - ours.len()) as u64;
        self.again(&ours);
        let Some(first) = ours.first() else { return };
        if first.is(MessageRecord::EMITTED) {
            self.counts.emitted += 1;
            return self.order(first, None);
        }
        if self.cut.marking.deletes {
            self.order(first, None);
        }
        if self.was_before(first) {
            self.orphans.push(OrphanRecord { at: first.at, id: Some(first.id) });
        } else {
            self.counts.younger += 1;
        }
    }

    fn stored(
        &mut self,
        row: &RowRecord,
        first: &MessageRecord,
        again: &[MessageRecord],
        all: &[MessageRecord],
    ) {
        self.counts.matched += 1;
        let lowest = self.lowest_with_row.get_mut(usize::from(first.at.stream));
        if let Some(lowest) = lowest {
            *lowest = Some(lowest.map_or(first.at.sequence, |it| it.min(first.at.sequence)));
        }
        if !again.is_empty() {
            self.again(all);
        }
        self.content(row, first);
        self.order(first, Some(row));
        if row.is(RowRecord::MARKED) {
            self.marked_and_stored(row, first, all);
        } else {
            self.unmarked_and_stored(row, first);
        }
    }

    fn content(&mut self, row: &RowRecord, message: &MessageRecord) {
        if row.is(RowRecord::UNFIT) {
            let why = "no message can be made of the row as it is";
            self.found(Kind::Headers, message, why);
            return;
        }
        let (of_row, stored) = (row.print, message.print);
        if of_row.payload != stored.payload {
            self.found(Kind::Payload, message, "the payload is not the row's");
        }
        let is_other_time =
            !row.is(RowRecord::TIMELESS) && of_row.occurred_at != stored.occurred_at;
        if of_row.headers != stored.headers || is_other_time {
            self.found(Kind::Headers, message, "a header is not what the row maps to");
        }
        if row.is(RowRecord::ROUTED_AWAY) {
            self.counts.routed_away += 1;
        } else if self.cut.stream(message.at.stream).is_some_and(|it| it.transforms) {
            self.counts.transformed += 1;
        } else if of_row.subject != stored.subject
            && message.at.stream == row.shard
            && message.replay() == 0
        {
            self.found(Kind::Subject, message, "the subject is not what the row maps to");
        }
    }

    fn marked_and_stored(&mut self, row: &RowRecord, first: &MessageRecord, all: &[MessageRecord]) {
        let named = Some(row.named);
        if row.is(RowRecord::DROPPED) {
            let why = "the row says that a route dropped the event";
            self.found(Kind::Dropped, first, why).named = named;
            return;
        }
        match row.named {
            Named::Here { stream, sequence } => {
                let place = Place { stream, sequence: sequence.unwrap_or(0) };
                let is_there = all.iter().any(|it| it.at == place);
                if !all.iter().any(|it| it.at.stream == stream) {
                    let why = "the row names another stream";
                    let found = self.found(Kind::Misplaced, first, why);
                    (found.other, found.named) = (Some(place), named);
                } else if sequence.is_some() && !is_there && first.replay() == 0 {
                    let found = self.found(Kind::Mark, first, NOT_THERE);
                    (found.other, found.named) = (Some(place), named);
                }
            }
            Named::Elsewhere => self.counts.elsewhere += 1,
            Named::Nowhere => self.in_its_stream(row, first),
        }
    }

    /// A row that names no stream is to be in that of its shard.
    fn in_its_stream(&mut self, row: &RowRecord, first: &MessageRecord) {
        if first.at.stream != row.shard {
            let other = Place { stream: row.shard, sequence: 0 };
            let why = "the row belongs to another shard";
            self.found(Kind::Misplaced, first, why).other = Some(other);
        }
    }

    fn unmarked_and_stored(&mut self, row: &RowRecord, first: &MessageRecord) {
        self.in_its_stream(row, first);
        if self.cut.is_mark_due(row, self.was_before(first)) {
            self.found(Kind::Unmarked, first, "the stream has the event, and the row has no mark");
        }
    }

    fn not_stored(&mut self, row: &RowRecord) {
        if row.is(RowRecord::MARKED) {
            self.marked_and_not_stored(row);
        } else if row.is(RowRecord::ROUTED_AWAY) {
            if self.cut.is_mark_due(row, false) {
                self.lacks(Kind::Unmarked, row, "a route drops the event, and the row has no mark");
            } else if self.cut.is_done_with(row) {
                self.counts.dropped += 1;
            } else {
                self.pending(row);
            }
        } else if !self.cut.is_done_with(row) {
            self.pending(row);
        } else if self.cut.reaches(row.shard, row) {
            self.lacks(Kind::Gap, row, NOT_STORED);
        } else {
            self.removed(row);
        }
    }

    fn marked_and_not_stored(&mut self, row: &RowRecord) {
        if row.is(RowRecord::DROPPED) {
            self.counts.dropped += 1;
            return;
        }
        match row.named {
            Named::Here { stream, sequence: Some(sequence) } => {
                let range = self.cut.stream(stream);
                let had = range.is_none_or(|it| it.forgets && sequence <= it.last);
                if had || range.is_some_and(|it| sequence < it.first) {
                    self.removed(row);
                } else {
                    self.lacks(Kind::Gap, row, NOT_THERE);
                }
            }
            Named::Here { stream, sequence: None } if self.cut.reaches(stream, row) => {
                self.lacks(Kind::Gap, row, NOWHERE);
            }
            Named::Here { .. } => self.removed(row),
            Named::Elsewhere => self.counts.elsewhere += 1,
            Named::Nowhere => self.counts.marked_by_others += 1,
        }
    }

    /// Whether the stream ever had the message is not to be seen.
    fn removed(&mut self, row: &RowRecord) {
        if row.is(RowRecord::KEPT) {
            self.lacks(Kind::Removed, row, REMOVED);
        } else if row.is(RowRecord::UNREAD) {
            self.lacks(Kind::Removed, row, UNREAD);
        } else {
            self.counts.out_of_reach += 1;
        }
    }

    fn lacks(&mut self, kind: Kind, row: &RowRecord, why: &'static str) {
        let at = match row.named {
            Named::Here { stream, sequence } => {
                Place { stream, sequence: sequence.unwrap_or_default() }
            }
            Named::Elsewhere | Named::Nowhere => Place { stream: row.shard, sequence: 0 },
        };
        let named = row.is(RowRecord::MARKED).then_some(row.named);
        let (id, at) = (Some(row.id), Some(at));
        self.candidates.push(Candidate { kind, id, at, other: None, named, why });
    }

    fn pending(&mut self, row: &RowRecord) {
        self.counts.pending += 1;
        if !row.is(RowRecord::TIMELESS) {
            let oldest = self.counts.oldest_pending_micros.unwrap_or(i64::MAX);
            self.counts.oldest_pending_micros = Some(oldest.min(row.occurred_micros));
        }
    }

    fn order(&mut self, message: &MessageRecord, row: Option<&RowRecord>) {
        let may_be_late = row.is_some_and(|it| it.is(RowRecord::TRIED));
        if message.behind > 0 && !may_be_late {
            let other = Place { sequence: message.behind, ..message.at };
            let why = "an earlier message has a later position in the log";
            self.found(Kind::Disorder, message, why).other = Some(other);
        }
        self.orders.push(OrderRecord {
            aggregate: message.print.aggregate,
            at: message.at,
            id: message.id,
            position: message.position,
            inserted: row.and_then(inserted).filter(|_| message.replay() == 0),
            may_be_late,
        });
    }
}

/// Rows of these transactions came back to the outbox: their places say nothing.
const CAME_BACK_MAX: u64 = 3;

fn inserted(row: &RowRecord) -> Option<(i64, u64)> {
    (row.transaction > CAME_BACK_MAX).then_some((row.insertion, row.transaction))
}

#[cfg(test)]
mod tests;
