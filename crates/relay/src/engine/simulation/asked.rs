//! Which effects the engine has asked for: an effect that no schedule asks for is proven by nothing
//! here. Each match names every effect, so that one that is added has to get its place.

use super::schedules::CALM;
use super::{Faults, Foreign, World};
use crate::engine::{
    BooksEffect, BrokerEffect, Effect, End, MarkingEffect, ReplayEffect, RowsEffect, ScanEffect,
};

const SEEDS: u64 = 20;
const STEPS: usize = 600;

/// By their places.
const NAMES: [&str; 38] = [
    "Checkpoint",
    "Heartbeat",
    "LookAtSlot",
    "Park",
    "NoteFailure",
    "MakeUpForMarks",
    "Mark",
    "OpenSecondWriter",
    "CloseSecondWriter",
    "TakeWatermark",
    "StoreWatermark",
    "SweepOn",
    "ReadStreamBack",
    "Seek",
    "MarkSwept",
    "NoteSweep",
    "Scan Open",
    "Scan Read",
    "Scan Close",
    "Scan Abandon",
    "Scan Watch",
    "Scan Mark",
    "NoteGapFilled",
    "Scan Note",
    "Replay LookFor",
    "Replay Begin",
    "Replay Read",
    "Replay Note",
    "Replay End",
    "ReadTail",
    "LeaveServer",
    "Confirm",
    "Measure",
    "Tell",
    "Refused",
    "Silence",
    "LeaveFence",
    "ClaimLost",
];

/// In none of these schedules: the log is never silent for long, there are never thousands of rows,
/// and a session that ends so ends the schedule.
const NEVER: [&str; 7] = [
    "Heartbeat",
    "OpenSecondWriter",
    "CloseSecondWriter",
    "SweepOn",
    "Refused",
    "Silence",
    "ClaimLost",
];

fn place(effect: &Effect) -> usize {
    match effect {
        Effect::Books(BooksEffect::Checkpoint { .. }) => 0,
        Effect::Books(BooksEffect::Heartbeat) => 1,
        Effect::Books(BooksEffect::LookAtSlot) => 2,
        Effect::Rows(RowsEffect::Park(_)) => 3,
        Effect::Rows(RowsEffect::NoteFailure { .. }) => 4,
        Effect::Rows(RowsEffect::MakeUpForMarks) => 5,
        Effect::Marking(effect) => 6 + place_of_marking(effect),
        Effect::Scan(effect) => 16 + place_of_scan(effect),
        Effect::Replay(ReplayEffect::LookFor) => 24,
        Effect::Replay(ReplayEffect::Begin(_)) => 25,
        Effect::Replay(ReplayEffect::Read { .. }) => 26,
        Effect::Replay(ReplayEffect::Note(_)) => 27,
        Effect::Replay(ReplayEffect::End) => 28,
        Effect::Broker(BrokerEffect::ReadTail { .. }) => 29,
        Effect::Broker(BrokerEffect::LeaveServer) => 30,
        Effect::Confirm(_) => 31,
        Effect::Measure(_) => 32,
        Effect::Tell(_) => 33,
        Effect::End(End::Refused(_)) => 34,
        Effect::End(End::Silence) => 35,
        Effect::End(End::LeaveFence(_)) => 36,
        Effect::End(End::ClaimLost) => 37,
    }
}

fn place_of_marking(effect: &MarkingEffect) -> usize {
    match effect {
        MarkingEffect::Mark { .. } => 0,
        MarkingEffect::OpenSecondWriter => 1,
        MarkingEffect::CloseSecondWriter => 2,
        MarkingEffect::TakeWatermark => 3,
        MarkingEffect::StoreWatermark(_) => 4,
        MarkingEffect::SweepOn { .. } => 5,
        MarkingEffect::ReadStreamBack { .. } => 6,
        MarkingEffect::Seek { .. } => 7,
        MarkingEffect::MarkSwept { .. } => 8,
        MarkingEffect::NoteSweep => 9,
    }
}

fn place_of_scan(effect: &ScanEffect) -> usize {
    match effect {
        ScanEffect::Open(_) => 0,
        ScanEffect::Read(_) => 1,
        ScanEffect::Close => 2,
        ScanEffect::Abandon { .. } => 3,
        ScanEffect::Watch { .. } => 4,
        ScanEffect::Mark { .. } => 5,
        ScanEffect::NoteGapFilled { .. } => 6,
        ScanEffect::Note => 7,
    }
}

impl World {
    pub(super) fn note_asked(&mut self, effect: &Effect) {
        self.asked |= 1 << place(effect);
    }
}

#[test]
fn every_effect_is_asked_for() {
    let rough = Faults { failing: true, hidden: true, locks: true, ..CALM };
    let mixes = [
        Faults { unlogged: true, is_indexed: true, ..CALM },
        Faults { slot_loss: true, poison: true, picky: true, ..rough },
        Faults { replays: true, poison: true, ..CALM },
        Faults { fickle: true, foreign: Foreign::Always, ..CALM },
        Faults { marks_waiting_max: 3, dedup: false, ..rough },
    ];
    let mut asked = 0;
    for (faults, seed) in mixes.into_iter().flat_map(|it| (0..SEEDS).map(move |seed| (it, seed))) {
        let mut world = World::new(seed, faults);
        for _ in 0..STEPS {
            world.step();
        }
        world.heal();
        asked |= world.asked;
    }
    let missing: Vec<&str> = NAMES
        .into_iter()
        .enumerate()
        .filter(|(place, _)| asked & (1_u64 << place) == 0)
        .map(|(_, name)| name)
        .collect();
    assert_eq!(missing, NEVER, "effects that no schedule asks for");
}
