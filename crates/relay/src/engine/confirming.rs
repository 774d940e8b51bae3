//! What PostgreSQL is told to forget, and what is written down beforehand.

use std::time::Duration;

use pgoutput::Lsn;

use super::core::Core;
use super::effect::{BooksEffect, Effect};
use super::log_parts::LogParts;
use super::messages::NotedPlace;
use super::written_down::Place;

impl LogParts {
    /// Where the slot is to be left at the end of a session that was asked to stop, and what is
    /// written down of that. `confirmed_before` is what it had confirmed when the session began.
    ///
    /// The position is written down exactly, so that nobody can move the slot without it being seen.
    /// If every event is resolved, no sequence is written. So messages or a purge while no relay runs
    /// cannot make the next session count an event as published. Otherwise what is written down tells
    /// more than this session could: the stream may have events that this session has not come to.
    pub(super) fn last_position(&self, core: &Core, confirmed_before: Lsn) -> (Lsn, NotedPlace) {
        let (publishing, resolved) = (&core.publishing, core.publishing.confirmed());
        let is_known = !publishing.is_counting() && publishing.may_scan(resolved);
        if !is_known || !publishing.has_nothing_beyond(resolved) {
            let place = match publishing.voids_place() {
                true => NotedPlace::Uncounted,
                false => NotedPlace::Kept,
            };
            return (self.checkpoint.confirmed().max(confirmed_before), place);
        }
        let commit_lsn = resolved.max(confirmed_before);
        (commit_lsn, NotedPlace::At(Place { commit_lsn, ordinal: 0, seq: None }))
    }

    /// Lets PostgreSQL forget what is resolved, as far as that is written down.
    pub(super) fn confirm(&mut self, core: &mut Core, now: Duration) {
        let publishing = &core.publishing;
        let (resolved, events) = (publishing.confirmed(), publishing.resolved_of_the_log());
        if publishing.voids_place() {
            if !self.checkpoint.is_writing() {
                self.checkpoint.begin(resolved, events);
                self.write_place(core, NotedPlace::Uncounted);
            }
            return; // nothing is sent before that is on the disk
        }
        if publishing.is_counting() {
            return; // what an earlier session wrote down is all that tells
        }
        if self.checkpoint.is_due(resolved, events, now, || publishing.place().is_some()) {
            let place = self.noted_place(core, events);
            self.write_place(core, place);
        }
        let before = self.checkpoint.confirmed();
        let confirmed = self.checkpoint.confirmable(resolved, events);
        if confirmed > before {
            core.effects.push_back(Effect::Confirm(confirmed));
        }
    }

    fn write_place(&mut self, core: &mut Core, place: NotedPlace) {
        core.publishing.writes_place(place);
        let (at, stream_end) = (self.checkpoint.written_next(), core.publishing.last_seq());
        core.effects.push_back(Effect::Books(BooksEffect::Checkpoint { at, place, stream_end }));
    }

    /// It is on the disk, or nobody knows.
    pub(super) fn checkpointed(&mut self, core: &mut Core, at: Option<Lsn>) {
        core.publishing.place_written(at.is_some());
        self.checkpoint.written(at);
    }

    /// `events` of the log are resolved.
    fn noted_place(&self, core: &Core, events: u64) -> NotedPlace {
        let Some(place) = core.publishing.place() else {
            let keeps = self.checkpoint.keeps_place(events);
            return if keeps { NotedPlace::Unchanged } else { NotedPlace::Uncounted };
        };
        // Others' messages are among the stream's: how many are the log's cannot be counted.
        let is_clear = self.backfill.is_clear() && self.replaying.is_clear();
        NotedPlace::At(Place { seq: place.seq.filter(|_| is_clear), ..place })
    }
}
