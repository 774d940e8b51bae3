//! What a reading of the stream brings.

use pgoutput::Lsn;
use uuid::Uuid;

use super::{SYSTEM, World};
use crate::engine::{Stored, Tail, TailMessage};

impl World {
    pub(super) fn tail_since(&self, from: u64) -> Tail {
        self.tail_of(self.messages_since(from))
    }

    pub(super) fn tail_of(&self, messages: Vec<TailMessage>) -> Tail {
        let mut tail = Tail::ending_at(self.stream.len() as u64);
        tail.refuses_batches = self.refuses_batches;
        tail.add(SYSTEM, messages);
        tail
    }

    pub(super) fn messages_since(&self, from: u64) -> Vec<TailMessage> {
        let from = usize::try_from(from.max(1)).expect("small") - 1;
        let messages = self
            .stream
            .iter()
            .enumerate()
            .skip(from)
            .filter(|it| !self.removed.contains(&it.0))
            .map(|(at, it)| TailMessage {
                seq: at as u64 + 1,
                id: it.id.map(Uuid::from_u128),
                position: it.position,
                position_event: it.position_event.filter(|_| !it.has_own_position()),
                replay: None,
                is_marker: it.id.is_none() && at % 2 == 1,
            });
        messages.collect()
    }

    /// As `TailReader::back_to` reads it, message by message.
    /// Also says whether nothing of that is gone.
    pub(super) fn tail_back(&self, resolved_before: Lsn, overtaken_max: usize) -> (Tail, bool) {
        let mut messages = self.messages_since(1);
        let before = |it: &&TailMessage| {
            it.position.is_some_and(|position| Lsn(position.lsn) < resolved_before)
        };
        let mut overtaken = messages.iter().rev().filter(before).skip(overtaken_max);
        let from = overtaken.next().map_or(1, |it| it.seq);
        messages.retain(|it| it.seq >= from);
        let is_whole = messages.len() as u64 == self.stream.len() as u64 + 1 - from;
        (self.tail_of(messages), is_whole)
    }

    /// What the stream has of events that committed there or later.
    pub(super) fn stored_since(&self, resolved_before: Option<Lsn>) -> Vec<Stored> {
        let from = resolved_before.unwrap_or_default();
        let stored = self.tail_of(self.messages_since(1)).stored.into_iter();
        stored.filter(|it| it.commit_lsn >= from).collect()
    }

    /// Events that the stream still has.
    pub(super) fn ids_in_stream(&self) -> impl Iterator<Item = u128> {
        let there = self.stream.iter().enumerate().filter(|it| !self.removed.contains(&it.0));
        there.filter_map(|(_, it)| it.id)
    }
}
