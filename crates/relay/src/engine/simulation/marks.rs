//! What holds of marks, beside everything else: what is under way, what a stop leaves, and rest.

use std::collections::HashSet;
use std::time::Duration;

use lab::seeds;

use super::schedules::{CALM, STEPS};
use super::{Faults, Job, World};
use crate::engine::{ClaimsEffect, Effect, Input, MarkingEffect, MarkingInput, Resolved};

/// What a statement, or a reading of the stream, is about.
#[derive(PartialEq)]
enum Kind {
    Marks,
    Watermark,
    Else,
}

fn kind_of_effect(effect: &MarkingEffect) -> Kind {
    match effect {
        MarkingEffect::Mark { .. } => Kind::Marks,
        MarkingEffect::TakeWatermark
        | MarkingEffect::StoreWatermark(_)
        | MarkingEffect::SweepOn { .. }
        | MarkingEffect::ReadStreamBack { .. }
        | MarkingEffect::Seek { .. }
        | MarkingEffect::MarkSwept { .. } => Kind::Watermark,
        MarkingEffect::OpenSecondWriter
        | MarkingEffect::CloseSecondWriter
        | MarkingEffect::NoteSweep => Kind::Else,
    }
}

fn kind_of_input(input: &MarkingInput) -> Kind {
    match input {
        MarkingInput::Marked { .. } => Kind::Marks,
        MarkingInput::Watermark(_)
        | MarkingInput::Unmarked(_)
        | MarkingInput::StreamBack { .. }
        | MarkingInput::Swept(_) => Kind::Watermark,
        MarkingInput::SecondWriter(_) | MarkingInput::SecondWriterBroke => Kind::Else,
    }
}

/// What was seen of marks.
#[derive(Debug, Default, Clone)]
pub(super) struct MarksSeen {
    /// Events that are resolved since the session began.
    pub(super) resolved: HashSet<u128>,
    pub(super) watermarks: u64,
}

impl World {
    /// Of what the engine has just asked for the last.
    pub(super) fn check_under_way(&self) {
        let Some(Job { effect, .. }) = self.relay.jobs.last() else { return };
        match effect {
            Effect::Marking(_) => self.check_marking(),
            Effect::Claims(ClaimsEffect::GiveBack { claim, .. }) => {
                let marks = |it: &Job| match &it.effect {
                    Effect::Claims(ClaimsEffect::Mark { claim: of, .. }) => of == claim,
                    Effect::Claims(
                        ClaimsEffect::Claim { .. }
                        | ClaimsEffect::Renew { .. }
                        | ClaimsEffect::GiveBack { .. }
                        | ClaimsEffect::LookAtTail { .. },
                    )
                    | Effect::Books(_)
                    | Effect::Rows(_)
                    | Effect::Marking(_)
                    | Effect::Scan(_)
                    | Effect::Replay(_)
                    | Effect::Broker(_)
                    | Effect::Confirm(_)
                    | Effect::Measure(_)
                    | Effect::Tell(_)
                    | Effect::End(_) => false,
                };
                let is_marking = self.relay.jobs.iter().any(marks);
                assert!(!is_marking, "claim {claim} ends beside its marks");
            }
            Effect::Claims(_)
            | Effect::Books(_)
            | Effect::Rows(_)
            | Effect::Scan(_)
            | Effect::Replay(_)
            | Effect::Broker(_)
            | Effect::Confirm(_)
            | Effect::Measure(_)
            | Effect::Tell(_)
            | Effect::End(_) => {}
        }
    }

    fn check_marking(&self) {
        let count = |kind: &Kind| {
            let asked = |it: &&Job| matches!(&it.effect, Effect::Marking(it) if kind_of_effect(it) == *kind);
            let told = |it: &&Input| matches!(it, Input::Marking(it) if kind_of_input(it) == *kind);
            self.relay.jobs.iter().filter(asked).count()
                + self.relay.outcomes.iter().filter(told).count()
        };
        assert!(count(&Kind::Watermark) <= 1, "one watermark at a time");
        let marks = count(&Kind::Marks);
        assert!(marks <= 3, "two statements on the first connection, one on the second");
    }

    /// What is marked is published, or a route drops it.
    pub(super) fn check_published(&self, marks: &[Resolved]) {
        for mark in marks {
            let id = mark.id.as_u128();
            let is_done = self.stored_ids.contains(&id) || self.is_filtered(id);
            // A session may not know yet that the stream has gone back.
            assert!(is_done || self.faults.goes_back, "{id} is marked and not published");
        }
    }

    /// The relay is asked to stop, and does what it has to.
    fn stop_and_mark(&mut self) {
        self.table.show(None);
        self.relay.engine.stop(self.time(), "a test");
        // What was lost before is missed, and sent again, before the stop gives up.
        for _ in 0..300 {
            for _ in 0..3 {
                let _ = self.send();
                self.broker(true);
                self.answer();
                self.job(true);
                self.effects();
            }
            self.now += Duration::from_millis(50);
            self.tick(0);
            if self.relay.engine.is_drained(self.time()) {
                return;
            }
        }
        panic!("a stop does not end: {:?}", self.relay.engine);
    }

    /// Nothing happens, for ten minutes.
    fn rest(&mut self) {
        let (watermarks, from) = (self.seen.watermarks, self.now);
        while self.now < from + Duration::from_mins(10) {
            self.now += Duration::from_millis(900);
            self.tick(0);
            self.job(true);
            self.effects();
        }
        let idle = self.seen.watermarks - watermarks;
        assert!(idle <= 11, "{idle} watermarks in ten minutes of nothing");
    }
}

#[test]
fn a_relay_that_has_nothing_to_do_takes_hardly_a_watermark() {
    let failing = Faults { failing: true, ..CALM };
    for faults in [
        CALM,
        failing,
        Faults { hidden: true, is_indexed: true, ..failing },
        Faults { marks_waiting_max: 3, ..failing },
        Faults { marks_waiting_max: 3, is_indexed: true, ..CALM },
        Faults { unlogged: true, ..CALM },
        Faults { by_watermark: true, dedup: false, ..failing },
    ] {
        for seed in seeds(3) {
            let mut world = World::new(seed, faults);
            for _ in 0..STEPS {
                world.step();
            }
            world.heal();
            world.check_end();
            world.rest();
        }
    }
}

// proves: G-STOP-1
#[test]
fn a_stop_marks_what_became_visible_after_its_mark() {
    for seed in seeds(30) {
        let mut world = World::new(seed, Faults { hidden: true, is_indexed: true, ..CALM });
        for _ in 0..STEPS {
            world.step();
        }
        world.stop_and_mark();
        let is_left = |id: &&u128| world.table.rows.get(id).is_some_and(|it| !it.is_marked);
        assert_eq!(world.seen.resolved.iter().find(is_left), None, "seed {seed}");
    }
}
