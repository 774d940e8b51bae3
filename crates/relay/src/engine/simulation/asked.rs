//! Which effects the engine has asked for: an effect that no schedule asks for is proven by nothing
//! here. Each match names every effect, so that one that is added has to get its place.

use std::time::Duration;

use uuid::Uuid;

use super::claiming::POLL;
use super::schedules::CALM;
use super::{Faults, Foreign, World};
use crate::engine::{
    Age, BooksEffect, BooksInput, BrokerEffect, BrokerInput, ClaimsEffect, ClaimsInput, Effect,
    End, Engine, Found, Ignored, Input, LogInput, Marked, MarkingEffect, MarkingInput, Parts,
    Refusal, ReplayEffect, ReplayInput, Resolved, RowsEffect, SWEPT_AT_ONCE, ScanEffect, ScanInput,
    Seen, Swept, Tail, Unmarked, Watermark,
};

const SEEDS: u64 = 20;
const STEPS: usize = 600;

/// By their places.
const NAMES: [&str; 47] = [
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
    "StreamIsShorter",
    "AwaitSlot",
    "Claim",
    "Renew",
    "Claim Mark",
    "GiveBack",
    "LookAtTail",
    "Bug",
    "LookUp",
];

/// No engine is told of what it has no part for.
const NEVER: [&str; 1] = ["Bug"];

/// So many marks wait that the engine asks for a second connection, and ends it when they are written.
const MARKS: u128 = 250_000;

