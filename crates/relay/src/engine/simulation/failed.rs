//! Schedules that failed once.

use super::schedules::{CALM, play};
use super::{Faults, Foreign};
use crate::engine::Mode;

/// Two events are requeued, the stream loses its end, and the log brings again what came before them.
#[test]
fn what_was_requeued_may_come_before_what_the_log_brings_again() {
    play(224, Faults { goes_back: true, poison: true, blocking: true, ..CALM });
}

#[test]
fn in_keyed_mode_what_was_in_flight_may_come_before_what_was_lost() {
    play(21_499, Faults { goes_back: true, mode: Mode::Keyed, ..CALM });
}

/// A scan looks at the stream while a batch is under way, behind which somebody has written.
#[test]
fn what_is_behind_a_batch_counts_when_the_batch_is_stored() {
    for seed in [43_057_847, 43_069_164] {
        play(seed, Faults { fickle: true, foreign: Foreign::Always, poison: true, ..CALM });
    }
}

/// An event is said to be stored where it is not, waits, and is then said to be refused, time and again
/// over new connections.
#[test]
fn in_keyed_mode_what_is_doubted_is_read_from_where_it_was_sent_first() {
    let strangers = Faults { strangers: true, poison: true, mode: Mode::Keyed, ..CALM };
    play(43_149_374, Faults { foreign: Foreign::Always, ..strangers });
    play(62_039_850, Faults { poison: false, ..strangers });
}
