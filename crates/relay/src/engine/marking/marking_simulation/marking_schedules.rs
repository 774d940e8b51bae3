//! What is mixed into schedules, and how many of each kind there are.

use super::{Faults, World};
use crate::engine::seeds::seeds;

const SEEDS: u64 = 80;
const STEPS: usize = 300;

fn run(faults: Faults) {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, faults);
        for _ in 0..STEPS {
            world.step();
        }
        world.heal();
        world.check_end();
    }
}

const CALM: Faults = Faults {
    failing: false,
    unlogged: false,
    by_watermark: false,
    is_indexed: false,
    waiting_max: usize::MAX,
};

// proves: G-MARK-1
#[test]
fn every_published_row_is_marked_whatever_fails() {
    for is_indexed in [false, true] {
        run(Faults { failing: true, is_indexed, ..CALM });
    }
}

// proves: G-MARK-1
#[test]
fn marks_for_which_there_is_no_room_are_left_to_the_sweeper_and_nothing_comes_twice() {
    for (failing, is_indexed) in [(false, false), (false, true), (true, true)] {
        run(Faults { failing, is_indexed, waiting_max: 3, ..CALM });
    }
}

#[test]
fn a_row_that_becomes_visible_late_is_not_sought_in_the_whole_stream() {
    for is_indexed in [false, true] {
        run(Faults { is_indexed, ..CALM });
    }
}

#[test]
fn a_row_that_never_passed_the_log_is_left_to_the_scanner() {
    for is_indexed in [false, true] {
        run(Faults { unlogged: true, is_indexed, ..CALM });
    }
}

#[test]
fn a_watermark_that_is_the_only_mark_comes_to_rest() {
    run(Faults { failing: true, by_watermark: true, ..CALM });
}

// proves: G-STOP-1
#[test]
fn a_stop_marks_what_became_visible_after_its_mark() {
    for seed in seeds(SEEDS) {
        let mut world = World::new(seed, Faults { is_indexed: true, ..CALM });
        for _ in 0..STEPS {
            world.step();
        }
        world.stop();
        let is_marked = |id: &u128| world.table.rows[id].is_marked;
        assert!(world.published.iter().all(is_marked), "seed {seed}");
    }
}
