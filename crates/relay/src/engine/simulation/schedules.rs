//! What is mixed into schedules, and how many of each kind there are.

use lab::seeds;

use super::{Faults, Foreign, World};
use crate::engine::Mode;

/// Of each mix.
const SEEDS: u64 = 15;
pub(super) const STEPS: usize = 600;

/// Nothing but commits, crashes, broken connections and lost messages.
pub(super) const CALM: Faults = Faults {
    mode: Mode::Fenced,
    foreign: Foreign::Never,
    poison: false,
    picky: false,
    unwelcome: false,
    claims: false,
    blocking: false,
    mends: false,
    deletes: false,
    dedup: true,
    fickle: false,
    slot_loss: false,
    meddled: false,
    waits: false,
    purges: false,
    goes_back: false,
    failing: false,
    hidden: false,
    locks: false,
    unlogged: false,
    emitted: false,
    replays: false,
    strangers: false,
    is_indexed: false,
    by_watermark: false,
    marks_waiting_max: usize::MAX,
};

pub(super) fn run(faults: Faults) {
    seeds(SEEDS).for_each(|seed| play(seed, faults));
}

pub(super) fn play(seed: u64, faults: Faults) {
    let mut world = World::new(seed, faults);
    for _ in 0..STEPS {
        world.step();
    }
    world.heal();
    world.check_end();
    world.check_replays();
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

// proves: G-LOSS-4
// proves: G-ONCE-1
#[test]
fn fenced_mode_is_exact_without_any_deduplication() {
    run(Faults { dedup: false, ..CALM });
}

// proves: G-ORDER-1
#[test]
fn fenced_mode_stays_in_commit_order_among_foreign_messages() {
    run(Faults { foreign: Foreign::Always, ..CALM });
}

// proves: G-STRANGER-3
#[test]
fn an_event_whose_id_others_took_is_published_in_order() {
    for mode in [Mode::Fenced, Mode::Keyed] {
        let taken = Faults { mode, foreign: Foreign::UnderIds, ..CALM };
        run(taken);
        run(Faults { poison: true, failing: true, hidden: true, locks: true, ..taken });
        run(Faults { slot_loss: true, emitted: true, ..taken });
    }
}

/// The stream stops taking batches, and takes them again: sessions of both modes follow each other.
// proves: G-ORDER-2
#[test]
fn a_stream_that_stops_taking_batches_changes_no_aggregates_order() {
    let fickle = Faults { fickle: true, ..CALM };
    run(fickle);
    run(Faults { foreign: Foreign::Always, poison: true, ..fickle });
    run(Faults { slot_loss: true, failing: true, hidden: true, locks: true, ..fickle });
    run(Faults { purges: true, ..fickle });
    run(Faults { emitted: true, poison: true, blocking: true, ..fickle });
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

// proves: G-DEAD-4
#[test]
fn a_mended_event_is_not_parked_again_for_what_its_first_row_said() {
    for (mode, deletes) in [(Mode::Fenced, false), (Mode::Keyed, true)] {
        let mended = Faults { mode, poison: true, mends: true, deletes, ..CALM };
        run(mended);
        run(Faults { deletes: !deletes, failing: true, hidden: true, locks: true, ..mended });
        run(Faults { blocking: true, ..mended });
    }
}

// proves: G-LOSS-3
#[test]
fn in_fenced_mode_a_lost_slot_costs_nothing_and_changes_no_order() {
    run(Faults { slot_loss: true, dedup: false, ..CALM });
}

// proves: G-LOSS-3
#[test]
fn a_slot_that_is_ahead_or_behind_costs_nothing() {
    let meddled = Faults { meddled: true, dedup: false, ..CALM };
    run(meddled);
    run(Faults { poison: true, is_indexed: true, ..meddled });
    run(Faults { failing: true, hidden: true, locks: true, ..meddled });
    run(Faults { mode: Mode::Keyed, dedup: true, foreign: Foreign::Always, ..meddled });
    run(Faults { poison: true, blocking: true, ..meddled });
}

/// Transactions stay open for long, slots wait for them, relays are killed meanwhile.
// proves: G-SLOT-3
#[test]
fn while_slots_wait_events_flow_from_the_table_and_none_comes_twice() {
    let waits = Faults { waits: true, slot_loss: true, ..CALM };
    run(Faults { dedup: false, ..waits });
    run(Faults { dedup: false, is_indexed: true, poison: true, failing: true, ..waits });
    run(Faults { failing: true, hidden: true, locks: true, ..waits });
    run(Faults { mode: Mode::Keyed, foreign: Foreign::Always, poison: true, ..waits });
    run(Faults { foreign: Foreign::Always, picky: true, ..waits });
    run(Faults { poison: true, blocking: true, ..waits });
    run(Faults { poison: true, mends: true, deletes: true, ..waits });
    run(Faults { goes_back: true, ..waits });
}

#[test]
fn in_fenced_mode_a_purged_stream_costs_no_event() {
    run(Faults { purges: true, dedup: false, ..CALM });
}

#[test]
fn a_purged_stream_costs_no_event_beside_whatever_fails() {
    run(Faults { purges: true, dedup: false, ..ROUGH });
    run(Faults { purges: true, dedup: false, by_watermark: true, is_indexed: true, ..ROUGH });
}

/// JetStream acknowledges what is not on its disk yet.
// proves: G-LOSS-6
#[test]
fn a_stream_that_comes_back_without_its_end_gets_it_again() {
    let back = Faults { goes_back: true, ..CALM };
    run(back);
    run(Faults { dedup: false, ..back });
    run(Faults { mode: Mode::Keyed, ..back });
    run(Faults { slot_loss: true, ..back });
    run(Faults { poison: true, is_indexed: true, ..back });
    let locked = Faults { locks: true, ..back };
    run(locked);
    run(Faults { mode: Mode::Keyed, ..locked });
    run(Faults { poison: true, slot_loss: true, ..locked });
}

// proves: G-LOSS-6
#[test]
fn a_stream_that_goes_back_while_statements_fail_gets_its_end_again() {
    let back = Faults { goes_back: true, ..CALM };
    run(Faults { failing: true, ..back });
    run(Faults { failing: true, mode: Mode::Keyed, ..back });
}

// proves: G-LOSS-6
#[test]
fn a_stream_that_goes_back_beside_whatever_fails_gets_its_end_again() {
    run(Faults { goes_back: true, ..ROUGH });
    run(Faults { goes_back: true, mode: Mode::Keyed, ..ROUGH });
}

// proves: G-LOSS-6
#[test]
fn a_stream_that_goes_back_beside_purges_late_rows_and_strangers_gets_its_end_again() {
    let back = Faults { goes_back: true, ..CALM };
    run(Faults { hidden: true, ..back });
    run(Faults { purges: true, ..back });
    run(Faults { meddled: true, ..back });
    run(Faults { foreign: Foreign::BetweenMessages, ..back });
    run(Faults { mode: Mode::Keyed, foreign: Foreign::Always, ..back });
    run(Faults { poison: true, blocking: true, ..back });
}

/// What the log does not bring again is lost, and told of.
// proves: G-LOSS-6
#[test]
fn of_events_without_a_row_a_stream_loses_none_in_silence() {
    let back = Faults { goes_back: true, emitted: true, ..CALM };
    run(back);
    run(Faults { mode: Mode::Keyed, ..back });
    run(Faults { poison: true, failing: true, locks: true, ..back });
    run(Faults { poison: true, blocking: true, ..back });
    run(Faults { slot_loss: true, hidden: true, ..back });
    run(Faults { purges: true, ..back });
}

/// In keyed mode nothing tells what was published.
// proves: G-LOSS-4
#[test]
fn a_stream_that_is_purged_at_any_moment_costs_no_event_and_no_rest() {
    let faults = Faults { purges: true, ..ROUGH };
    run(faults);
    run(Faults { blocking: true, slot_loss: true, ..faults });
    run(Faults { mode: Mode::Keyed, ..faults });
}

#[test]
fn in_fenced_mode_a_purged_stream_costs_no_event_beside_poison() {
    run(Faults { purges: true, poison: true, dedup: false, ..CALM });
}

#[test]
fn in_fenced_mode_a_lost_slot_beside_poison_changes_no_order() {
    run(Faults { slot_loss: true, poison: true, dedup: false, ..CALM });
}

#[test]
fn in_keyed_mode_a_lost_slot_costs_nothing_and_changes_no_aggregates_order() {
    run(Faults { mode: Mode::Keyed, slot_loss: true, foreign: Foreign::Always, ..CALM });
}

/// Everything of PostgreSQL's that may go wrong.
const ROUGH: Faults = Faults { failing: true, hidden: true, locks: true, ..CALM };

// proves: G-MARK-1
#[test]
fn every_published_row_is_marked_whatever_fails() {
    for is_indexed in [false, true] {
        run(Faults { is_indexed, ..ROUGH });
    }
}

// proves: G-MARK-1
#[test]
fn marks_for_which_there_is_no_room_are_left_to_the_sweeper_and_nothing_comes_twice() {
    for is_indexed in [false, true] {
        run(Faults { is_indexed, marks_waiting_max: 3, dedup: false, ..ROUGH });
    }
}

#[test]
fn a_row_that_becomes_visible_late_is_not_sought_in_the_whole_stream() {
    for is_indexed in [false, true] {
        let late = Faults { hidden: true, is_indexed, dedup: false, ..CALM };
        run(Faults { locks: true, dedup: true, ..late });
        run(Faults { locks: true, poison: true, dedup: true, ..late });
        run(Faults { marks_waiting_max: 3, ..late });
        run(Faults { marks_waiting_max: 3, purges: true, ..late });
    }
}

#[test]
fn a_row_that_never_passed_the_log_is_published_from_the_table() {
    for is_indexed in [false, true] {
        run(Faults { unlogged: true, is_indexed, ..CALM });
    }
}

#[test]
fn a_watermark_that_is_the_only_mark_comes_to_rest() {
    run(Faults { by_watermark: true, dedup: false, failing: true, ..CALM });
}

/// Its messages have no ids, so that no other mode could follow.
#[test]
fn a_relay_that_only_keeps_a_watermark_stays_fenced_whoever_writes() {
    let lean = Faults { by_watermark: true, dedup: false, foreign: Foreign::Always, ..CALM };
    run(lean);
    run(Faults { failing: true, hidden: true, ..lean });
}

#[test]
fn fenced_mode_beside_whatever_fails_is_exact_without_any_deduplication() {
    run(Faults { dedup: false, poison: true, ..ROUGH });
}

#[test]
fn in_keyed_mode_whatever_fails_changes_no_aggregates_order() {
    run(Faults { mode: Mode::Keyed, foreign: Foreign::Always, poison: true, ..ROUGH });
}

// proves: G-DEAD-3
#[test]
fn no_event_overtakes_one_that_blocks_its_aggregate_whatever_fails() {
    for mode in [Mode::Fenced, Mode::Keyed] {
        run(Faults { mode, poison: true, blocking: true, ..ROUGH });
    }
}

// proves: G-LOSS-3
#[test]
fn a_lost_slot_beside_whatever_fails_costs_nothing() {
    run(Faults { slot_loss: true, dedup: false, ..ROUGH });
}

#[test]
fn everything_at_once_is_exact_without_any_deduplication() {
    for foreign in [Foreign::Never, Foreign::BetweenMessages, Foreign::Always] {
        run(Faults { foreign, poison: true, slot_loss: true, dedup: false, ..ROUGH });
    }
}

// proves: G-REPLAY-1
#[test]
fn a_replay_beside_whatever_happens_is_exact_and_disturbs_nothing() {
    run(Faults { replays: true, poison: true, ..CALM });
    run(Faults { replays: true, slot_loss: true, ..ROUGH });
    run(Faults { replays: true, mode: Mode::Keyed, poison: true, ..ROUGH });
    run(Faults { replays: true, poison: true, blocking: true, ..ROUGH });
}

// proves: G-OUT-1
#[test]
fn events_without_a_row_are_exact_and_in_order_among_those_with_one() {
    run(Faults { emitted: true, dedup: false, ..CALM });
    run(Faults { emitted: true, dedup: false, poison: true, ..ROUGH });
    run(Faults { emitted: true, by_watermark: true, dedup: false, failing: true, ..CALM });
}

// proves: G-OUT-1
#[test]
fn in_keyed_mode_events_without_a_row_keep_their_aggregates_order() {
    let foreign = Foreign::Always;
    run(Faults { emitted: true, mode: Mode::Keyed, foreign, poison: true, ..ROUGH });
}

// proves: G-OUT-2
#[test]
fn events_without_a_row_are_parked_and_block_their_aggregates_as_others_do() {
    for mode in [Mode::Fenced, Mode::Keyed] {
        run(Faults { emitted: true, mode, poison: true, blocking: true, ..CALM });
        run(Faults { emitted: true, mode, picky: true, ..CALM });
    }
}

#[test]
fn a_purged_stream_costs_no_event_without_a_row() {
    run(Faults { emitted: true, purges: true, dedup: false, ..CALM });
}

#[test]
fn a_lost_slot_costs_nothing_but_events_without_a_row() {
    run(Faults { emitted: true, slot_loss: true, dedup: false, ..ROUGH });
}

// proves: G-STRANGER-1
#[test]
fn answers_of_others_change_nothing() {
    let strangers = Faults { strangers: true, ..CALM };
    for mode in [Mode::Fenced, Mode::Keyed] {
        let strangers = Faults { mode, ..strangers };
        run(strangers);
        run(Faults { poison: true, failing: true, hidden: true, locks: true, ..strangers });
        run(Faults { foreign: Foreign::Always, poison: true, ..strangers });
        run(Faults { slot_loss: true, emitted: true, replays: true, ..strangers });
    }
    run(Faults { dedup: false, ..strangers });
    run(Faults { fickle: true, ..strangers });
    run(Faults { by_watermark: true, dedup: false, ..strangers });
    // Also acknowledgements of what the stream lacks: it ends before them.
    run(Faults { goes_back: true, dedup: false, ..strangers });
}
