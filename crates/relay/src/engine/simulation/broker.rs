//! The broker: what it stores of what arrives, and what it answers; and the network to it.

use std::collections::VecDeque;

use outbox::wire::Position;
use rand::RngExt;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::{SYSTEM, World};
use crate::engine::messages::Part;
use crate::engine::window::LastPosition;
use crate::engine::{Input, Refusal};

/// Messages of a batch for each answer.
const FLOW: u64 = 3;

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) id: Option<u128>,
    pub(super) position: Option<Position>,
    pub(super) position_event: Option<Uuid>,
}

impl Stored {
    pub(super) fn of_others() -> Self {
        Self { id: None, position: None, position_event: None }
    }

    /// A message names the event of its position only where that is another one.
    pub(super) fn has_own_position(&self) -> bool {
        self.position_event.map(|event| event.as_u128()) == self.id
    }
}

#[derive(Debug, Clone)]
pub(super) struct Flying {
    pub(super) reply: (u64, u32, u64),
    pub(super) id: u128,
    pub(super) expected: Option<u64>,
    pub(super) position: Option<LastPosition>,
    pub(super) part: Option<Part>,
}

#[derive(Debug, Clone)]
pub(super) enum Packet {
    Message(Flying),
    End { generation: u64, end: Part },
}

/// A batch as the broker knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taking {
    taken: u64,
    /// The last sequence stored for it.
    seq: u64,
    answered: u64,
}

/// What became of a message.
enum Outcome {
    Stored(u64),
    Duplicate(u64),
    Refused(Refusal),
}

impl World {
    /// The broker takes one message of one connection, old ones included.
    pub(super) fn broker(&mut self, honest: bool) {
        let busy: Vec<usize> =
            (0..self.connections.len()).filter(|&it| !self.connections[it].is_empty()).collect();
        let Some(&connection) = busy.choose(&mut self.rng) else { return };
        if !honest && self.rng.random_bool(0.05) {
            self.connections[connection].pop_front(); // lost on the way
            return;
        }
        self.take_from(connection, honest);
    }

    pub(super) fn take_from(&mut self, connection: usize, honest: bool) {
        let Some(packet) = self.connections[connection].pop_front() else { return };
        let heard = match &packet {
            Packet::Message(message) => Some(message.clone()),
            Packet::End { .. } => None,
        };
        let (generation, mut answers) = match packet {
            Packet::Message(message) if message.part.is_some() => self.take_part(&message, honest),
            Packet::Message(message) => self.take(&message, honest),
            Packet::End { generation, end } => self.end(generation, end),
        };
        if let Some(heard) = heard.filter(|_| !honest) {
            self.mix_in(&heard, &mut answers);
        }
        for answer in answers {
            if honest || self.rng.random_bool(0.95) {
                self.answers.push((generation, answer));
            }
        }
    }

