//! The broker and the network to it.

use std::collections::VecDeque;

use outbox::wire::Position;
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::{SYSTEM, Stored, World};
use crate::core::{Input, Refusal};

impl World {
    /// The broker takes one message of one connection, old ones included.
    pub(super) fn broker(&mut self, honest: bool) {
        let busy: Vec<usize> =
            (0..self.connections.len()).filter(|&it| !self.connections[it].is_empty()).collect();
        let Some(&connection) = busy.choose(&mut self.rng) else { return };
        let Some(message) = self.connections[connection].pop_front() else { return };
        if !honest && self.rng.random_bool(0.05) {
            return; // lost on the way
        }
        let (generation, epoch, index) = message.reply;
        let refused = |refusal| Input::Refused { epoch, index, refusal };
        let last = self.stream.len() as u64;
        let known = self.stream.iter().rposition(|it| it.id == Some(message.id));
        let known = known.filter(|&at| at >= self.forgotten);
        let answer = if !honest && self.rng.random_bool(0.03) {
            refused(Refusal::Outage("busy".into()))
        } else if self.poisoned.contains(&message.id) {
            refused(Refusal::Message("too large".into()))
        } else if message.expected.is_some_and(|expected| expected != last) {
            refused(Refusal::Guard)
        } else if let (Some(at), true) = (known, self.faults.dedup) {
            Input::Acked { epoch, index, seq: at as u64 + 1 }
        } else {
            let position = message.position.map(|at| Position {
                system_id: SYSTEM,
                timeline: 1,
                lsn: at.commit_lsn.0,
                ordinal: at.ordinal,
            });
            self.stream.push(Stored {
                id: Some(message.id),
                position,
                position_event: message.position.map(|at| at.event),
            });
            Input::Acked { epoch, index, seq: last + 1 }
        };
        if honest || self.rng.random_bool(0.95) {
            self.answers.push((generation, answer));
        }
    }

    pub(super) fn answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        // Mostly in order, sometimes not.
        let reach = if self.rng.random_bool(0.9) { 1 } else { self.answers.len() };
        let (generation, input) = self.answers.remove(self.rng.random_range(0..reach));
        if generation == self.relay.generation {
            self.apply(input);
        }
    }

    pub(super) fn break_link(&mut self) {
        let kept = self.connections.last_mut().expect("one connection");
        let rng = &mut self.rng;
        kept.retain(|_| rng.random_bool(0.5));
        self.connections.push(VecDeque::new());
        self.apply(Input::LinkLost);
    }
}
