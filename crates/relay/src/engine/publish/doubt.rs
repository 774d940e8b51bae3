//! Events that the log brings again, and of which the stream may have lost the messages.
//!
//! Where a purge, an age or another limit took messages away, the stream's ids do not tell what an
//! earlier session published. Three things do, and such an event is held back until they are known:
//!
//! - what was written down beside the slot: every event before that place is resolved;
//! - the row's mark;
//! - in fenced mode, the number of messages: the stream numbers them without gaps in the order of
//!   the log, so as many events behind the place that was written down are stored as the stream has
//!   given out sequences since. The first thing that contradicts this (another writer's message, a
//!   mark elsewhere, an event that is younger than the stream's last message) ends it.

use std::collections::HashMap;

use pgoutput::Lsn;
use uuid::Uuid;

use super::{Link, Publishing};
use crate::engine::messages::{Doubted, Mode, Place, Request};
use crate::engine::window::{Origin, Stage};

/// So many events in a row that nothing says were published: from there on nothing is doubted. More
/// than can lie between two that are marked.
const UNKNOWN_MAX: usize = 50_000;

/// How far the clocks of PostgreSQL and the broker may differ, in microseconds.
const CLOCKS_DIFFER_MICROS: i64 = 1_000_000;

#[derive(Debug, Clone, Copy)]
enum Item {
    /// The stream has it there.
    Stored(u64),
    /// Resolved earlier, wherever that is: it has a sequence all the same.
    Passed,
    Unknown {
        index: u64,
        /// Its row, which may have a mark.
        row: Option<Uuid>,
        committed_at_micros: i64,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Doubt {
    doubted: Doubted,
    last_seq: u64,
    /// Events in the order of the log.
    items: Vec<Item>,
    /// Those about which the table was asked.
    asked: Vec<Item>,
    /// The sequence that the next event has, if it is stored.
    next: Option<u64>,
    /// The log has brought everything that is doubted.
    is_complete: bool,
    unknown: usize,
    known: u64,
    counted: u64,
}

impl Doubt {
    pub(super) fn new(doubted: Doubted, last_seq: u64, mode: Mode) -> Self {
        let place = doubted.place.filter(|_| mode == Mode::Fenced);
        let seq = place.and_then(|it| it.seq).filter(|seq| *seq <= last_seq);
        Self {
            doubted,
            last_seq,
            items: Vec::new(),
            asked: Vec::new(),
            next: seq.map(|seq| seq + 1),
            is_complete: false,
            unknown: 0,
            known: 0,
            counted: 0,
        }
    }

    /// Whether what was written down says that the event is resolved.
    fn is_passed(&self, place: (Lsn, u32)) -> bool {
        self.doubted.place.is_some_and(|it| place < (it.commit_lsn, it.ordinal))
    }

    /// The first entry that must not be sent yet.
    fn first_unknown(&self) -> Option<u64> {
        self.asked.iter().chain(&self.items).find_map(|item| match item {
            Item::Unknown { index, .. } => Some(*index),
            Item::Stored(_) | Item::Passed => None,
        })
    }

    /// Which of what was asked about is stored, and where if that is known.
    fn judge(&mut self, marks: &HashMap<Uuid, Option<u64>>) -> Vec<(u64, Option<u64>)> {
        let (mut stored, mut run) = (Vec::new(), Vec::new());
        for item in std::mem::take(&mut self.asked) {
            let (index, known) = match item {
                Item::Stored(seq) => (None, Some(Some(seq))),
                Item::Passed => {
                    self.next = self.next.map(|next| next + 1);
                    continue;
                }
                Item::Unknown { index, row, committed_at_micros } => {
                    let mark = row.and_then(|row| marks.get(&row)).copied();
                    let last_at_micros =
                        self.doubted.last_at_micros.saturating_add(CLOCKS_DIFFER_MICROS);
                    if committed_at_micros > last_at_micros && mark.is_none() {
                        self.is_younger(&mut run);
                    }
                    (Some(index), mark)
                }
            };
            match known {
                Some(seq) => {
                    let is_behind = |it: Option<u64>| it.is_some_and(|it| it > self.last_seq);
                    // What a predecessor sent may come later than the session began.
                    let came_late = is_behind(self.next) && is_behind(seq);
                    let agrees = self.next == seq || came_late;
                    if agrees {
                        stored.append(&mut run);
                    } else if self.next.is_some() {
                        run.clear(); // something else is in between
                    }
                    // Nothing is counted from a mark alone: what a scan or a replay published may
                    // stand behind it.
                    self.next = seq.filter(|_| agrees).map(|seq| seq + 1);
                    (self.known, self.unknown) = (self.known + 1, 0);
                    stored.extend(index.map(|index| (index, seq)));
                }
                None => self.count(index, &mut run),
            }
        }
        let is_short = self.next.is_some_and(|next| next <= self.last_seq);
        if self.is_complete && self.items.is_empty() && is_short {
            run.clear(); // the stream had more messages than the log has events
        }
        self.counted += run.len() as u64;
        stored.append(&mut run);
        stored
    }

    /// The next event cannot be stored: if there are messages for it, they are others'.
    fn is_younger(&mut self, run: &mut Vec<(u64, Option<u64>)>) {
        if self.next.is_some_and(|next| next <= self.last_seq) {
            run.clear();
            self.next = None;
        }
    }

    /// Whether nothing that comes from now on can have been published.
    fn is_over(&self) -> bool {
        let is_told = self.is_complete && self.items.is_empty() && self.asked.is_empty();
        is_told || self.unknown >= UNKNOWN_MAX || self.next.is_some_and(|it| it > self.last_seq)
    }

    /// An event of which nothing is known but its number.
    fn count(&mut self, index: Option<u64>, run: &mut Vec<(u64, Option<u64>)>) {
        match (self.next, index) {
            (Some(next), Some(index)) if next < self.doubted.first_seq && next <= self.last_seq => {
                run.push((index, Some(next)));
                self.next = Some(next + 1);
                self.unknown = 0;
            }
            // The stream has this message, and it is another one.
            (Some(next), _) if next <= self.last_seq => {
                run.clear();
                (self.next, self.unknown) = (None, self.unknown + 1);
            }
            _ => self.unknown += 1,
        }
    }
}

impl Publishing {
    /// Whether something must not be sent, or confirmed, before more is known.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.known.doubt.is_some()
    }

    /// Whether rows that the log does not bring may be looked for. They take sequences, and where
    /// they do so is not written down: not before everything is `confirmed` that could have to be
    /// counted once more, by the next session.
    pub(crate) fn may_scan(&self, confirmed: Lsn) -> bool {
        confirmed >= self.known.doubted_before
    }

    /// What is to be written down. `None` as long as that tells less than what may stand there: an
    /// earlier session may have got further, and what the stream has of that may be purged.
    pub(crate) fn place(&self) -> Option<Place> {
        let (received, (commit_lsn, _, ordinal)) =
            (self.log.progress.received(), self.log.transaction);
        let mut unresolved = self.window.iter_unresolved().map(|(_, entry)| entry);
        let first = unresolved.find(|it| it.origin != Origin::Replay);
        let (commit_lsn, ordinal) = match first {
            None => (received, 0).max((commit_lsn, ordinal)),
            Some(entry) if entry.origin.is_logged() => entry.position?.place(),
            Some(_) => return None,
        };
        let is_alone = self.scans.is_empty() && self.has_no_copies();
        let pure = self.mode == Mode::Fenced && self.figures.counts.foreign == 0 && is_alone;
        let seq = match first.map(|entry| (entry.stage, entry.sent.expected)) {
            Some((Stage::Sent, expected)) => Some(expected),
            Some((Stage::Waiting, _)) if self.stream.in_flight == 0 => Some(self.stream.expected),
            None if !self.has_stored_beyond((commit_lsn, ordinal)) => Some(self.stream.expected),
            // Until what is in flight is answered, or the log has repeated what the stream has.
            Some((Stage::Waiting, _)) | None if pure => return None,
            _ => None,
        };
        let is_known = self.link.state == Link::Up && commit_lsn > Lsn::ZERO;
        is_known.then_some(Place { commit_lsn, ordinal, seq: seq.filter(|_| pure) })
    }

    /// Whether the stream has an event of the log that is not before `place`.
    fn has_stored_beyond(&self, place: (Lsn, u32)) -> bool {
        self.log.stored_position.is_some_and(|it| it.place() >= place)
    }

    /// Whether the stream has, or may come to have, nothing of the log but what is `confirmed`.
    pub(crate) fn has_nothing_beyond(&self, confirmed: Lsn) -> bool {
        let (commit_lsn, _, brought) = self.log.transaction;
        let is_within = brought > 0 && commit_lsn >= confirmed;
        self.is_idle() && !is_within && !self.has_stored_beyond((confirmed, 0))
    }

    /// Whether an entry has to wait for what the table says.
    pub(super) fn is_doubtful(&self, index: u64) -> bool {
        let doubt = self.known.doubt.as_ref();
        doubt.is_some_and(|it| it.first_unknown().is_some_and(|first| first <= index))
    }

    pub(super) fn has_room_to_doubt(&self) -> bool {
        self.known.doubt.as_ref().is_none_or(|it| it.items.len() < self.settings.limits.events)
    }

    /// The log has come so far.
    pub(super) fn doubt_until(&mut self, lsn: Lsn) {
        if let Some(doubt) = &mut self.known.doubt
            && lsn >= doubt.doubted.before
        {
            doubt.is_complete = true;
            self.ask_for_marks();
        }
    }

    /// The log brings an event that was resolved in an earlier session. Says whether it is.
    pub(super) fn passed(&mut self, place: (Lsn, u32), is_published: bool) -> bool {
        let is_resolved = place.0 < self.settings.resolved_before;
        let Some(doubt) = &mut self.known.doubt else { return is_resolved };
        let is_passed = doubt.is_passed(place);
        if is_resolved && !is_passed && is_published {
            doubt.items.push(Item::Passed);
        }
        is_resolved || is_passed
    }

    /// The log has brought an event that was not resolved, for all that is known.
    pub(super) fn doubt(&mut self, index: u64, row: Option<Uuid>, stored_at: Option<u64>) {
        let Some(doubt) = self.known.doubt.as_mut().filter(|it| !it.is_complete) else { return };
        doubt.items.push(match stored_at {
            Some(seq) => Item::Stored(seq),
            None => Item::Unknown { index, row, committed_at_micros: self.log.transaction.1 },
        });
    }

    /// Asks about what has come, unless an answer is still awaited. Only when nothing more comes, or
    /// fits: what follows may contradict it.
    pub(super) fn ask_for_marks(&mut self) {
        let Some(doubt) = &mut self.known.doubt else { return };
        if !doubt.asked.is_empty() {
            return;
        }
        doubt.asked = std::mem::take(&mut doubt.items);
        let ids = doubt.asked.iter().filter_map(|item| match item {
            Item::Unknown { row, .. } => *row,
            Item::Stored(_) | Item::Passed => None,
        });
        let ids: Vec<Uuid> = ids.collect();
        match ids.is_empty() {
            true => self.marks_known(&HashMap::new()),
            false => self.output.requests.push_back(Request::AskForMarks(ids)),
        }
    }

    /// Which of the events that were asked about are marked, and with which sequences.
    pub(super) fn marks_known(&mut self, marks: &HashMap<Uuid, Option<u64>>) {
        let Some(doubt) = &mut self.known.doubt else { return };
        let stored = doubt.judge(marks);
        let (known, counted) = (doubt.known, doubt.counted);
        let (is_over, is_complete) = (doubt.is_over(), doubt.is_complete);
        if is_over {
            self.output.requests.push_back(Request::TellDoubt { known, counted });
            self.known.doubt = None;
        } else if is_complete {
            self.ask_for_marks();
        }
        for (index, seq) in stored {
            if self.window.get(index).is_some_and(|it| it.stage == Stage::Waiting) {
                self.note_stored(index, seq, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Option<Option<u64>> = None;

    /// Judges events of which the table says so much, the first of them behind sequence `seq` by what
    /// was written down.
    fn judge(seq: Option<u64>, last_seq: u64, marks: &[Option<Option<u64>>]) -> Vec<u64> {
        let place = Some(Place { commit_lsn: Lsn(1), ordinal: 0, seq });
        let (first_seq, last_at_micros) = (last_seq + 1, 0);
        let doubted = Doubted { before: Lsn(9), first_seq, last_at_micros, place };
        let mut doubt = Doubt::new(doubted, last_seq, Mode::Fenced);
        // Of four the last is younger than the stream's last message.
        let item = |index: u64| {
            let committed_at_micros = if index == 3 { CLOCKS_DIFFER_MICROS + 1 } else { 0 };
            let row = Some(Uuid::from_u128(index.into()));
            Item::Unknown { index, row, committed_at_micros }
        };
        doubt.asked = (0..marks.len() as u64).map(item).collect();
        doubt.is_complete = true;
        let known =
            |(id, mark): (u128, &Option<Option<u64>>)| Some((Uuid::from_u128(id), (*mark)?));
        let marks = (0..).zip(marks).filter_map(known).collect();
        doubt.judge(&marks).into_iter().map(|(index, _)| index).collect()
    }

    #[test]
    fn as_many_events_are_stored_as_the_stream_has_had_messages_since() {
        assert_eq!(judge(Some(10), 12, &[NOTHING; 4]), [0, 1]);
        assert_eq!(judge(Some(10), 10, &[NOTHING; 4]), [0; 0]);
    }

    #[test]
    fn nothing_is_counted_from_a_mark_alone() {
        assert_eq!(judge(None, 12, &[NOTHING, Some(Some(11)), NOTHING, NOTHING]), [1]);
    }

    #[test]
    fn what_does_not_add_up_is_not_believed() {
        assert_eq!(judge(Some(10), 19, &[NOTHING; 4]), [0; 0], "more messages than events");
        assert_eq!(judge(Some(10), 14, &[NOTHING; 4]), [0; 0], "an event that is too young");
        assert_eq!(judge(Some(13), 12, &[NOTHING; 4]), [0; 0], "another stream");
        let foreign = [NOTHING, Some(Some(14)), NOTHING, NOTHING];
        assert_eq!(judge(Some(10), 15, &foreign), [1], "a mark elsewhere");
        let foreign = [Some(Some(11)), NOTHING, Some(Some(14)), NOTHING, NOTHING];
        assert_eq!(judge(None, 15, &foreign), [0, 2], "two marks too far from each other");
    }

    #[test]
    fn what_came_after_the_session_began_contradicts_nothing() {
        let late = [NOTHING, NOTHING, Some(Some(14)), NOTHING];
        assert_eq!(judge(Some(10), 12, &late), [0, 1, 2]);
        assert_eq!(judge(Some(10), 13, &late), [2], "more messages than events before it");
    }

    #[test]
    fn a_mark_without_a_sequence_is_a_mark() {
        assert_eq!(judge(Some(10), 12, &[Some(None), NOTHING]), [0]);
    }
}
