//! What an acknowledgement says of the message that it is about: stored now, stored before, or a
//! duplicate that nobody has.

use super::Publishing;
use crate::engine::input::Refusal;
use crate::engine::messages::{Mode, Resolved};
use crate::engine::request::Request;
use crate::engine::window::{Origin, Stage};

/// Messages that others store, at most, before the stream is read again: beyond, a sequence is not
/// believed.
const OTHERS_MAX: u64 = 1_000_000;

impl Publishing {
    pub(super) fn acked(&mut self, index: u64, seq: u64, is_duplicate: bool) {
        let Some(entry) = self.window.get(index).filter(|it| it.stage == Stage::Sent) else {
            return;
        };
        // The fence leaves one place. Elsewhere others may have written, but hardly so much.
        let is_new = match self.mode {
            Mode::Fenced => seq == entry.sent.expected + 1,
            Mode::Keyed => seq > entry.sent.after,
        };
        if !(is_new || is_duplicate) || seq.saturating_sub(self.stream.known_seq()) > OTHERS_MAX {
            return self.refused(index, Refusal::ExpectedLastSequence);
        }
        self.link.answered(self.now);
        if is_duplicate && entry.origin != Origin::Replay {
            let (epoch, id) = (self.link.epoch(), entry.outgoing.event.id);
            self.refusals.seeks(index);
            return self.output.requests.push_back(Request::LookUp { epoch, index, seq, id });
        }
        self.is_stored(index, seq, is_duplicate);
    }

    pub(super) fn is_stored(&mut self, index: u64, seq: u64, is_duplicate: bool) {
        let Some(entry) = self.window.get(index) else { return };
        self.link.stored(entry.sent.at);
        self.stream.stored(seq);
        self.figures.counts.duplicates += u64::from(is_duplicate);
        self.note_stored(index, Some(seq), is_duplicate);
        if self.mode == Mode::Fenced {
            self.answered();
        }
    }

    /// The message that is said to be there already was looked for.
    pub(super) fn looked_up(&mut self, index: u64, seq: u64, is_there: bool) {
        if self.window.get(index).is_none_or(|it| it.stage != Stage::Sent) {
            return;
        }
        match is_there {
            true => self.is_stored(index, seq, true),
            false => self.lacks_duplicate(index, seq),
        }
    }

    pub(super) fn note_stored(&mut self, index: u64, seq: Option<u64>, found: bool) {
        self.not_refused(index, found);
        let Some(entry) = self.window.get(index) else { return };
        let origin = entry.origin;
        if !found {
            let took = self.now.saturating_sub(entry.sent.at);
            self.figures.answer_times.record(took);
            self.copies.pacing.answered(took);
        }
        if origin == Origin::Replay {
            return self.replay_stored(index, seq);
        }
        self.retries.stored(entry);
        self.output.resolved.push(Resolved {
            id: entry.outgoing.event.id,
            seq,
            origin,
            commit_lsn: entry.commit_lsn,
            commit_time_micros: entry.commit_time_micros,
            acked: !found,
        });
        if found {
            self.figures.counts.found += 1;
        } else {
            self.figures.counts.acked += 1;
        }
        self.scan_resolved(Some(origin));
        self.resolve(index);
    }
}
