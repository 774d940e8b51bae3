//! Schedules that failed once.

use super::Faults;
use super::schedules::{CALM, play};

/// Two events are requeued, the stream loses its end, and the log brings again what came before them.
#[test]
fn what_was_requeued_may_come_before_what_the_log_brings_again() {
    play(224, Faults { goes_back: true, poison: true, blocking: true, ..CALM });
}
