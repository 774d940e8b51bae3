//! Events without a row, among those that have one.

use std::collections::HashSet;

use rand::RngExt;
use uuid::Uuid;

use super::World;
use crate::engine::{Effect, Ignored, LogInput, MarkingEffect, Resolved, RowsEffect};

/// What the application has emitted.
#[derive(Debug, Default, Clone)]
pub(super) struct Emitted {
    pub(super) ids: HashSet<u128>,
    /// A slot that was lost took them along. One that was sent before may still arrive.
    pub(super) lost: HashSet<u128>,
}

impl World {
    /// The event is to have no row.
    pub(super) fn is_emitted(&self, id: u128) -> bool {
        self.emitted.ids.contains(&id)
    }

    pub(super) fn emits(&mut self, id: u128) -> bool {
        let emits = self.faults.emitted && self.rng.random_bool(0.4);
        if emits {
            self.emitted.ids.insert(id);
        }
        emits
    }

    pub(super) fn logged(&self, id: u128) -> LogInput {
        let outgoing = self.first_outgoing(id);
        match self.is_emitted(id) {
            true => LogInput::Emitted(outgoing),
            false => LogInput::Logged(outgoing),
        }
    }

    /// Somebody writes a message under the outbox's prefix outside of a transaction.
    pub(super) fn emit_at_once(&mut self) {
        if self.faults.emitted && self.relay.at.1 == 0 && self.rng.random_bool(0.1) {
            self.apply(LogInput::Ignored(Ignored::NotTransactional));
        }
    }

    /// The slot is lost: nobody else has what it did not bring.
    pub(super) fn lose_emitted(&mut self) {
        let unread = self.log.iter().filter(|it| it.end_lsn > self.slot_confirmed);
        let is_left = |id: &u128| {
            self.is_emitted(*id) && !self.stored_ids.contains(id) && !self.parked.contains(id)
        };
        let lost: Vec<u128> = unread.flat_map(|it| it.events.clone()).filter(is_left).collect();
        self.emitted.lost.extend(lost);
    }

    /// No statement is about a row that never was.
    pub(super) fn check_rows_of(&self, effect: &Effect) {
        let has_row = |id: &Uuid| !self.is_emitted(id.as_u128());
        let is_right = match effect {
            Effect::Marking(MarkingEffect::Mark { marks, .. }) => {
                marks.iter().all(|it: &Resolved| has_row(&it.id))
            }
            Effect::Rows(RowsEffect::NoteFailure { id, .. }) => {
                has_row(id) || self.requeued.contains(&id.as_u128())
            }
            // The log may bring an event again that was requeued, and has a row by now.
            Effect::Rows(RowsEffect::Park { batch, .. }) => batch.iter().all(|(_, dead)| {
                let id = dead.event.id;
                dead.has_row == has_row(&id) || self.requeued.contains(&id.as_u128())
            }),
            Effect::Marking(_)
            | Effect::Books(_)
            | Effect::Rows(_)
            | Effect::Scan(_)
            | Effect::Replay(_)
            | Effect::Claims(_)
            | Effect::Broker(_)
            | Effect::Confirm(_)
            | Effect::Measure(_)
            | Effect::Tell(_)
            | Effect::End(_) => true,
        };
        assert!(is_right, "a row that never was: {effect:?}");
    }
}
