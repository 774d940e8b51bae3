//! The broker: what it stores of what arrives, and what it answers; and the network to it.

use std::collections::VecDeque;
use std::time::Duration;

use outbox::wire::Position;
use rand::RngExt;
use rand::seq::IndexedRandom;
use uuid::Uuid;

use super::{SYSTEM, World};
use crate::engine::messages::Part;
use crate::engine::window::LastPosition;
use crate::engine::{BrokerInput, Refusal};

/// Messages of a batch for each answer.
const FLOW: u64 = 3;

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) id: Option<u128>,
    pub(super) position: Option<Position>,
    pub(super) position_event: Option<Uuid>,
    pub(super) at: Duration,
    /// Another writer's message has the id of this event.
    pub(super) takes: Option<u128>,
}

impl Stored {
    pub(super) fn of_others(takes: Option<u128>) -> Self {
        Self { id: None, position: None, position_event: None, at: Duration::ZERO, takes }
    }

    /// Whether the broker knows it by this id.
    fn has_id(&self, id: u128) -> bool {
        self.id == Some(id) || self.takes == Some(id)
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
    pub(super) sent: Duration,
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
        // What comes for a node that is stalled waits for it.
        let Some(first) = self.answers.iter().position(|it| self.is_heard(it.0)) else { return };
        // Mostly in order, sometimes not.
        let reach = if self.rng.random_bool(0.9) { first + 1 } else { self.answers.len() };
        let at = self.rng.random_range(first..reach);
        if self.is_heard(self.answers[at].0) {
            self.answer_with(at);
        }
    }

    pub(super) fn answer_with(&mut self, at: usize) {
        let (generation, input) = self.answers.remove(at);
        if self.turn_to(generation) {
            self.apply(input);
        }
    }

    pub(super) fn break_link(&mut self) {
        let kept = &mut self.connections[self.relay.connection];
        let rng = &mut self.rng;
        kept.retain(|_| rng.random_bool(0.5));
        if self.faults.goes_back && self.rng.random_bool(0.3) {
            self.go_back();
        }
        self.connections.push(VecDeque::new());
        self.relay.connection = self.connections.len() - 1;
        self.apply(BrokerInput::LinkLost);
    }

    fn take(&mut self, message: &Flying, honest: bool) -> (u64, Vec<BrokerInput>) {
        let (generation, epoch, index) = message.reply;
        let fenced_off = self.is_fenced_off(message);
        let answer = match self.store(message, honest, fenced_off) {
            Outcome::Stored(seq) => BrokerInput::Acked { epoch, index, seq, is_duplicate: false },
            Outcome::Duplicate(seq) => BrokerInput::Acked { epoch, index, seq, is_duplicate: true },
            Outcome::Refused(refusal) => BrokerInput::Refused { epoch, index, refusal },
        };
        (generation, vec![answer])
    }

    /// As nats-server's `processJetStreamFastBatchMsg` with `gap: fail`.
    fn take_part(&mut self, message: &Flying, honest: bool) -> (u64, Vec<BrokerInput>) {
        let generation = message.reply.0;
        let Some(Part { batch, number, last }) = message.part else { return (0, Vec::new()) };
        let broken = |refusal| BrokerInput::Broken { batch, number, refusal };
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
        let ended =
            |taking: Taking| BrokerInput::Ended { batch, count: taking.taken, seq: taking.seq };
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
            // It is skipped, and counts.
            Outcome::Duplicate(_) => taking.taken += 1,
            Outcome::Stored(seq) => (taking.taken, taking.seq) = (number, seq),
        }
        if last {
            self.taking.remove(&key);
            answers.push(ended(taking));
        } else {
            if number == 1 {
                answers.push(BrokerInput::Taking { batch });
            }
            if taking.taken >= taking.answered + FLOW {
                taking.answered += FLOW;
                answers.push(BrokerInput::Taking { batch });
            }
            self.taking.insert(key, taking);
        }
        (generation, answers)
    }

    fn end(&mut self, generation: u64, end: Part) -> (u64, Vec<BrokerInput>) {
        let Part { batch, number, .. } = end;
        let answer = match self.taking.remove(&(generation, batch)) {
            None => BrokerInput::Broken { batch, number, refusal: Refusal::ExpectedLastSequence },
            Some(taking) => BrokerInput::Ended { batch, count: taking.taken, seq: taking.seq },
        };
        (generation, vec![answer])
    }

    /// A broker that restarts reads ids from the messages that it has. Until then it knows also those of
    /// messages that are gone (nats-server#6782).
    fn known(&self, message: &Flying) -> Option<u64> {
        let at = self.stream.iter().rposition(|it| it.has_id(message.id))?;
        let is_forgotten = at < self.forgotten || self.forgotten_ids.contains(&at);
        let is_known = self.faults.dedup && !is_forgotten && self.is_remembered(at);
        is_known.then_some(at as u64 + 1)
    }

    /// Whether the message of the event has this place. The broker forgets sooner or later what it no
    /// longer has, and what others have stored.
    pub(super) fn has_message(&mut self, seq: u64, id: u128) -> bool {
        let at = usize::try_from(seq).expect("small") - 1;
        let is_there =
            !self.removed.contains(&at) && self.stream.get(at).is_some_and(|it| it.id == Some(id));
        let newest = self.stream.iter().rposition(|it| it.has_id(id));
        let gone = newest.filter(|it| self.removed.contains(it) || self.stream[*it].id.is_none());
        self.forgotten_ids.extend(gone.filter(|_| self.rng.random_bool(0.5)));
        is_there
    }

    fn is_fenced_off(&self, message: &Flying) -> bool {
        message.expected.is_some_and(|expected| expected != self.stream.len() as u64)
    }

    fn store(&mut self, message: &Flying, honest: bool, fenced_off: bool) -> Outcome {
        if !honest && self.rng.random_bool(0.03) {
            return Outcome::Refused(Refusal::Outage("busy".into()));
        }
        if self.poisoned.contains(&message.id) {
            return Outcome::Refused(match self.faults.unwelcome {
                true => Refusal::Unwelcome("no such subject".into()),
                false => Refusal::Message("too large".into()),
            });
        }
        if fenced_off {
            return Outcome::Refused(Refusal::ExpectedLastSequence);
        }
        if let Some(seq) = self.known(message) {
            return Outcome::Duplicate(seq);
        }
        self.check_order(message.id);
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
            at: self.now,
            takes: None,
        });
        Outcome::Stored(self.stream.len() as u64)
    }
}