fn place(effect: &Effect) -> usize {
    match effect {
        Effect::Books(BooksEffect::Checkpoint { .. }) => 0,
        Effect::Books(BooksEffect::Heartbeat) => 1,
        Effect::Books(BooksEffect::LookAtSlot) => 2,
        Effect::Books(BooksEffect::AwaitSlot) => 39,
        Effect::Rows(RowsEffect::Park { .. }) => 3,
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
        Effect::Broker(BrokerEffect::LookUp { .. }) => 46,
        Effect::Broker(BrokerEffect::LeaveServer) => 30,
        Effect::Confirm(_) => 31,
        Effect::Measure(_) => 32,
        Effect::Tell(_) => 33,
        Effect::End(End::Refused(_)) => 34,
        Effect::End(End::Silence) => 35,
        Effect::End(End::LeaveFence(_)) => 36,
        Effect::End(End::ClaimLost) => 37,
        Effect::End(End::StreamIsShorter) => 38,
        Effect::Claims(effect) => 40 + place_of_claims(effect),
        Effect::End(End::Bug(_)) => 45,
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

fn place_of_claims(effect: &ClaimsEffect) -> usize {
    match effect {
        ClaimsEffect::Claim { .. } => 0,
        ClaimsEffect::Renew { .. } => 1,
        ClaimsEffect::Mark { .. } => 2,
        ClaimsEffect::GiveBack { .. } => 3,
        ClaimsEffect::LookAtTail { .. } => 4,
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

/// What is there for the engine of a database whose every look finds as much as it may bring.
fn answer(effect: Effect) -> Option<MarkingInput> {
    let Effect::Marking(effect) = effect else { return None };
    let row = Unmarked { id: Uuid::nil(), is_dropped: true, age: Age::Later };
    let found = Found { rows: vec![row; SWEPT_AT_ONCE], transaction: 1, oldest_running: 1 };
    Some(match effect {
        MarkingEffect::Mark { statement, marks } => {
            let (rows, without_row) = (marks.len() as u64, Vec::new());
            MarkingInput::Marked { statement, marked: Some(Marked { rows, without_row }) }
        }
        MarkingEffect::OpenSecondWriter => MarkingInput::SecondWriter(true),
        MarkingEffect::TakeWatermark => {
            let (snapshot, lsn) = (String::new(), super::Lsn::ZERO);
            MarkingInput::Watermark(Some(Watermark { snapshot, lsn }))
        }
        MarkingEffect::StoreWatermark(_) | MarkingEffect::SweepOn { .. } => {
            MarkingInput::Unmarked(Some(found))
        }
        MarkingEffect::ReadStreamBack { found, .. } => {
            MarkingInput::StreamBack { found, stored: Vec::new(), is_whole: true }
        }
        MarkingEffect::Seek { found, .. } | MarkingEffect::MarkSwept { found, .. } => {
            MarkingInput::Swept(Some(Swept { found, marked: 0, unlogged: 0, suspected: 0 }))
        }
        MarkingEffect::CloseSecondWriter | MarkingEffect::NoteSweep => return None,
    })
}

/// What an engine asks for that has thousands of rows to mark, whose server falls silent, and whose
/// stream is configured wrongly.
fn asked_in_the_extreme() -> u64 {
    let mut world = World::new(0, CALM);
    let id = world.mint();
    let outgoing = world.outgoing(id);
    let mut engine = world.relay.engine;
    let mut asked = 0;
    let mut turn = |engine: &mut Engine, now| {
        engine.turn(now);
        let effects: Vec<Effect> = std::iter::from_fn(|| engine.next_effect()).collect();
        for effect in effects {
            asked |= 1 << place(&effect);
            answer(effect).into_iter().for_each(|it| engine.apply(now, it));
        }
    };
    let Parts::Log(log) = &mut engine.parts else { panic!("it has a log") };
    for id in 0..MARKS {
        log.marking.queue(Duration::ZERO, &Resolved::somewhere(Uuid::from_u128(id)));
    }
    for millis in (0..16_000).step_by(50) {
        let now = Duration::from_millis(millis);
        engine.tick(now, Seen { silence: now, has_free: true });
        turn(&mut engine, now);
    }
    engine.apply(Duration::from_secs(16), LogInput::Logged(outgoing));
    for epoch in 0..2 {
        let now = Duration::from_secs(17 + u64::from(epoch));
        let index = engine.next_send(|| now).map_or(0, |it| it.index);
        let refusal = Refusal::Configuration("the stream is sealed".into());
        engine.apply(now, BrokerInput::Refused { epoch, index, refusal });
        let later = now + Duration::from_millis(100);
        engine.core.publishing.tick(later);
        engine.apply(later, BrokerInput::Tail(Tail::ending_at(0)));
        turn(&mut engine, now);
    }
    asked
}

/// What a node asks for that has claimed a row, and hears nothing more of the server.
fn asked_in_silence() -> u64 {
    let mut world = World::new(0, POLL);
    let id = world.mint();
    let rows = vec![world.outgoing(id)];
    let mut engine = world.relay.engine;
    engine.turn(Duration::ZERO);
    engine.apply(Duration::ZERO, ClaimsInput::Claimed(rows));
    let mut asked = 0;
    for now in (0..30).map(Duration::from_secs) {
        engine.tick(now, Seen { silence: Duration::ZERO, has_free: true });
        engine.turn(now);
        let _ = engine.next_send(|| now);
        while let Some(effect) = engine.next_effect() {
            asked |= 1 << place(&effect);
        }
    }
    asked
}

#[test]
fn what_a_session_has_no_part_for_ends_it() {
    let of_log = World::new(0, CALM).relay.engine;
    let of_claims = World::new(0, POLL).relay.engine;
    let told: [(&Engine, Input); 6] = [
        (&of_log, ClaimsInput::NotClaimed.into()),
        (&of_claims, LogInput::Ignored(Ignored::Off).into()),
        (&of_claims, BooksInput::SlotMade.into()),
        (&of_claims, MarkingInput::SecondWriterBroke.into()),
        (&of_claims, ScanInput::Closed.into()),
        (&of_claims, ReplayInput::Found(None).into()),
    ];
    for (engine, input) in told {
        let (mut engine, what) = (engine.clone(), format!("{input:?}"));
        while engine.next_effect().is_some() {}
        engine.apply(Duration::ZERO, input);
        let effect = engine.next_effect();
        assert!(matches!(effect, Some(Effect::End(End::Bug(_)))), "{what}: {effect:?}");
    }
}

#[test]
fn every_effect_is_asked_for() {
    let rough = Faults { failing: true, hidden: true, locks: true, ..CALM };
    let mixes = [
        Faults { unlogged: true, is_indexed: true, ..CALM },
        Faults { slot_loss: true, poison: true, picky: true, ..rough },
        Faults { replays: true, poison: true, ..CALM },
        Faults { waits: true, ..CALM },
        Faults { poison: true, unwelcome: true, ..POLL },
        Faults { goes_back: true, ..CALM },
        Faults { fickle: true, foreign: Foreign::Always, ..CALM },
        Faults { marks_waiting_max: 3, dedup: false, ..rough },
    ];
    let mut asked = asked_in_the_extreme() | asked_in_silence();
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
