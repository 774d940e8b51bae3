//! What is mixed into schedules, and how many of each kind there are.

use super::{Faults, Foreign, World};
use crate::engine::Mode;
use crate::engine::seeds::seeds;

const SEEDS: u64 = 500;
const STEPS: usize = 600;

/// Nothing but commits, crashes, broken connections and lost messages.
const CALM: Faults = Faults {
    mode: Mode::Fenced,
    foreign: Foreign::Never,
    poison: false,
    picky: false,
    blocking: false,
    dedup: true,
    batches: false,
    slot_loss: false,
    purges: false,
};

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

// proves: G-LOSS-4
#[test]
fn fenced_mode_is_exact_without_any_deduplication() {
    run(Faults { dedup: false, ..CALM });
}

// proves: G-DEAD-1
#[test]
fn fenced_mode_parks_poison_and_stays_in_commit_order() {
    run(Faults { poison: true, ..CALM });
}

#[test]
fn foreign_messages_between_ours_change_nothing() {
    run(Faults { foreign: Foreign::BetweenMessages, ..CALM });
}

#[test]
fn foreign_messages_among_ours_cost_no_event_and_no_duplicate() {
    run(Faults { foreign: Foreign::Always, ..CALM });
}

// proves: G-ONCE-1
#[test]
fn batches_are_exact_without_any_deduplication() {
    run(Faults { batches: true, dedup: false, ..CALM });
}

#[test]
fn batches_park_poison_and_stay_in_commit_order() {
    run(Faults { poison: true, batches: true, ..CALM });
}

// proves: G-ORDER-1
#[test]
fn batches_stay_in_commit_order_among_foreign_messages() {
    run(Faults { foreign: Foreign::Always, batches: true, ..CALM });
}

#[test]
fn what_a_batch_cannot_take_yet_is_not_overtaken() {
    run(Faults { picky: true, batches: true, ..CALM });
}

#[test]
fn in_batches_no_event_overtakes_one_that_blocks_its_aggregate() {
    run(Faults { poison: true, blocking: true, batches: true, ..CALM });
}

// proves: G-ORDER-2
#[test]
fn keyed_mode_keeps_each_aggregate_in_order_beside_other_writers() {
    run(Faults { mode: Mode::Keyed, foreign: Foreign::Always, poison: true, ..CALM });
}

#[test]
fn what_fenced_mode_cannot_send_yet_is_not_overtaken() {
    run(Faults { picky: true, ..CALM });
}

#[test]
fn what_keyed_mode_cannot_send_yet_is_not_overtaken() {
    run(Faults { mode: Mode::Keyed, picky: true, ..CALM });
}

// proves: G-DEAD-3
#[test]
fn in_fenced_mode_no_event_overtakes_one_that_blocks_its_aggregate() {
    run(Faults { poison: true, blocking: true, ..CALM });
}

#[test]
fn in_keyed_mode_no_event_overtakes_one_that_blocks_its_aggregate() {
    run(Faults { mode: Mode::Keyed, poison: true, blocking: true, ..CALM });
}

// proves: G-LOSS-3
#[test]
fn in_fenced_mode_a_lost_slot_costs_nothing_and_changes_no_order() {
    run(Faults { slot_loss: true, dedup: false, ..CALM });
}

#[test]
fn in_fenced_mode_a_purged_stream_costs_no_event() {
    run(Faults { purges: true, dedup: false, ..CALM });
}

#[test]
fn in_batches_a_purged_stream_costs_no_event() {
    run(Faults { purges: true, batches: true, dedup: false, ..CALM });
}

#[test]
fn in_batches_a_purged_stream_costs_no_event_beside_poison() {
    run(Faults { purges: true, poison: true, batches: true, dedup: false, ..CALM });
}

#[test]
fn in_batches_a_lost_slot_costs_nothing_and_changes_no_order() {
    run(Faults { slot_loss: true, batches: true, poison: true, dedup: false, ..CALM });
}

#[test]
fn in_keyed_mode_a_lost_slot_costs_nothing_and_changes_no_aggregates_order() {
    run(Faults { mode: Mode::Keyed, slot_loss: true, foreign: Foreign::Always, ..CALM });
}
