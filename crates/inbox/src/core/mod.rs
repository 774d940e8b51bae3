//! What to do next, without I/O and without a clock: lanes, retries, pauses.

mod gate;
mod lanes;
mod retry;
#[cfg(test)]
mod simulation;

pub(crate) use gate::Gate;
pub(crate) use lanes::{Ending, Item, Lanes, Path};
pub(crate) use retry::{Decision, decide};
