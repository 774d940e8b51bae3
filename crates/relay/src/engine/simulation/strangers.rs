//! Others who hear a message, and answer it, or publish under the id of an event.

use rand::RngExt;
use rand::seq::IndexedRandom;

use super::broker::Flying;
use super::{Foreign, World};
use crate::engine::{BrokerInput, Refusal};

impl World {
    /// The id of one of the next events, for another writer's message.
    pub(super) fn id_to_take(&mut self) -> Option<u128> {
        if self.faults.foreign != Foreign::UnderIds {
            return None;
        }
        let is_new = |id: &u128| !self.stored_ids.contains(id) && !self.parked.contains(id);
        let next: Vec<u128> = (1..=self.next_id).filter(is_new).take(4).collect();
        next.choose(&mut self.rng).copied()
    }

    /// Adds what others answer to a message, before or behind what the stream does.
    pub(super) fn mix_in(&mut self, message: &Flying, answers: &mut Vec<BrokerInput>) {
        if !self.faults.strangers || self.rng.random_bool(0.6) {
            return;
        }
        for _ in 0..self.rng.random_range(1..3) {
            let at = self.rng.random_range(0..=answers.len());
            answers.insert(at, self.forged_answer(message));
        }
    }

    fn forged_answer(&mut self, message: &Flying) -> BrokerInput {
        let (_, epoch, index) = message.reply;
        let seq = self.stream.len() as u64 + self.rng.random_range(2..9);
        let is_fenced = message.expected.is_some();
        let lacks = !self.ids_in_stream().any(|id| id == message.id);
        if let (Some(expected), None, true, true) =
            (message.expected, message.part, lacks, self.faults.goes_back)
        {
            return BrokerInput::Acked { epoch, index, seq: expected + 1, is_duplicate: false };
        }
        match (self.rng.random_range(0..5), message.part) {
            (0, _) => BrokerInput::Stranger("another stream answers".into()),
            (1, None) if is_fenced => BrokerInput::Acked { epoch, index, seq, is_duplicate: false },
            (1, Some(part)) => BrokerInput::Ended { batch: part.batch, count: 0, seq },
            // A copy that is said to be there already is believed in every mode.
            (2, None) if !self.is_copy(message.id) => {
                let seq = self.rng.random_range(1..=self.stream.len().max(1)) as u64;
                BrokerInput::Acked { epoch, index, seq, is_duplicate: true }
            }
            (_, None) => {
                BrokerInput::Refused { epoch, index, refusal: self.forged_refusal(message) }
            }
            (_, Some(part)) => {
                // Of one that will follow, too.
                let (batch, number) = (part.batch, part.number + self.rng.random_range(0..3));
                BrokerInput::Broken { batch, number, refusal: self.forged_refusal(message) }
            }
        }
    }

    /// What the stream lacks, and others say is refused for good, is refused.
    fn forged_refusal(&mut self, message: &Flying) -> Refusal {
        let said = || "so they say".to_owned();
        let is_stored = self.ids_in_stream().any(|id| id == message.id);
        let refusals = [
            Refusal::ExpectedLastSequence,
            Refusal::Outage(said()),
            Refusal::Message(said()),
            Refusal::Configuration(said()),
            Refusal::NoBatches(said()),
        ];
        let count = if is_stored { refusals.len() } else { 2 };
        refusals[..count].choose(&mut self.rng).cloned().unwrap_or(Refusal::ExpectedLastSequence)
    }
}