    pub(super) fn answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        // Mostly in order, sometimes not.
        let reach = if self.rng.random_bool(0.9) { 1 } else { self.answers.len() };
        let at = self.rng.random_range(0..reach);
        self.answer_with(at);
    }

    pub(super) fn answer_with(&mut self, at: usize) {
        let (generation, input) = self.answers.remove(at);
        if generation == self.relay.generation {
            self.apply(input);
        }
    }

    pub(super) fn break_link(&mut self) {
        let kept = self.connections.last_mut().expect("one connection");
        let rng = &mut self.rng;
        kept.retain(|_| rng.random_bool(0.5));
        if self.faults.goes_back && self.rng.random_bool(0.3) {
            self.go_back();
        }
        self.connections.push(VecDeque::new());
        self.apply(Input::LinkLost);
    }

    fn take(&mut self, message: &Flying, honest: bool) -> (u64, Vec<Input>) {
        let (generation, epoch, index) = message.reply;
        let fenced_off = self.is_fenced_off(message);
        let answer = match self.store(message, honest, fenced_off) {
            Outcome::Stored(seq) => Input::Acked { epoch, index, seq, is_duplicate: false },
            Outcome::Duplicate(seq) => Input::Acked { epoch, index, seq, is_duplicate: true },
            Outcome::Refused(refusal) => Input::Refused { epoch, index, refusal },
        };
        (generation, vec![answer])
    }

    /// As nats-server's `processJetStreamFastBatchMsg` with `gap: fail`.
    fn take_part(&mut self, message: &Flying, honest: bool) -> (u64, Vec<Input>) {
        let generation = message.reply.0;
        let Some(Part { batch, number, last }) = message.part else { return (0, Vec::new()) };
        let broken = |refusal| Input::Broken { batch, number, refusal };
        if self.poisoned.contains(&message.id) {
            // Found before anything of the batch is looked at.
            return (generation, vec![broken(Refusal::Message("too large".into()))]);
        }
        let key = (generation, batch);
        if self.refuses_batches {
            self.taking.remove(&key);
            return (generation, vec![broken(Refusal::NoBatches("disabled".into()))]);
        }
        let known = self.taking.get(&key).copied().or((number == 1).then(Taking::default));
        let Some(mut taking) = known else {
            return (generation, vec![broken(Refusal::ExpectedLastSequence)]);
        };
        let ended = |taking: Taking| Input::Ended { batch, count: taking.taken, seq: taking.seq };
        if number != taking.taken + 1 {
            self.taking.remove(&key);
            return (generation, vec![ended(taking)]);
        }
        // A batch looks for duplicates before it looks at the fence.
        let duplicate = self.known(message);
        let fenced_off = duplicate.is_none() && self.is_fenced_off(message);
        let mut answers = Vec::new();
        match self.store(message, honest, fenced_off) {
            Outcome::Refused(refusal) => {
                self.taking.remove(&key);
                answers.push(broken(refusal));
                if number > 1 {
                    answers.push(ended(taking));
                }
                return (generation, answers);
            }
            Outcome::Duplicate(seq) if number == 1 => {
                self.taking.remove(&key);
                return (generation, vec![Input::Ended { batch, count: 1, seq }]);
            }
            Outcome::Duplicate(_) => taking.taken += 1,
            Outcome::Stored(seq) => (taking.taken, taking.seq) = (number, seq),
        }
        if last {
            self.taking.remove(&key);
            answers.push(ended(taking));
        } else {
            if number == 1 {
                answers.push(Input::Stored { batch, count: 0 });
            }
            if duplicate.is_none() && taking.taken >= taking.answered + FLOW {
                taking.answered += FLOW;
                answers.push(Input::Stored { batch, count: taking.answered });
            }
            self.taking.insert(key, taking);
        }
        (generation, answers)
    }

    fn end(&mut self, generation: u64, end: Part) -> (u64, Vec<Input>) {
        let Part { batch, number, .. } = end;
        let answer = match self.taking.remove(&(generation, batch)) {
            None => Input::Broken { batch, number, refusal: Refusal::ExpectedLastSequence },
            Some(taking) => Input::Ended { batch, count: taking.taken, seq: taking.seq },
        };
        (generation, vec![answer])
    }

    /// A broker that restarts reads ids from the messages that it has. Until then it knows also those of
    /// messages that are gone (nats-server#6782).
    fn known(&self, message: &Flying) -> Option<u64> {
        let at = self.stream.iter().rposition(|it| it.id == Some(message.id))?;
        (self.faults.dedup && at >= self.forgotten).then_some(at as u64 + 1)
    }

    fn is_fenced_off(&self, message: &Flying) -> bool {
        message.expected.is_some_and(|expected| expected != self.stream.len() as u64)
    }

    fn store(&mut self, message: &Flying, honest: bool, fenced_off: bool) -> Outcome {
        if !honest && self.rng.random_bool(0.03) {
            return Outcome::Refused(Refusal::Outage("busy".into()));
        }
        if self.poisoned.contains(&message.id) {
            return Outcome::Refused(Refusal::Message("too large".into()));
        }
        if fenced_off {
            return Outcome::Refused(Refusal::ExpectedLastSequence);
        }
        if let Some(seq) = self.known(message) {
            return Outcome::Duplicate(seq);
        }
        let position = message.position.map(|at| Position {
            system_id: SYSTEM,
            timeline: 1,
            lsn: at.commit_lsn.0,
            ordinal: at.ordinal,
        });
        self.stored_ids.insert(message.id);
        self.stream.push(Stored {
            id: Some(message.id),
            position,
            position_event: message.position.map(|at| at.event),
        });
        Outcome::Stored(self.stream.len() as u64)
    }
}
