//! What PostgreSQL is told to forget, and what is written down beforehand.

use std::time::Duration;

use pgoutput::Lsn;

use super::Engine;
use super::effect::{BooksEffect, Effect};
use super::messages::{NotedPlace, Place};

impl Engine {
    /// Where the slot is to be left at the end of a session that was asked to stop, and what is
    /// written down of that. `confirmed_before` is what it had confirmed when the session began.
    ///
    /// The position is written down exactly, so that nobody can move the slot without it being seen.
    /// Where everything is resolved nothing is counted from there: nobody who writes to the stream,
    /// or purges it, until there is a relay again can make events count as published. Otherwise what
    /// is written down tells more than this session could: of events in doubt, or of some that the
    /// stream may have and this session has not come to.
    pub(crate) fn last_position(&self, confirmed_before: Lsn) -> (Lsn, NotedPlace) {
        let (publishing, resolved) = (&self.publishing, self.publishing.confirmed());
        let is_told = !publishing.is_in_doubt() && publishing.may_scan(resolved);
        if !is_told || !publishing.has_nothing_beyond(resolved) {
            return (self.checkpoint.confirmed().max(confirmed_before), NotedPlace::Unchanged);
        }
        let commit_lsn = resolved.max(confirmed_before);
        (commit_lsn, NotedPlace::At(Place { commit_lsn, ordinal: 0, seq: None }))
    }

    /// Lets PostgreSQL forget what is resolved, as far as that is written down.
    pub(super) fn confirm(&mut self, now: Duration) {
        if self.publishing.is_in_doubt() {
            return; // what an earlier session wrote down is all that tells
        }
        let publishing = &self.publishing;
        let (resolved, events) = (publishing.confirmed(), publishing.resolved_of_the_log());
        if self.checkpoint.is_due(resolved, events, now, || publishing.place().is_some()) {
            let place = self.noted_place(events);
            self.effects.push_back(Effect::Books(BooksEffect::Checkpoint { place }));
        }
        let before = self.checkpoint.confirmed();
        let confirmed = self.checkpoint.confirmable(resolved, events);
        if confirmed > before {
            self.effects.push_back(Effect::Confirm(confirmed));
        }
    }

    /// `events` of the log are resolved.
    fn noted_place(&self, events: u64) -> NotedPlace {
        let Some(place) = self.publishing.place() else {
            let keeps = self.checkpoint.keeps_place(events);
            return if keeps { NotedPlace::Unchanged } else { NotedPlace::Uncounted };
        };
        // Others' messages are among the stream's: how many are the log's cannot be counted.
        let is_clear = self.backfill.is_clear() && self.replaying.is_clear();
        NotedPlace::At(Place { seq: place.seq.filter(|_| is_clear), ..place })
    }
}
