//! Schedules that failed once.

use super::Faults;
use super::schedules::{CALM, play};
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
